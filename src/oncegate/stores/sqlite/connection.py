"""The file: opening it, checking that it is ours, bringing its schema up to date, and what its errors mean."""

import os
import sqlite3
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from math import inf
from typing import Final
from urllib.parse import quote

from oncegate import forks
from oncegate.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable
from oncegate.stores.sqlite.handler_connection import StoreConnection
from oncegate.stores.sqlite.queries import SQL

APPLICATION_ID: Final = 0x4F4E4345  # "ONCE"
MIGRATIONS: Final = [statements for name, statements in SQL.items() if name.startswith("schema ")]
_OLDEST: Final = (3, 37, 0)  # STRICT tables
FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)  # the latter: text of SQLite's that is damaged
_CHECKPOINT_PAGES: Final = 8_000
_PRIVATE: Final = 0o600
_ABSENT: Final = (-1, -1)
_creating = threading.Lock()
_creating_over_forks = forks.holding(_creating)


def opened(path: str, synchronous: str, busy_timeout: int, *, secure_delete: bool = False) -> StoreConnection:
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise StoreRefused(f"the folder {folder} for the store {path} does not exist; create it first")
    deadline = time.monotonic() + busy_timeout / 1e6

    def prepare(db: StoreConnection) -> None:
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


def connected(path: str, how: str, busy_timeout: int, prepare: Callable[[StoreConnection], None]) -> StoreConnection:
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
            factory=StoreConnection,
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


# Turns: how the threads of a process wait together while another process keeps them out of the file.


SLICE: Final = 0.02
_BETWEEN: Final = 0.005
_PROOF_FOR: Final = 3.0
_TROUBLE_FOR: Final = 10.0


class LockTimeout(Exception):
    """Another process has the file: try again, after a pause."""


class _Waiting(threading.local):
    """Since when what this thread asks for has been waited for; None: since it asks."""

    since: float | None = None


class LockWaiter:
    """What the threads of a process know of each other's waits for the file.

    SQLite waits by itself, but then with the connection in its hands: a second thread would wait until the first gives
    up, and only then begin to wait. So SQLite waits for a slice, and in between others have the connection."""

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout / 1e6
        self._asked = _Waiting()
        self._kept_out_at = self._written_at = self._troubled_at = -inf

    @contextmanager
    def waited(self, seconds: float) -> Iterator[None]:
        """What this thread asks for in here has waited that long before."""
        self._asked.since = time.monotonic() - seconds
        try:
            yield
        finally:
            self._asked.since = None

    def deadline(self) -> float:
        """Until when to wait: a timeout from now, or from when it was asked for if another waited in vain since."""
        since = self._asked.since
        return self.timeout + (time.monotonic() if since is None or self._kept_out_at < since else since)

    def kept_out(self) -> None:
        """Somebody has waited in vain."""
        self._kept_out_at = time.monotonic()

    def written(self) -> None:
        self._written_at = time.monotonic()

    def troubled(self) -> None:
        """The disk was full, or failed."""
        self._troubled_at = time.monotonic()

    @property
    def has_written(self) -> bool:
        """Whether something was written just now."""
        return time.monotonic() - self._written_at < _PROOF_FOR

    @property
    def in_trouble(self) -> bool:
        """Whether the disk was full or failed not long ago. What is small may find room when what is large does not, so
        what was written since proves nothing."""
        return time.monotonic() - self._troubled_at < _TROUBLE_FOR


class LockAttempt:
    """One thread's wait, from the first time that it is kept out, for at most so many seconds."""

    __slots__ = ("_deadline", "_most", "_turns")

    def __init__(self, turns: LockWaiter, most: float = inf) -> None:
        self._turns = turns
        self._most = most
        self._deadline: float | None = None

    def begin(self, db: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        """Do what others can keep this thread out of; `KeptOut` for as long as its wait is not over."""
        try:
            return db.execute(statement)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if self._deadline is None:
                self._deadline = min(self._turns.deadline(), time.monotonic() + self._most) - SLICE
            if time.monotonic() >= self._deadline:
                self._turns.kept_out()
                raise
            raise LockTimeout from error

    def pause(self) -> None:
        """Let others have the connection; whoever lets a lock go and takes it at once gets it."""
        time.sleep(_BETWEEN)


# Checkpoints: what is in the write-ahead log goes into the file beside the writer, not in one of its commits.


_ROWS: Final = 512


class Checkpoints:
    """SQLite copies the log into the file in the commit with which it has become long, and all who share that write
    wait for it. So it is copied sooner, by another connection, which keeps no writer waiting; what is left for the
    commit, after which the log begins anew, is little then.

    It is told of every commit by whoever has the lock of the store's own connection. An exception that a signal raises
    can strike there at any instruction, and `threading.Thread` does not start its threads in one."""

    def __init__(self, file: str, synchronous: str) -> None:
        self._address = address(file, "mode=rw")  # one that was removed must not come back
        self._synchronous = synchronous
        self._copied = 0
        self._ended = False
        self._at_it = threading.Lock()

    def written(self, rows: int) -> None:
        """So many rows have been written in all, with the connection as it is; a new one counts anew."""
        self._ended = False
        self._copied = min(self._copied, rows)
        if rows - self._copied >= _ROWS:
            self._copied = rows
            start_new_thread(self._copy, ())

    def end(self) -> None:
        """Nothing is copied any more, until more is written: a connection must not be open when the process forks, and
        a file that was closed can be removed."""
        self._ended = True
        with self._at_it:
            """Whoever was at it has come to its end, and whoever comes now sees that it is over."""

    def _copy(self) -> None:
        """What cannot be copied now is copied with a later commit."""
        if not self._at_it.acquire(blocking=False):
            return
        try:
            if not self._ended:
                self._copy_all()
        finally:
            self._at_it.release()

    def _copy_all(self) -> None:
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._address, uri=True, timeout=0)) as db:
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
