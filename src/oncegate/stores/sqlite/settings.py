"""Parse the URL of an SQLite store."""

import os
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from oncegate.durations import microseconds
from oncegate.errors import SettingError
from oncegate.text import quoted

LEVELS: Final = ("full", "normal")
_SWITCH: Final = {"on": True, "off": False}
_DATABASE_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")
_EXPECTED: Final = "write sqlite:///relative.db or sqlite:////absolute/path.db (three or four slashes)"


class SqliteSettings(Struct, frozen=True):
    """The settings in the URL of an SQLite store. `busy_timeout` is in microseconds."""

    path: str
    synchronous: str
    busy_timeout: int
    secure_delete: bool


def read_url(url: str) -> SqliteSettings:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingError(f"{quoted(url)} is not a URL; {_EXPECTED}") from None
    path = unquote(parts.path[1:])
    if parts.netloc or parts.fragment or not path:
        raise SettingError(f"{quoted(url)} names no file; {_EXPECTED}")
    if path == ":memory:":
        raise SettingError("sqlite:///:memory: is not shared between connections; use memory:// instead")
    if "\0" in path:
        raise SettingError("no file can have a NUL (%00) in its name; choose another name for the store")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full").lower()
    busy_timeout = microseconds(options.pop("busy_timeout", "5s"), "busy_timeout")
    secure_delete = _read_switch(options.pop("secure_delete", "off"))
    if options:
        raise SettingError(
            f"the SQLite store has no option {next(iter(options))!r}; it has synchronous, busy_timeout, secure_delete"
        )
    return SqliteSettings(path, check_synchronous(synchronous), busy_timeout, secure_delete)


def beside(path: str, suffix: str) -> str:
    """Returns the path of another file for the store in the file `path`: `oncegate.db` becomes `oncegate` + suffix."""
    root, extension = os.path.splitext(path)
    return f"{root if extension in _DATABASE_SUFFIXES else path}{suffix}"


def check_synchronous(synchronous: str) -> str:
    if synchronous not in LEVELS:
        raise SettingError(f"synchronous={synchronous!r} is not a choice; it is {' or '.join(LEVELS)}")
    return synchronous


def _read_switch(text: str) -> bool:
    try:
        return _SWITCH[text.lower()]
    except KeyError:
        raise SettingError(f"secure_delete={text!r} is not a choice; it is {' or '.join(_SWITCH)}") from None
