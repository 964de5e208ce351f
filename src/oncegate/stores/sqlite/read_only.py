"""Open an SQLite store for reading only. This needs no permission to write the file."""

import os
import sqlite3
import threading
import time
from typing import Final

from oncegate.errors import StoreRefused
from oncegate.stores.sqlite.connection import MIGRATIONS, connect, read_version
from oncegate.stores.sqlite.handler_connection import StoreConnection
from oncegate.stores.sqlite.store import SqliteStore

_LOG: Final = "-wal"
_STEPS: Final = 1_000


class ReadOnlySqliteStore(SqliteStore):
    """An SQLite store that only reads. It never waits for the write lock: readers of a write-ahead log do not need
    it."""

    _checked_files = 1  # the database file only: a reader may have no log, and loses no data if the log is removed

    def _open(self) -> StoreConnection:
        return connect(self._path, read_mode(self._path), self._busy_timeout, self._prepare)

    def _prepare(self, db: StoreConnection) -> None:
        db.execute("PRAGMA query_only = ON")
        _check_version(db, self._path)

    def damage(self, seconds: float) -> str | None:
        """Return the first error that `PRAGMA quick_check` finds, or None if the file is not damaged. Raises
        TimeoutError after `seconds`.

        Both a progress handler and an interrupt stop the check at the time limit. Newer SQLite versions call the
        progress handler during the check. Older versions do not: they only test for an interrupt while they read a
        table."""
        deadline = time.monotonic() + seconds

        def check(db: StoreConnection, _now: int) -> str:
            interrupt = threading.Timer(seconds, db.interrupt)
            interrupt.start()
            db.set_progress_handler(lambda: time.monotonic() >= deadline, _STEPS)
            try:
                return str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    raise TimeoutError from error
                raise
            finally:
                interrupt.cancel()
                db.set_progress_handler(None, 1)

        found = self._read(check)
        return None if found == "ok" else " ".join(found.replace("*** in database main ***", "").split())


def is_absent(path: str) -> bool:
    """Return whether there is no store at the path. An empty file without a log counts as no store. Raises StoreRefused
    if the path cannot be read."""
    try:
        return os.stat(path).st_size == 0 and not os.path.exists(path + _LOG)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        raise StoreRefused(f"{path} cannot be read: {error.strerror}; run as a user who may read it") from error


def check_exists(path: str) -> None:
    if is_absent(path):
        raise StoreRefused(
            f"there is no store at {path}; give the URL of an existing store, such as sqlite:///path/to/oncegate.db"
        )


def read_mode(path: str) -> str:
    """Return the options with which SQLite opens the file.

    A process that may write the file and its folder opens the file with `mode=rw`, so that SQLite removes the log when
    the process closes the file. A process without these permissions opens the file with `mode=ro`. It cannot create the
    log files, or would leave log files that the owner of the store cannot use. So if there is no log, SQLite opens the
    file as `immutable`, which needs no log files. The database file then holds all data and cannot change."""
    if _may_write(path) and _may_write(os.path.dirname(path) or "."):
        return "mode=rw"
    return "mode=ro" if os.path.exists(path + _LOG) else "mode=ro&immutable=1"


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _check_version(db: sqlite3.Connection, path: str) -> None:
    version = read_version(db, path)
    if version < len(MIGRATIONS):
        raise StoreRefused(
            f"{path} was written by an older Oncegate (schema {version}; this version reads {len(MIGRATIONS)}); open it"
            " once with a gate or the service to migrate it"
        )
