"""Parse the URL of a Redis store."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from oncegate.durations import microseconds
from oncegate.errors import SettingError

_SCHEMES: Final = {  # (TLS, cluster)
    "redis": (False, False),
    "rediss": (True, False),
    "redis+cluster": (False, True),
    "rediss+cluster": (True, True),
}
_COMMON: Final = ("prefix", "connect_timeout", "timeout", "wait_replicas", "wait_timeout", "evicting")
_CLUSTERED: Final = ("buckets",)
_ENCRYPTED: Final = ("ca_file", "cert_file", "key_file")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_MAX_BUCKETS: Final = 1024
_SYNTAX: Final = (
    "write redis://host:6379/0; in a user name or password, write %40 for @, %2F for /, %3A for :, %23 for #, %3F for ?"
)


class RedisSettings(Struct, frozen=True):
    """The settings in the URL of a Redis store. Timeouts are in seconds."""

    host: str
    port: int = 6379
    database: int = 0
    username: str | None = None
    password: str | None = None
    tls: bool = False
    cluster: bool = False
    prefix: str = "oncegate"
    buckets: int = 16
    connect_timeout: float = 2.0
    timeout: float = 5.0
    wait_replicas: int = 0
    wait_timeout: float = 1.0
    evicting: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def place(self) -> str:
        """Host, port and database for messages. The password is not included."""
        return f"{self.host}:{self.port}" + (f"/{self.database}" if self.database else "")


def settings_of(url: str) -> RedisSettings:
    """Return the settings in a URL. Raises SettingError if the URL is invalid. The message never includes the part of
    the URL that may contain the password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # the text of this error may contain the password
        raise SettingError(f"the Redis URL is malformed; {_SYNTAX}") from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise SettingError(f"the Redis URL has an @ after its host; {_SYNTAX}")
    tls, cluster = _SCHEMES[parts.scheme]
    if not parts.hostname or parts.fragment:
        raise SettingError(f"the Redis URL has no host, or has a #fragment; write {parts.scheme}://host:6379")
    known = _COMMON + _CLUSTERED * cluster + _ENCRYPTED * tls
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - set(known)):
        raise SettingError(
            f"the Redis store has no option {unknown[0]!r} with {parts.scheme}://; use {', '.join(known)}"
        )
    if port == 0:
        raise SettingError(f"port 0 is not valid; write {parts.scheme}://host:6379")
    return RedisSettings(
        parts.hostname,
        port or 6379,
        _database(parts.path, cluster),
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
        tls,
        cluster,
        _prefix(options.get("prefix", "oncegate")),
        _number(options, "buckets", 16, 1, _MAX_BUCKETS),
        _seconds(options, "connect_timeout", "2s"),
        _seconds(options, "timeout", "5s"),
        _number(options, "wait_replicas", 0, 0, 100),
        _seconds(options, "wait_timeout", "1s"),
        _evicting(options.get("evicting", "refused")),
        *(_file(options, name) for name in _ENCRYPTED),
    )


def _database(path: str, cluster: bool) -> int:
    name = path.strip("/")
    if cluster and name not in ("", "0"):
        raise SettingError(f"a cluster has no database {name!r}; remove it, and separate stores by ?prefix=")
    if name and not name.isdecimal():
        raise SettingError(f"{name!r} is not the number of a Redis database; write redis://host:6379/0")
    return int(name or 0)


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise SettingError(f"prefix={text!r} is not valid; use 1 to 64 letters, digits, and . _ : -")
    return text


def _evicting(text: str) -> bool:
    if text not in ("refused", "allowed"):
        raise SettingError(f"evicting={text!r} must be refused or allowed")
    return text == "allowed"


def _number(options: dict[str, str], name: str, default: int, minimum: int, maximum: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or not minimum <= int(text) <= maximum:
        raise SettingError(f"{name}={text!r} is not a number from {minimum} to {maximum}")
    return int(text)


def _file(options: dict[str, str], name: str) -> str | None:
    path = options.get(name) or None
    if path is not None and not Path(path).is_file():
        raise SettingError(f"{name}={path!r} is not a file; use the path of an existing file")
    return path


def _seconds(options: dict[str, str], name: str, default: str) -> float:
    return microseconds(options.get(name, default), name) / 1e6
