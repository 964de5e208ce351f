"""Stores: where claims are kept. `open_store` finds the one that a URL names."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from oncegate.clocks import Clock
from oncegate.errors import SettingError
from oncegate.stores.base import Inbox, Store
from oncegate.text import quoted


class _Driver(Struct, frozen=True):
    """What a store package offers: how to open a URL, how to check one without opening it, and the store's class."""

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


# A driver is imported when its scheme is first used, so that no process pays for a store it does not use.
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

    `create=False` refuses a place where there is none yet, for people who look at one and may have mistyped.
    `clock` replaces the store's own time (microseconds since 1970). It is meant for tests.
    """
    return _DRIVERS[scheme_of(url)]().open(url, create=create, clock=clock)


def look_at_store(url: str) -> Store:
    """The store at a URL, if there is one, for those who only read it: one in a file needs no right to write it then,
    and nobody is waited for."""
    if scheme_of(url) == "sqlite":
        from oncegate.stores.sqlite import look_at_sqlite

        return look_at_sqlite(url)
    return open_store(url, create=False)


def check_url(url: str) -> None:
    """Refuse what `open_store` would refuse for the URL alone; nothing is opened."""
    _DRIVERS[scheme_of(url)]().check(url)


def keeps_events(url: str) -> bool:
    """Whether the store at a URL stores events until they are run, also when this process ends."""
    return scheme_of(url) != "memory" and issubclass(store_class(url), Inbox)


def store_class(url: str) -> type[Any]:
    """The class of the store at a URL."""
    return _DRIVERS[scheme_of(url)]().kind


def scheme_of(url: str) -> str:
    """The scheme of a URL, if it is one that a store speaks."""
    if not isinstance(url, str):
        raise SettingError(f"a store is named by a URL such as sqlite:///oncegate.db, not by {type(url).__name__}")
    scheme, separator, _ = url.partition("://")
    if scheme not in _DRIVERS or not separator:
        known = ", ".join(_DRIVERS)
        named = f"unknown store scheme {scheme!r}" if separator else f"{quoted(url)} is not a store URL"
        raise SettingError(f"{named}; use one of: {known}, as in sqlite:///oncegate.db")
    return scheme
