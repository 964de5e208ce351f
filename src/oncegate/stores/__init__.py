"""Stores of claims. `open_store` opens the store of a URL."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from oncegate.clocks import Clock
from oncegate.errors import SettingError
from oncegate.stores.base import Inbox, Store
from oncegate.text import quoted


class _Driver(Struct, frozen=True):
    """The entry points of a store package: `open` opens a URL, `check` raises SettingError for an invalid URL without
    opening it, and `kind` is the class of the store."""

    open: Callable[..., Store]
    check: Callable[[str], object]
    kind: type[Any]


def _memory() -> _Driver:
    from oncegate.stores.memory import MemoryStore, check_memory, open_memory

    return _Driver(open_memory, check_memory, MemoryStore)


def _sqlite() -> _Driver:
    from oncegate.stores.sqlite import SqliteStore, open_sqlite, read_url

    return _Driver(open_sqlite, read_url, SqliteStore)


def _postgres() -> _Driver:
    from oncegate.stores.postgres import PostgresStore, open_postgres, read_url

    return _Driver(open_postgres, read_url, PostgresStore)


def _redis() -> _Driver:
    from oncegate.stores.redis import RedisStore, open_redis, settings_of

    return _Driver(open_redis, settings_of, RedisStore)


def _dynamodb() -> _Driver:
    from oncegate.stores.dynamodb import DynamoStore, open_dynamodb, read_url

    return _Driver(open_dynamodb, read_url, DynamoStore)


# A driver is imported when its scheme is first used: a process does not load stores that it does not use.
_DRIVERS: Final[dict[str, Callable[[], _Driver]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "redis": _redis,
    "rediss": _redis,
    "redis+cluster": _redis,
    "rediss+cluster": _redis,
    "dynamodb": _dynamodb,
}


def open_store(url: str, *, create: bool = True, clock: Clock | None = None) -> Store:
    """Open the store at a URL: `memory://`, `sqlite:///path`, `redis://host`, `redis+cluster://host`,
    `postgresql://host/database` or `dynamodb://Table?region=`.

    With `create=False`, a store that does not exist is not created: `open_store` raises StoreRefused. A mistyped URL
    then creates nothing. `clock` replaces the store's clock in tests; it returns microseconds since 1970.
    """
    return _DRIVERS[scheme_of(url)]().open(url, create=create, clock=clock)


def open_read_only(url: str) -> Store:
    """Open an existing store for reading. For a store in a file, this needs no write permission and waits for no
    lock."""
    if scheme_of(url) == "sqlite":
        from oncegate.stores.sqlite import open_sqlite_read_only

        return open_sqlite_read_only(url)
    return open_store(url, create=False)


def check_url(url: str) -> None:
    """Raise SettingError if the URL is invalid. The store is not opened."""
    _DRIVERS[scheme_of(url)]().check(url)


def keeps_events(url: str) -> bool:
    """Return whether the store of a URL still has its admitted events after this process has ended."""
    return scheme_of(url) != "memory" and issubclass(store_class(url), Inbox)


def store_class(url: str) -> type[Any]:
    """Return the class of the store of a URL."""
    return _DRIVERS[scheme_of(url)]().kind


def scheme_of(url: str) -> str:
    """Return the scheme of a store URL. Raises SettingError if no store has this scheme."""
    if not isinstance(url, str):
        raise SettingError(f"the store must be a URL such as sqlite:///oncegate.db, not {type(url).__name__}")
    scheme, separator, _ = url.partition("://")
    if scheme not in _DRIVERS or not separator:
        known = ", ".join(_DRIVERS)
        named = f"unknown store scheme {scheme!r}" if separator else f"{quoted(url)} is not a store URL"
        raise SettingError(f"{named}; use one of: {known}, as in sqlite:///oncegate.db")
    return scheme
