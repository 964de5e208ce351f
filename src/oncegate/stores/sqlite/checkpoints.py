"""Checkpoints: what is in the write-ahead log goes into the file beside the writer, not in one of its commits."""

import sqlite3
import threading
from _thread import start_new_thread
from contextlib import closing, suppress
from typing import Final

from oncegate.stores.sqlite.file import address

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
