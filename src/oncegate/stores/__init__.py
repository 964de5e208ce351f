"""Stores: where claims are kept. `open_store` finds the one that a URL names."""

from importlib import import_module

from oncegate.clocks import Clock
from oncegate.errors import SettingError
from oncegate.stores.base import Store

# scheme → module and function that opens it; loaded when asked for, so that nobody pays for another's store.
_OPENERS = {
    "memory": ("oncegate.stores.memory", "open_memory"),
    "sqlite": ("oncegate.stores.sqlite", "open_sqlite"),
    "postgresql": ("oncegate.stores.postgres", "open_postgres"),
    "postgres": ("oncegate.stores.postgres", "open_postgres"),
    "redis": ("oncegate.stores.redis", "open_redis"),
    "rediss": ("oncegate.stores.redis", "open_redis"),
    "redis+cluster": ("oncegate.stores.redis", "open_redis"),
    "rediss+cluster": ("oncegate.stores.redis", "open_redis"),
    "dynamodb": ("oncegate.stores.dynamodb", "open_dynamodb"),
}


def open_store(url: str, *, create: bool = True, clock: Clock | None = None) -> Store:
    """Open the store at a URL: `memory://`, `sqlite:///path`, `redis://host`, `redis+cluster://host`,
    `postgresql://host/database` or `dynamodb://Table?region=`.

    `create=False` refuses a place where there is none yet, for people who look at one and may have mistyped.
    `clock` replaces the store's own time (microseconds since 1970). It is meant for tests.
    """
    module, opener = _OPENERS[scheme_of(url)]
    store: Store = getattr(import_module(module), opener)(url, create=create, clock=clock)
    return store


def scheme_of(url: str) -> str:
    """The scheme of a URL, if it is one that a store speaks."""
    if not isinstance(url, str):
        raise SettingError(f"a store is named by a URL such as sqlite:///oncegate.db, not by {url!r}")
    scheme, _, _ = url.partition("://")
    if scheme not in _OPENERS:
        known = " or ".join(f"{name}://" for name in _OPENERS)
        raise SettingError(f"no store speaks {scheme!r}; a store URL starts with {known}")
    return scheme
