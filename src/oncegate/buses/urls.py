"""What the URLs of message buses have in common: the server, the login, options, and files with secrets and
certificates."""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.text import quoted

TLS_FILES: Final = ("ca", "certificate", "certificate_key")
_LOGIN: Final = ("mechanism", "password_file")


class BusUrl(Struct, frozen=True):
    """The parts of a URL. `path` is without its first slash and still percent-encoded. `options` are those behind the
    question mark."""

    host: str
    port: int
    path: str
    is_encrypted: bool
    user: str | None
    password: str | None
    options: Mapping[str, str]

    @property
    def server(self) -> str:
        return f"{self.host}:{self.port}" if ":" not in self.host else f"[{self.host}]:{self.port}"


def read_url(url: str, bus: str, tls: str, port: int, known: Sequence[str], use: str) -> BusUrl:
    """Parse a URL of a bus. `tls` is the scheme that uses TLS, `port` is the default, `known` are the names of all
    options, and `use` tells people what to write. Raises SettingError, whose text never quotes what may be a part of a
    password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or port
    except ValueError:
        raise SettingError(
            f"the host or the port of the {bus} URL is not valid; {use}, and percent-encode the user and the password"
        ) from None
    refuse_at_sign(f"{parts.path}{parts.query}{parts.fragment}", bus, use)
    options = read_options(parts.query, bus, known)
    if not host:
        raise SettingError(f"the {bus} URL has no host; {use}")
    user, password = read_login(parts.netloc)
    refuse_options_without_effect(options, bus, tls, is_encrypted=parts.scheme == tls, has_user=bool(user))
    return BusUrl(host, port, parts.path.removeprefix("/"), parts.scheme == tls, user, password, options)


def refuse_at_sign(text: str, bus: str, use: str) -> None:
    """Raise SettingError if there is an @ behind the host. It may belong to a password that is not encoded, so the
    message must not quote it."""
    if "@" in text:
        raise SettingError(
            f"a user, a password or a name in a {bus} URL must be percent-encoded (an @ is written as %40); {use}"
        )


def read_options(query: str, bus: str, known: Sequence[str]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - set(known)):
        raise SettingError(f"unknown option {unknown[0]!r} in a {bus} URL; use {', '.join(known)}")
    return options


def read_login(place: str) -> tuple[str | None, str | None]:
    """Returns the user and the password before the host."""
    login, at, _ = place.rpartition("@")
    user, colon, password = login.partition(":")
    return unquote(user) if at else None, unquote(password) if colon else None


def refuse_options_without_effect(
    options: Mapping[str, str], bus: str, tls: str, *, is_encrypted: bool, has_user: bool
) -> None:
    """Raise SettingError for an option that should protect the connection and would have no effect."""
    for name in options:
        if name in TLS_FILES and not is_encrypted:
            raise SettingError(f"the option {name} of a {bus} URL is for TLS; write '{tls}://…'")
        if name in _LOGIN and not has_user:
            raise SettingError(f"the option {name} of a {bus} URL needs a user; write '…://USER@…'")
    if "certificate_key" in options and "certificate" not in options:
        raise SettingError(f"the option certificate_key of a {bus} URL needs the option certificate")


def bus_name(value: str, what: str, use: str, *, is_valid: bool) -> str:
    """Returns the name of a queue, a topic or a group. `what` says what it is the name of. Raises SettingError if the
    URL has no such name, or if the bus does not allow it."""
    if not value:
        raise SettingError(f"the URL has no name of a {what}; {use}")
    if not is_valid:
        raise SettingError(f"{quoted(value)} is not the name of a {what}; {use}")
    return value


@contextmanager
def named_files(bus: str) -> Iterator[None]:
    """Raise SettingError if a file that the URL names cannot be read, or has no valid content."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        raise SettingError(f"the {bus} URL names a file that cannot be used: {why}") from error


@contextmanager
def files_at_connect() -> Iterator[None]:
    """Raise ConnectionError instead of SettingError. The files were read when the URL was checked, so a file that is
    missing now, for example while it is replaced, is an outage that may end."""
    try:
        yield
    except SettingError as error:
        raise ConnectionError(str(error)) from error


def read_secret(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """The context for a connection that verifies the certificate of the server. The options name files: `ca`,
    `certificate` and `certificate_key`."""
    for name in TLS_FILES:
        if name in options:
            open(options[name], "rb").close()  # the errors of `ssl` do not name the file
    context = ssl.create_default_context(cafile=options.get("ca"))
    if "certificate" in options:
        context.load_cert_chain(options["certificate"], options.get("certificate_key"))
    return context
