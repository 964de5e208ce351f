"""Open and watch the SQLite file: schema, error messages, waits for the file lock, checkpoints of the log."""

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
FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)  # UnicodeDecodeError: damaged text in a message of SQLite
_OLDEST: Final = (3, 37, 0)  # the first version with STRICT tables
_CHECKPOINT_PAGES: Final = 8_000
_OWNER_ONLY: Final = 0o600
_ABSENT: Final = (-1, -1)
_create_lock = threading.Lock()
_create_lock_over_forks = forks.holding(_create_lock)


# ── open the file ─────────────────────────────────────────────────────────────────────────────────────────


def open_file(path: str, synchronous: str, busy_timeout: int, *, secure_delete: bool = False) -> StoreConnection:
    """Open the file to write, create it if there is none, and migrate an older schema. `busy_timeout` is in
    microseconds."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old; install 3.37 or newer")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise StoreRefused(f"the folder {folder} for the store {path} does not exist; create it first")
    deadline = time.monotonic() + busy_timeout / 1e6

    def prepare(db: StoreConnection) -> None:
        if secure_delete:
            db.execute("PRAGMA secure_delete = ON")
        _prepare(db, path, synchronous, deadline)

    _create_file(path)
    return connect(path, "mode=rw", busy_timeout, prepare)


def _create_file(path: str) -> None:
    """Create the file if there is none, readable and writable by its owner only, whatever the umask. SQLite gives the
    -wal and -shm files the mode of the database file. An existing file keeps its mode.

    Errors are ignored here: SQLite then finds no file and reports why. The lock: closing any descriptor of a file drops
    all locks of this process on that file, so no other thread may open the file before this descriptor is closed."""
    with _create_lock, suppress(OSError):
        descriptor = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        try:
            os.fchmod(descriptor, _OWNER_ONLY)
        finally:
            os.close(descriptor)


def connect(path: str, mode: str, busy_timeout: int, prepare: Callable[[StoreConnection], None]) -> StoreConnection:
    """Return a prepared connection. If `prepare` raises, the connection is closed."""
    if os.path.isdir(path):
        raise StoreRefused(f"{path} is a folder; name a file for the store")
    try:
        db = sqlite3.connect(
            _file_uri(path, mode),
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
        raise as_store_error(error, path) from error
    return db


def _file_uri(path: str, mode: str) -> str:
    """Return the URI of a file for SQLite. Its host part is empty: without it, SQLite would read a host name from a
    path that begins with two slashes."""
    return f"file://{quote(os.path.abspath(path))}?{mode}"


def _prepare(db: sqlite3.Connection, path: str, synchronous: str, deadline: float) -> None:
    with _transaction(db, "BEGIN"):  # without one, another process could create the schema between two statements
        read_version(db, path)
    while (mode := _try_wal(db)) is None:
        # SQLite does not wait by itself when two processes switch a new file to WAL at the same time.
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"the store {path} is locked by another process; try again")
        time.sleep(0.01)
    if mode != "wal":
        raise StoreRefused(f"the store {path} cannot use a write-ahead log here; put it on a local disk")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    with _transaction(db, "BEGIN IMMEDIATE"):
        _migrate(db, path)


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
    """Switch the file to WAL and return the new journal mode; None while another process has the file locked."""
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError as error:
        if _is_busy(error):
            return None
        raise
    return str(mode)


def _migrate(db: sqlite3.Connection, path: str) -> None:
    version = read_version(db, path)
    for migration in MIGRATIONS[version:]:
        for statement in migration.split(";\n"):
            db.execute(statement)
    if version < len(MIGRATIONS):
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def read_version(db: sqlite3.Connection, path: str) -> int:
    """Return the schema version of the file, 0 for an empty file. Raises StoreRefused for the file of another program
    and for a newer schema."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or application or version):
        raise StoreRefused(f"{path} is another program's SQLite file; name a different file for Oncegate")
    if version > len(MIGRATIONS):
        raise StoreRefused(
            f"{path} was written by a newer Oncegate (schema {version}; this version supports up to"
            f" {len(MIGRATIONS)}); upgrade Oncegate"
        )
    return int(version)


