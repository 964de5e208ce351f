"""The login tokens of the console: from the settings, or generated and stored beside the store."""

import os
import secrets
import stat
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.settings import Settings
from oncegate.settings.load import secrets_of
from oncegate.settings.schema import CONSOLE_TOKEN
from oncegate.signatures.verifier import check_length, keys_of, utf8

_RANDOM_BYTES: Final = 32
_LONGEST_FILE: Final = 1_000  # bytes
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_SET: Final = f"set {CONSOLE_TOKEN} to a random token"
_EXPOSED: Final = (
    "The console has no TLS: others on the network can read its token. Set serve.tls_cert and serve.tls_key, or use a"
    " reverse proxy with TLS and name it in serve.proxies."
)


class Login(Struct, frozen=True):
    """How to log in to a console. If `tokens` is empty, the console is off, and `off` says why. `generated` is the
    token if it was generated just now. `file` is the file that has the generated token; None if no file has it, and
    the token is valid only until the process ends. `is_exposed` says that other machines can reach the console without
    TLS."""

    tokens: tuple[str, ...] = ()
    off: str = ""
    generated: str | None = None
    file: str | None = None
    is_exposed: bool = False

    def __repr__(self) -> str:
        return f"Login({len(self.tokens)} tokens, off={self.off!r}, file={self.file!r})"

    def facts(self, url: str) -> str:
        """A sentence without the token, for the start message. `url` is the address of the console."""
        if not self.tokens:
            return f"The console is off: {self.off}."
        place = f"The console is at {url}" + ("." if self.file is None else f"; its token is in {self.file}.")
        return f"{place}\n{_EXPOSED}" if self.is_exposed else place

    @property
    def hint(self) -> str:
        """The text with the token, for a terminal; "" if the token was not generated just now."""
        if self.generated is None:
            return ""
        until = "" if self.file is not None else ", which is valid until this process ends"
        return f"Log in to the console with this token{until}:\n\n  {self.generated}\n\n"


def login_of(settings: Settings, host: str, *, can_show: bool) -> Login:
    """Returns the login of the console at an address. If no token is configured, and the address is a loopback address,
    a token is generated. `can_show` says whether a person sees the start message. A token that is in no file is used
    only then, because a log must not have secrets, and nobody could know the token otherwise."""
    tokens = configured_tokens(settings)
    if tokens:
        is_encrypted = settings["serve.tls_cert"] is not None or bool(settings["serve.proxies"])
        return Login(tokens, is_exposed=not (is_loopback(host) or is_encrypted))
    if not is_loopback(host):
        return Login(off=f"other machines can reach {host}, and no token is set; {_SET}")
    file = _file_beside(settings["store"])
    problem = "only a store in a file has a place for a generated token"
    if file is not None:
        try:
            token, is_new = _stored_token(file)
        except (OSError, ValueError) as error:
            problem = f"cannot use {file}: {getattr(error, 'strerror', None) or error}"
        else:
            return Login((token,), generated=token if is_new else None, file=file)
    if not can_show:
        return Login(off=f"{problem}; {_SET}")
    token = secrets.token_urlsafe(_RANDOM_BYTES)
    return Login((token,), generated=token)


def configured_tokens(settings: Settings) -> tuple[str, ...]:
    """Returns the tokens that the settings name. Raises SettingError if a token cannot be read or is too short."""
    tokens = secrets_of(settings, named="console.token")
    if tokens:
        with settings.placed("console.token_file" if settings["console.token_file"] else "console.token_env"):
            keys_of(tokens, lambda token: check_length(utf8(token)))
    return tuple(tokens.values())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# ── the file of a generated token ─────────────────────────────────────────────────────────────────────────


def _file_beside(store: str) -> str | None:
    """Returns the file of the token of a store in a file: `oncegate.console-token` for `oncegate.db`."""
    if not store.startswith("sqlite://"):
        return None
    from oncegate.stores.sqlite.settings import beside, read_url

    return beside(read_url(store).path, ".console-token")


def _stored_token(path: str) -> tuple[str, bool]:
    """Returns the token of a file, and whether the file was created by this call. Raises OSError or ValueError if the
    file cannot be used."""
    try:
        return _read_token(path), False
    except FileNotFoundError:
        _create_file(path, secrets.token_urlsafe(_RANDOM_BYTES))
    return _read_token(path), True


def _read_token(path: str) -> str:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(file, "rb") as stream:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_mode & _OTHERS:
            raise ValueError("other users may use the file; change its mode to 0600")
        token = stream.read(_LONGEST_FILE).strip().decode("ascii", "replace")
    try:
        check_length(token.encode())
    except SettingError:
        raise ValueError("it has no token; delete the file") from None
    return token


def _create_file(path: str, token: str) -> None:
    """Create the file with its content in one step: another process that starts now sees no file or a whole token. If
    the other process is first, its file stays."""
    draft = f"{path}.{secrets.token_hex(8)}"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w", encoding="ascii") as stream:
            stream.write(f"{token}\n")
        with suppress(FileExistsError):
            os.link(draft, path, follow_symlinks=False)
    finally:
        os.unlink(draft)
