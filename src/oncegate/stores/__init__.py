"""Stores: where claims are kept. `open_store` finds the one that a URL names."""

from importlib import import_module
from typing import Any

from oncegate.clocks import Clock
from oncegate.errors import SettingError
from oncegate.stores.base import Inbox, Store
from oncegate.text import quoted

# scheme → module, and there what opens the store, what reads its URL, and its class; loaded when asked for, so that
# nobody pays for another's store.
_SQLITE = ("oncegate.stores.sqlite", "open_sqlite", "read_url", "SqliteStore")
_POSTGRES = ("oncegate.stores.postgres", "open_postgres", "read_url", "PostgresStore")
_REDIS = ("oncegate.stores.redis", "open_redis", "settings_of", "RedisStore")
_STORES = {
    "memory": ("oncegate.stores.memory", "open_memory", "check_memory", "MemoryStore"),
    "sqlite": _SQLITE,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "dynamodb": ("oncegate.stores.dynamodb", "open_dynamodb", "read_url", "DynamoStore"),
}


def open_store(url: str, *, create: bool = True, clock: Clock | None = None) -> Store:
    """Open the store at a URL: `memory://`, `sqlite:///path`, `redis://host`, `redis+cluster://host`,
    `postgresql://host/database` or `dynamodb://Table?region=`.

    `create=False` refuses a place where there is none yet, for people who look at one and may have mistyped.
    `clock` replaces the store's own time (microseconds since 1970). It is meant for tests.
    """
    module, opener, _, _ = _STORES[scheme_of(url)]
    store: Store = getattr(import_module(module), opener)(url, create=create, clock=clock)
    return store


def look_at_store(url: str) -> Store:
    """The store at a URL, if there is one, for those who only read it: one in a file needs no right to write it then,
    and nobody is waited for."""
    if scheme_of(url) == "sqlite":
        looked_at: Store = import_module(_SQLITE[0]).look_at_sqlite(url)
        return looked_at
    return open_store(url, create=False)


def check_url(url: str) -> None:
    """Refuse what `open_store` would refuse for the URL alone; nothing is opened."""
    module, _, reader, _ = _STORES[scheme_of(url)]
    getattr(import_module(module), reader)(url)


def keeps_events(url: str) -> bool:
    """Whether the store at a URL keeps events until they are run, also when this process ends."""
    return scheme_of(url) != "memory" and issubclass(store_class(url), Inbox)


def store_class(url: str) -> type[Any]:
    """The class of the store at a URL."""
    module, _, _, kind = _STORES[scheme_of(url)]
    found: type[Any] = getattr(import_module(module), kind)
    return found


def scheme_of(url: str) -> str:
    """The scheme of a URL, if it is one that a store speaks."""
    if not isinstance(url, str):
        raise SettingError(f"a store is named by a URL such as sqlite:///oncegate.db, not by {type(url).__name__}")
    scheme, separator, _ = url.partition("://")
    if scheme not in _STORES or not separator:
        known = " or ".join(f"{name}://" for name in _STORES)
        said = repr(scheme) if separator else quoted(url)
        raise SettingError(f"no store speaks {said}; a store URL starts with {known}")
    return scheme
