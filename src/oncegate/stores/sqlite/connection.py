"""Open the SQLite file, migrate its schema, detect replaced files, wait for the file lock, and run checkpoints."""

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
FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)  # UnicodeDecodeError: an error message of SQLite has damaged text
_OLDEST: Final = (3, 37, 0)  # the first version with STRICT tables
_CHECKPOINT_PAGES: Final = 8_000
_OWNER_ONLY: Final = 0o600
_ABSENT: Final = (-1, -1)
_create_lock = threading.Lock()
_create_lock_over_forks = forks.holding(_create_lock)


# ── open the file ─────────────────────────────────────────────────────────────────────────────────────────


def check_folder(path: str) -> None:
    """Raise StoreRefused if the folder of the file does not exist."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise StoreRefused(f"the folder {folder} for the store {path} does not exist; create it first")


def open_file(path: str, synchronous: str, busy_timeout: int, *, secure_delete: bool = False) -> StoreConnection:
    """Open the file for writing. Create the file if it does not exist, and migrate an older schema. `busy_timeout` is
    in microseconds."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old; install 3.37 or newer")
    check_folder(path)
    deadline = time.monotonic() + busy_timeout / 1e6

    def prepare(db: StoreConnection) -> None:
        if secure_delete:
            db.execute("PRAGMA secure_delete = ON")
        _prepare(db, path, synchronous, deadline)

    create_file(path)
    return connect(path, "mode=rw", busy_timeout, prepare)


def create_file(path: str) -> None:
    """Create the file if it does not exist. Only its owner can read and write the new file, whatever the umask is.
    SQLite gives the -wal and -shm files the mode of the database file. An existing file keeps its mode.

    Errors are ignored here: SQLite reports them when it cannot open the file. `_create_lock` is needed because closing
    any descriptor of a file releases all locks of this process on that file. So no other thread may open the file
    before this descriptor is closed."""
    with _create_lock, suppress(OSError):
        descriptor = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        try:
            os.fchmod(descriptor, _OWNER_ONLY)
        finally:
            os.close(descriptor)


def connect(path: str, mode: str, busy_timeout: int, prepare: Callable[[StoreConnection], None]) -> StoreConnection:
    """Open a connection, call `prepare` with it, and return it. If `prepare` raises, the connection is closed."""
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
    """Return the URI of a file for SQLite. The URI has an empty host part. Without a host part, SQLite would read the
    first name of a path that begins with two slashes as the host."""
    return f"file://{quote(os.path.abspath(path))}?{mode}"


def _prepare(db: sqlite3.Connection, path: str, synchronous: str, deadline: float) -> None:
    # In one transaction, because another process could create the schema between two statements.
    with transaction(db, "BEGIN"):
        read_version(db, path)
    use_wal(db, path, deadline)
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    with transaction(db, "BEGIN IMMEDIATE"):
        _migrate(db, path)


@contextmanager
def transaction(db: sqlite3.Connection, begin: str) -> Iterator[None]:
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def use_wal(db: sqlite3.Connection, path: str, deadline: float) -> None:
    """Switch the file to WAL. Wait until the deadline if another process has the file locked."""
    while (mode := _try_wal(db)) is None:
        # SQLite does not wait by itself when two processes switch a new file to WAL at the same time.
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"the store {path} is locked by another process; try again")
        time.sleep(0.01)
    if mode != "wal":
        raise StoreRefused(f"the store {path} cannot use a write-ahead log here; put it on a local disk")


def _try_wal(db: sqlite3.Connection) -> str | None:
    """Switch the file to WAL and return the new journal mode. Return None if another process has the file locked."""
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError as error:
        if is_busy(error):
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