def set_busy_timeout(db: sqlite3.Connection, seconds: float) -> None:
    """Set how long SQLite itself waits for a locked file."""
    db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────


def _code(error: Exception) -> int:
    """Return the primary result code. The extended code adds details that change no remedy."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_busy(error: Exception) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_disk_error(error: Exception) -> bool:
    return _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def damaged(path: str, details: object) -> StoreRefused:
    return StoreRefused(
        f"{path} is damaged ({details}); restore it from a backup, or move it away to start with an empty store"
    )


def as_store_error(error: Exception, path: str) -> StoreError:
    """Return the StoreError for an error of SQLite, with its remedy."""
    # Python raises this error itself, without a code. Its text would show stored data.
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
        return damaged(path, "a text is not UTF-8")
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return StoreReadOnly(f"the disk that holds {path} is full; nothing was written: free some space")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(f"another process held {path} locked for too long; nothing was written")
        case sqlite3.SQLITE_IOERR:
            return StoreUnavailable(f"reading or writing {path} failed ({error}); check the disk")
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


# ── files that are removed or replaced while open ─────────────────────────────────────────────────────────


class OpenFiles:
    """The database file, its log (-wal) and the index of the log (-shm), as they were when a connection opened them.

    Commits to a removed log are lost when the process ends. After one of the files was replaced, two processes no
    longer see each other's writes or locks."""

    def __init__(self, file: str) -> None:
        self._names = (file, f"{file}-wal", f"{file}-shm")
        self._identities = tuple(map(_identity, self._names))
        self._known = tuple((name, *identity) for name, identity in zip(self._names, self._identities, strict=True))

    def find_replaced(self, count: int) -> str | None:
        """Return the first of the first `count` files that was removed or replaced. A commit needs the first two."""
        name = ""
        try:
            for name, device, inode in self._known[:count]:
                status = os.stat(name)
                if status.st_ino != inode or status.st_dev != device:
                    return name
        except OSError:
            return name
        return None

    def can_copy_log(self) -> bool:
        """Whether this process can still copy its removed log into the database file: no other process has written to
        a new log."""
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
    """Return device and inode, which differ for another file of the same name."""
    try:
        status = os.stat(file)
    except OSError:
        return _ABSENT
    return status.st_dev, status.st_ino


# ── waits for the file lock ───────────────────────────────────────────────────────────────────────────────

BUSY_SLICE: Final = 0.02
_PAUSE: Final = 0.005
_WRITE_PROOF_SECONDS: Final = 3.0
_DISK_ERROR_SECONDS: Final = 10.0


class LockTimeout(Exception):
    """Another process has the file locked: pause and try again."""


class ConnectionInUse(Exception):
    """Another thread of this process used the connection for the whole wait."""


class BoundedLock:
    """Acquires a lock within a number of seconds, or raises ConnectionInUse. For probes only: an interrupt between the
    acquisition and the return of `__enter__` would leave the lock acquired. `with lock:` has no such gap."""

    def __init__(self, lock: threading.Lock, seconds: float) -> None:
        self._lock = lock
        self._seconds = seconds

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._seconds):
            raise ConnectionInUse

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


class _QueuedSince(threading.local):
    """When the current call of this thread was queued; None if it was not."""

    time: float | None = None


