"""The SQLite store and its URL."""

import os

from oncegate.clocks import Clock
from oncegate.errors import StoreRefused
from oncegate.stores.sqlite.settings import read_url
from oncegate.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "open_sqlite", "read_url"]


def open_sqlite(url: str, *, create: bool, clock: Clock | None) -> SqliteStore:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`; options `synchronous` and `busy_timeout`."""
    settings = read_url(url)
    if not create and not os.path.exists(settings.path):
        raise StoreRefused(
            f"there is no store at {settings.path}; name the right one, such as sqlite:///path/to/oncegate.db"
        )
    return SqliteStore(settings.path, synchronous=settings.synchronous, busy_timeout=settings.busy_timeout, clock=clock)