def read_version(
    db: sqlite3.Connection, path: str, application_id: int = APPLICATION_ID, known: int | None = None
) -> int:
    """Return the schema version of the file; 0 for an empty file. Raises StoreRefused if the file belongs to another
    program or has a newer schema."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != application_id and (tables or application or version):
        raise StoreRefused(f"{path} is another program's SQLite file; name a different file for Oncegate")
    known = len(MIGRATIONS) if known is None else known
    if version > known:
        raise StoreRefused(
            f"{path} was written by a newer Oncegate (schema {version}; this version supports up to {known}); upgrade"
            " Oncegate"
        )
    return int(version)


@contextmanager
def overwriting(db: sqlite3.Connection) -> Iterator[None]:
    """A context in which SQLite overwrites the data that this connection deletes."""
    (before,) = db.execute("PRAGMA secure_delete").fetchone()
    db.execute("PRAGMA secure_delete = ON")
    try:
        yield
    finally:
        db.execute(f"PRAGMA secure_delete = {('OFF', 'ON', 'FAST')[before]}")


def purge(path: str, *, rewrite: bool, busy_timeout: int) -> bool:
    """Copy the log into the database file and empty the log. With `rewrite`, first rewrite the file without its free
    space. `busy_timeout` is in microseconds. Returns False if another process uses the log for longer than that."""
    try:
        uri = _file_uri(path, "mode=rw")
        with closing(sqlite3.connect(uri, uri=True, timeout=busy_timeout / 1e6, isolation_level=None)) as db:
            if rewrite:
                db.execute("VACUUM")
            (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except FAILURES as error:
        if is_busy(error):
            return False
        raise as_store_error(error, path) from error
    return not busy


def set_busy_timeout(db: sqlite3.Connection, seconds: float) -> None:
    """Set how long SQLite itself waits for a locked file."""
    db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────


def _code(error: Exception) -> int:
    """Return the primary result code of SQLite; 0 if the error has none. The extended code is not used: its details do
    not change what the user has to do."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: Exception) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_full(error: Exception) -> bool:
    return _code(error) == sqlite3.SQLITE_FULL


def is_disk_error(error: Exception) -> bool:
    return _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def damaged(path: str, details: object) -> StoreRefused:
    return StoreRefused(
        f"{path} is damaged ({details}); restore it from a backup, or move it away to start with an empty store"
    )


def as_store_error(error: Exception, path: str) -> StoreError:
    """Return the StoreError for an error of SQLite. The message says what to do."""
    # Python itself raises this error, without a result code. The text of this error would show stored data.
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
    """The database file, its log (-wal) and the index of the log (-shm): device and inode at the time of opening.

    If the log is removed, commits to the removed log are lost when the process ends. If one of the files is replaced,
    processes with the old file and processes with the new file do not see each other's writes or locks."""

    def __init__(self, file: str) -> None:
        self._names = (file, f"{file}-wal", f"{file}-shm")
        self._identities = tuple(map(_identity, self._names))
        self._known = tuple((name, *identity) for name, identity in zip(self._names, self._identities, strict=True))

    def find_replaced(self, count: int) -> str | None:
        """Check the first `count` files. Return the name of the first file that was removed or replaced, or None. A
        commit needs two files: the database file and the log."""
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
        """Return whether this process can still copy its removed log into the database file. This is possible as long
        as the database file and the index were not replaced, and no other process has written to a new log."""
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
    """Return the device and inode of a file. A different file with the same name has a different device or inode."""
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
    """Another process has the file locked. The caller pauses and tries again."""


class ConnectionInUse(Exception):
    """A thread waited for the connection until its time limit, and other threads of this process used the
    connection."""


class BoundedLock:
    """A context that acquires a lock within a number of seconds, or raises ConnectionInUse.

    Use it for probes only. An interrupt after the acquisition, but before `__enter__` returns, would leave the lock
    acquired. `with lock:` does not have this problem."""

    def __init__(self, lock: threading.Lock, seconds: float) -> None:
        self._lock = lock
        self._seconds = seconds

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._seconds):
            raise ConnectionInUse

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


class _QueuedSince(threading.local):
    """The time at which the current call of this thread was queued; None if the call was not queued."""

    time: float | None = None