class LockWaiter:
    """Waits of the threads of one process for the file lock.

    SQLite can wait by itself, but then it keeps the connection: a second thread would wait until the first gives up,
    and would only then start its own wait. So SQLite waits for `BUSY_SLICE` seconds at a time, and other threads use
    the connection in between."""

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout / 1e6
        self._queued_since = _QueuedSince()
        self._timed_out_at = self._written_at = self._disk_error_at = -inf

    @contextmanager
    def waited(self, seconds: float) -> Iterator[None]:
        """Calls of this thread inside the context have already waited that long in a queue."""
        self._queued_since.time = time.monotonic() - seconds
        try:
            yield
        finally:
            self._queued_since.time = None

    def deadline(self) -> float:
        """Return when a wait that starts now ends: after the timeout, counted from now, or from when the call was
        queued if another wait has timed out since."""
        since = self._queued_since.time
        return self.timeout + (time.monotonic() if since is None or self._timed_out_at < since else since)

    def note_timeout(self) -> None:
        self._timed_out_at = time.monotonic()

    def note_write(self) -> None:
        self._written_at = time.monotonic()

    def note_disk_error(self) -> None:
        self._disk_error_at = time.monotonic()

    @property
    def has_recent_write(self) -> bool:
        return time.monotonic() - self._written_at < _WRITE_PROOF_SECONDS

    @property
    def has_recent_disk_error(self) -> bool:
        """Whether the disk was full or failed in the last seconds. A write since then proves nothing: a small write can
        fit where a large one does not."""
        return time.monotonic() - self._disk_error_at < _DISK_ERROR_SECONDS


class LockAttempt:
    """One call's wait for the file lock, for at most `limit` seconds from its first failed try."""

    __slots__ = ("_deadline", "_limit", "_waiter")

    def __init__(self, waiter: LockWaiter, limit: float = inf) -> None:
        self._waiter = waiter
        self._limit = limit
        self._deadline: float | None = None

    def execute(self, db: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        """Execute a statement that needs the file lock. Raises LockTimeout if the file is locked and time is left, and
        SQLite's error after the deadline."""
        try:
            return db.execute(statement)
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            if self._deadline is None:
                self._deadline = min(self._waiter.deadline(), time.monotonic() + self._limit) - BUSY_SLICE
            if time.monotonic() >= self._deadline:
                self._waiter.note_timeout()
                raise
            raise LockTimeout from error

    def pause(self) -> None:
        """Let other threads acquire the connection. Without a pause, the thread that releases a lock and acquires it at
        once wins over threads that wait for it."""
        time.sleep(_PAUSE)


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────

_CHECKPOINT_ROWS: Final = 512


class Checkpointer:
    """Copies the write-ahead log into the database file from another connection, beside the writer.

    Without it, SQLite copies the log inside the commit that makes the log too long, and every caller of that batch
    waits. This connection copies earlier and blocks no writer, so little is left for the commit after which SQLite
    restarts the log.

    The store calls `note_rows` with the lock of its connection held. It uses `start_new_thread` because
    `threading.Thread.start` waits until the new thread runs, and an interrupt inside `start` leaves a thread that
    `threading` lists forever."""

    def __init__(self, file: str, synchronous: str) -> None:
        self._uri = _file_uri(file, "mode=rw")  # not rwc: a removed file must not be created again
        self._synchronous = synchronous
        self._copied_rows = 0
        self._stopped = False
        self._copying = threading.Lock()

    def note_rows(self, total: int) -> None:
        """Start a checkpoint if the connection has written enough rows since the last one. `total` counts all rows
        that the connection has written; a new connection starts at 0."""
        self._stopped = False
        self._copied_rows = min(self._copied_rows, total)
        if total - self._copied_rows >= _CHECKPOINT_ROWS:
            self._copied_rows = total
            start_new_thread(self._copy, ())

    def stop(self) -> None:
        """Wait for a running checkpoint and start none until more rows are written. No connection may be open during a
        fork, and the file of a closed store can be removed."""
        self._stopped = True
        with self._copying:
            """A running checkpoint has ended, and a later one sees `_stopped`."""

    def _copy(self) -> None:
        """Make a checkpoint, unless one is running: a later commit starts the next."""
        if not self._copying.acquire(blocking=False):
            return
        try:
            if not self._stopped:
                self._checkpoint()
        finally:
            self._copying.release()

    def _checkpoint(self) -> None:
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._uri, uri=True, timeout=0)) as db:
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
