"""Turns: how the threads of a process wait together while another process keeps them out of the file."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from oncegate.stores.sqlite.file import is_busy

SLICE: Final = 0.02
_BETWEEN: Final = 0.005
_PROOF_FOR: Final = 3.0
_TROUBLE_FOR: Final = 10.0


class KeptOut(Exception):
    """Another process has the file: try again, after a pause."""


class _Asked(threading.local):
    """Since when what this thread asks for has been waited for; None: since it asks."""

    since: float | None = None


class Turns:
    """What the threads of a process know of each other's waits for the file.

    SQLite waits by itself, but then with the connection in its hands: a second thread would wait until the first gives
    up, and only then begin to wait. So SQLite waits for a slice, and in between others have the connection."""

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout / 1e6
        self._asked = _Asked()
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


class Turn:
    """One thread's wait, from the first time that it is kept out, for at most so many seconds."""

    __slots__ = ("_deadline", "_most", "_turns")

    def __init__(self, turns: Turns, most: float = inf) -> None:
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
            raise KeptOut from error

    def pause(self) -> None:
        """Let others have the connection; whoever lets a lock go and takes it at once gets it."""
        time.sleep(_BETWEEN)