class LockWaiter:
    """The state that the threads of one process share while they wait for the file lock.

    SQLite can wait for the lock itself, but the thread keeps the connection during this wait. A second thread would
    have to wait until the first thread gives up, and only then could it start to wait for the lock. So SQLite waits for
    only `BUSY_SLICE` seconds at a time, and other threads use the connection between two waits."""

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout / 1e6
        self._queued_since = _QueuedSince()
        self._timed_out_at = self._written_at = self._disk_error_at = -inf

    @contextmanager
    def waited(self, seconds: float) -> Iterator[None]:
        """Count the calls of this thread inside the context as already queued for `seconds`."""
        self._queued_since.time = time.monotonic() - seconds
        try:
            yield
        finally:
            self._queued_since.time = None

    def deadline(self) -> float:
        """Return the time at which a wait that starts now must end. The timeout is counted from now. If another wait
        has timed out since this call was queued, the timeout is counted from the time at which this call was queued."""
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
        """Whether the disk was full or failed in the last `_DISK_ERROR_SECONDS`. A successful write after the error
        proves nothing: a small write can succeed although a large write does not fit on the disk."""
        return time.monotonic() - self._disk_error_at < _DISK_ERROR_SECONDS


class LockAttempt:
    """The wait of one call for the file lock. It ends at most `limit` seconds after the first failed try of the
    call."""

    __slots__ = ("_deadline", "_limit", "_waiter")

    def __init__(self, waiter: LockWaiter, limit: float = inf) -> None:
        self._waiter = waiter
        self._limit = limit
        self._deadline: float | None = None

    def execute(self, db: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
        """Execute a statement that needs the file lock. If the file is locked, raise LockTimeout before the deadline,
        and the error of SQLite after the deadline."""
        try:
            return db.execute(statement)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if self._deadline is None:
                self._deadline = min(self._waiter.deadline(), time.monotonic() + self._limit) - BUSY_SLICE
            if time.monotonic() >= self._deadline:
                self._waiter.note_timeout()
                raise
            raise LockTimeout from error

    def pause(self) -> None:
        """Pause, so that other threads can acquire the connection. Without a pause, this thread would release the lock
        of the connection and acquire it again before a waiting thread gets it."""
        time.sleep(_PAUSE)


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────

_CHECKPOINT_ROWS: Final = 512


class Checkpointer:
    """Copies the write-ahead log into the database file over a second connection, while the store writes.

    Without a checkpointer, SQLite copies the log during the commit that makes the log too long, and every caller of
    this commit waits. The checkpointer copies the log earlier and blocks no writer. So the commit that makes the log
    too long has little left to copy before SQLite restarts the log.

    The store calls `note_rows` while it holds the lock of its connection. `note_rows` uses `start_new_thread`, not
    `threading.Thread.start`: `start` waits until the new thread runs, and an interrupt inside `start` leaves a thread
    that `threading` lists forever."""

    def __init__(self, file: str, synchronous: str) -> None:
        self._uri = _file_uri(file, "mode=rw")  # not rwc: a removed file must not be created again
        self._synchronous = synchronous
        self._copied_rows = 0
        self._stopped = False
        self._copying = threading.Lock()

    def note_rows(self, total: int) -> None:
        """Start a checkpoint if the connection has written `_CHECKPOINT_ROWS` rows since the last checkpoint. `total`
        is the number of all rows that the connection has written; a new connection starts at 0."""
        self._stopped = False
        self._copied_rows = min(self._copied_rows, total)
        if total - self._copied_rows >= _CHECKPOINT_ROWS:
            self._copied_rows = total
            start_new_thread(self._copy, ())

    def stop(self) -> None:
        """Wait until a running checkpoint has ended. No checkpoint starts until `note_rows` is called again. This is
        needed because no connection may be open during a fork, and because the file of a closed store may be
        removed."""
        self._stopped = True
        with self._copying:
            """The running checkpoint has ended. A thread that starts later finds `_stopped` set."""

    def _copy(self) -> None:
        """Run a checkpoint. If another checkpoint is running, do nothing: a later commit starts the next checkpoint."""
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
