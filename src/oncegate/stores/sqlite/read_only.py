"""Looking: an SQLite store that is only read, by people who may have no right to write it."""

import os
import sqlite3
import threading
import time
from typing import Final

from oncegate.errors import StoreRefused
from oncegate.stores.sqlite.connection import MIGRATIONS, check_ours, connected
from oncegate.stores.sqlite.handler_connection import StoreConnection
from oncegate.stores.sqlite.store import SqliteStore

_LOG: Final = "-wal"
_STEPS: Final = 1_000


class ReadOnlySqliteStore(SqliteStore):
    """Nothing is written, and no write lock is waited for: readers of a write-ahead log need none."""

    _watched = 1  # what is only read may have no log, and nothing is lost with it

    def _open(self) -> StoreConnection:
        return connected(self._path, _how(self._path), self._busy_timeout, self._prepare)

    def _prepare(self, db: StoreConnection) -> None:
        db.execute("PRAGMA query_only = ON")
        _check_known(db, self._path)

    def damage(self, seconds: float) -> str | None:
        """The first thing that SQLite's own check finds wrong, None for a sound file; TimeoutError if that takes
        longer. Newer versions ask the progress handler all the time, older ones only look whether they were
        interrupted while they go through a table."""
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
    """Whether there is no store yet at a place. An empty file is none either."""
    try:
        return os.stat(path).st_size == 0 and not os.path.exists(path + _LOG)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        raise StoreRefused(f"{path} cannot be looked at: {error.strerror}; ask as somebody who may read it") from error


def refuse_absent(path: str) -> None:
    if is_absent(path):
        raise StoreRefused(f"there is no store at {path}; name the right one, such as sqlite:///path/to/oncegate.db")


def _how(path: str) -> str:
    """Whoever may write opens the file as ever, which has the log put away at the end. Who may not cannot make the
    files of the log, or would leave some that its owner cannot use; and without a log, all is in the file itself."""
    if _may_write(path) and _may_write(os.path.dirname(path) or "."):
        return "mode=rw"
    return "mode=ro" if os.path.exists(path + _LOG) else "mode=ro&immutable=1"


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _check_known(db: sqlite3.Connection, path: str) -> None:
    version = check_ours(db, path)
    if version < len(MIGRATIONS):
        raise StoreRefused(
            f"{path} was written by an older Oncegate (schema {version}, this one reads {len(MIGRATIONS)}); a gate or"
            " the service brings it up to date when it opens it"
        )
