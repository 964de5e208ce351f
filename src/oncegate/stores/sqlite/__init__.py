"""The SQLite store and its URL."""

from oncegate.clocks import Clock
from oncegate.stores.sqlite.read_only import ReadOnlySqliteStore, refuse_absent
from oncegate.stores.sqlite.settings import read_url
from oncegate.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "open_sqlite", "open_sqlite_read_only", "read_url"]


def open_sqlite(url: str, *, create: bool, clock: Clock | None) -> SqliteStore:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`; options `synchronous`, `busy_timeout`, `secure_delete`."""
    settings = read_url(url)
    if not create:
        refuse_absent(settings.path)
    return SqliteStore(
        settings.path,
        synchronous=settings.synchronous,
        busy_timeout=settings.busy_timeout,
        secure_delete=settings.secure_delete,
        clock=clock,
    )


def open_sqlite_read_only(url: str) -> ReadOnlySqliteStore:
    """The store that is there, for those who only read it."""
    settings = read_url(url)
    refuse_absent(settings.path)
    return ReadOnlySqliteStore(settings.path, busy_timeout=settings.busy_timeout)
