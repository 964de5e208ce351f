"""The file: opening it, checking that it is ours, bringing its schema up to date, and what its errors mean."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote

from oncegate import forks
from oncegate.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable
from oncegate.stores.sqlite.lending import OwnConnection
from oncegate.stores.sqlite.rows import SQL

APPLICATION_ID: Final = 0x4F4E4345  # "ONCE"
MIGRATIONS: Final = [statements for name, statements in SQL.items() if name.startswith("schema ")]
_OLDEST: Final = (3, 37, 0)  # STRICT tables
FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)  # the latter: text of SQLite's that is damaged
_CHECKPOINT_PAGES: Final = 8_000
_PRIVATE: Final = 0o600
_ABSENT: Final = (-1, -1)
_creating = threading.Lock()
_creating_over_forks = forks.holding(_creating)


def opened(path: str, synchronous: str, busy_timeout: int, *, secure_delete: bool = False) -> OwnConnection:
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise StoreRefused(f"the folder {folder} for the store {path} does not exist; create it first")
    deadline = time.monotonic() + busy_timeout / 1e6

    def prepare(db: OwnConnection) -> None:
        if secure_delete:
            db.execute("PRAGMA secure_delete = ON")
        _prepare(db, path, synchronous, deadline)

    _create_private(path)
    return connected(path, "mode=rw", busy_timeout, prepare)


def _create_private(path: str) -> None:
    """Create the file if there is none, readable and writable by its owner only, whatever the umask. SQLite gives its
    -wal and -shm files the mode of the database file. An existing file keeps its mode.

    What fails here is reported by SQLite, which then finds no file to open. The lock: to close any descriptor of a file
    drops all locks that this process has on it, so no other thread may open the file before this one is closed."""
    with _creating, suppress(OSError):
        descriptor = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, _PRIVATE)
        try:
            os.fchmod(descriptor, _PRIVATE)
        finally:
            os.close(descriptor)


class OpenFiles:
    """The database file, its log (-wal) and its index of the log (-shm), as they were when a connection opened them.

    What is committed to a log that has no name any more is lost with the process; after another file has taken the name
    of one of them, two processes no longer see each other's writes or locks."""

    def __init__(self, file: str) -> None:
        self._names = (file, f"{file}-wal", f"{file}-shm")
        self._identities = tuple(map(_identity, self._names))
        self._known = tuple((name, *identity) for name, identity in zip(self._names, self._identities, strict=True))

    def moved(self, count: int) -> str | None:
        """The first of so many of these files that was removed or replaced. A commit needs the first two of them."""
        name = ""
        try:
            for name, device, inode in self._known[:count]:
                status = os.stat(name)
                if status.st_ino != inode or status.st_dev != device:
                    return name
        except OSError:
            return name
        return None

    def only_log_removed(self) -> bool:
        """Whether this process can still copy its log into the database file: nobody has written to a new log."""
        file, log, index = self._names
        if _identity(file) != self._identities[0] or _identity(index) not in (_ABSENT, self._identities[2]):
            return False
        try:
            return os.stat(log).st_size == 0
        except FileNotFoundError:
            return True
        except OSError:
            return False


def _identity(file: str) -> tuple[int, int]:
    """What another file of the same name would not have."""
    try:
        status = os.stat(file)
    except OSError:
        return _ABSENT
    return status.st_dev, status.st_ino


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
    except FAILURES as error:
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


def _code(error: Exception) -> int:
    """The primary result code; the extended one says which kind of it, which no remedy depends on."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: Exception) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_of_the_disk(error: Exception) -> bool:
    return _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def damaged(path: str, found: object) -> StoreRefused:
    return StoreRefused(f"{path} is damaged ({found}); restore it from a backup, or move it away to start anew")


def explained(error: Exception, path: str) -> StoreError:
    # Python's own words, which would show what is stored; its error has no code.
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
        return damaged(path, "a text is not UTF-8")
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
            return damaged(path, error)
        case _:
            return StoreError(f"SQLite could not use {path}: {error}")
