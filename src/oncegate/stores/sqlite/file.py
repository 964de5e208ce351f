"""The file: opening it, checking that it is ours, bringing its schema up to date, and what its errors mean."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from oncegate.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable
from oncegate.stores.sqlite.lending import OwnConnection
from oncegate.stores.sqlite.rows import SQL

APPLICATION_ID: Final = 0x4F4E4345  # "ONCE"
MIGRATIONS: Final = [statements for name, statements in SQL.items() if name.startswith("schema ")]
_OLDEST: Final = (3, 37, 0)  # STRICT tables
_CHECKPOINT_PAGES: Final = 8_000


def opened(path: str, synchronous: str, busy_timeout: int) -> OwnConnection:
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise StoreRefused(f"the folder {folder} for the store {path} does not exist; create it first")
    deadline = time.monotonic() + busy_timeout / 1e6
    return connected(path, "mode=rwc", busy_timeout, lambda db: _prepare(db, path, synchronous, deadline))


def connected(path: str, how: str, busy_timeout: int, prepare: Callable[[OwnConnection], None]) -> OwnConnection:
    """A connection that is prepared, or closed again if that fails."""
    if os.path.isdir(path):
        raise StoreRefused(f"{path} is a folder; name a file for the store")
    try:
        db = sqlite3.connect(
            address(path, how),
            uri=True,
            timeout=busy_timeout / 1e6,
            isolation_level=None,
            check_same_thread=False,
            factory=OwnConnection,
        )
        try:
            prepare(db)
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        raise explained(error, path) from error
    return db


def address(path: str, how: str) -> str:
    """A file for SQLite, and how it may be opened. With the empty name of a host, or it would take one from a path that
    begins with two slashes."""
    return f"file://{quote(os.path.abspath(path))}?{how}"


def _prepare(db: sqlite3.Connection, path: str, synchronous: str, deadline: float) -> None:
    with _transaction(db, "BEGIN"):  # or another process could create the schema between two looks at it
        check_ours(db, path)
    while (mode := _try_wal(db)) is None:
        # SQLite does not wait by itself when two processes turn a new file to WAL at once.
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"the store {path} is locked by another process; try again")
        time.sleep(0.01)
    if mode != "wal":
        raise StoreRefused(f"the store {path} cannot use a write-ahead log here; put it on a local disk")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    with _transaction(db, "BEGIN IMMEDIATE"):
        _migrate(db, path)


def wait_for(db: sqlite3.Connection, seconds: float) -> None:
    """How long SQLite shall wait by itself, from now on, for others who have the file."""
    db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


@contextmanager
def _transaction(db: sqlite3.Connection, begin: str) -> Iterator[None]:
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _try_wal(db: sqlite3.Connection) -> str | None:
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return None
        raise
    return str(mode)


def _migrate(db: sqlite3.Connection, path: str) -> None:
    version = check_ours(db, path)
    for migration in MIGRATIONS[version:]:
        for statement in migration.split(";\n"):
            db.execute(statement)
    if version < len(MIGRATIONS):
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def check_ours(db: sqlite3.Connection, path: str) -> int:
    """The schema version of the file, 0 for an empty one; refuse what is not ours or newer than we are."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or application or version):
        raise StoreRefused(f"{path} is another program's SQLite file; name a file of its own for Oncegate")
    if version > len(MIGRATIONS):
        raise StoreRefused(
            f"{path} was written by a newer Oncegate (schema {version}, this one knows {len(MIGRATIONS)}); upgrade"
        )
    return int(version)


def _code(error: sqlite3.Error) -> int:
    """The primary result code; the extended one says which kind of it, which no remedy depends on."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_of_the_disk(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def explained(error: sqlite3.Error, path: str) -> StoreError:
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return StoreReadOnly(f"the disk that holds {path} is full; nothing was written: make room")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(f"another process held {path} locked for too long; nothing was written")
        case sqlite3.SQLITE_IOERR:
            return StoreUnavailable(f"reading or writing {path} failed ({error}); look at the disk")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StoreRefused(f"{path} is read-only for this process; make the file and its folder writable")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreRefused(f"{path} cannot be opened; check that this process may write the file and its folder")
        case sqlite3.SQLITE_NOTADB:
            return StoreRefused(f"{path} is not an SQLite file; name another file, or move this one away")
        case sqlite3.SQLITE_CORRUPT:
            return StoreRefused(f"{path} is damaged ({error}); restore it from a backup, or move it away to start anew")
        case _:
            return StoreError(f"SQLite could not use {path}: {error}")
