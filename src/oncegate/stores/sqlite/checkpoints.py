"""Checkpoints: what is in the write-ahead log goes into the file beside the writer, not in one of its commits."""

import os
import sqlite3
import threading
from contextlib import closing, suppress
from typing import Final
from urllib.parse import quote

_ROWS: Final = 512


class Checkpoints:
    """SQLite copies the log into the file in the commit with which it has become long, and all who share that write
    wait for it. So it is copied sooner, by another connection, which keeps no writer waiting; what is left for the
    commit, after which the log begins anew, is little then.

    It is told of every commit by whoever has the lock of the store's own connection."""

    def __init__(self, file: str, synchronous: str) -> None:
        self._address = f"file:{quote(os.path.abspath(file))}?mode=rw"  # one that was removed must not come back
        self._synchronous = synchronous
        self._copied = 0
        self._thread: threading.Thread | None = None

    def written(self, rows: int) -> None:
        """So many rows have been written in all, with the connection as it is; a new one counts anew."""
        self._copied = min(self._copied, rows)
        if rows - self._copied >= _ROWS and not self._is_at_it():
            self._copied = rows
            self._thread = threading.Thread(target=self._copy, name="oncegate-checkpoint", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Wait until nothing is copied any more: a connection must not be open when the process forks, and a file that
        was closed can be removed."""
        if self._thread is not None:
            self._thread.join()

    def _is_at_it(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _copy(self) -> None:
        """What cannot be copied now is copied with a later commit."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._address, uri=True, timeout=0)) as db:
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
