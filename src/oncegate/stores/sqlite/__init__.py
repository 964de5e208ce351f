"""The SQLite store and its URL."""

import os
from urllib.parse import parse_qsl, unquote, urlsplit

from oncegate.clocks import Clock
from oncegate.durations import microseconds
from oncegate.errors import SettingError, StoreRefused
from oncegate.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "open_sqlite"]


def open_sqlite(url: str, *, create: bool, clock: Clock | None) -> SqliteStore:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`; options `synchronous` and `busy_timeout`."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SettingError(f"{url!r} is not a URL: {error}") from error
    path = unquote(parts.path[1:])
    if parts.netloc or parts.fragment or not path:
        raise SettingError(
            f"{url!r} names no file; write sqlite:///relative.db or sqlite:////absolute/path.db (three or four slashes)"
        )
    if path == ":memory:":
        raise SettingError("sqlite:///:memory: is not shared between connections; use memory:// instead")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "full").lower()
    busy_timeout = microseconds(options.pop("busy_timeout", "5s"), "busy_timeout")
    if options:
        raise SettingError(f"the SQLite store has no option {next(iter(options))!r}; it has synchronous, busy_timeout")
    if not create and not os.path.exists(path):
        raise StoreRefused(f"there is no store at {path}; name the right one, such as sqlite:///path/to/oncegate.db")
    return SqliteStore(path, synchronous=synchronous, busy_timeout=busy_timeout, clock=clock)
