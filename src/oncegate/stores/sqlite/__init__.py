"""The SQLite store and its URL."""

from oncegate.clocks import Clock
from oncegate.stores.sqlite.read_only import ReadOnlySqliteStore, check_exists
from oncegate.stores.sqlite.settings import read_url
from oncegate.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "open_sqlite", "open_sqlite_read_only", "read_url"]


def open_sqlite(url: str, *, create: bool, clock: Clock | None) -> SqliteStore:
    """Open a store for reading and writing. The URL is `sqlite:///relative.db` or `sqlite:////absolute.db`, with the
    options `synchronous`, `busy_timeout` and `secure_delete`."""
    settings = read_url(url)
    if not create:
        check_exists(settings.path)
    return SqliteStore(
        settings.path,
        synchronous=settings.synchronous,
        busy_timeout=settings.busy_timeout,
        secure_delete=settings.secure_delete,
        clock=clock,
    )


def open_sqlite_read_only(url: str) -> ReadOnlySqliteStore:
    """Open an existing store for reading only."""
    settings = read_url(url)
    check_exists(settings.path)
    return ReadOnlySqliteStore(settings.path, busy_timeout=settings.busy_timeout)
