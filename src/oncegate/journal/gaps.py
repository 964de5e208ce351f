"""The record of gaps: rows of the journal with the status `gap`.

A gap is a time in which events may have been missed: from `since` to `at`. Its kind says what was away. A gap is about
no event, so a row of a gap has no key, and totals do not count it.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from oncegate.durations import spoken
from oncegate.durations import times as counted
from oncegate.errors import OncegateError
from oncegate.journal.base import Journal, NewRow, NewRows
from oncegate.journal.rows import GAP, LONGEST_REASON, Fields, label_text
from oncegate.text import on_one_line
from oncegate.times import rfc3339

GapKind: TypeAlias = Literal["stopped", "socket", "store", "rejected"]

_MOST_UNWRITTEN: Final = 1_000
_log: Final = logging.getLogger("oncegate.work")


class GapLog:
    """Writes gaps to the log and to the journal. Thread-safe. `open_journal` is called with the first gap; it is None
    if there is no journal. A journal that cannot be written never raises: its rows are kept and written later."""

    def __init__(self, open_journal: Callable[[], Journal] | None, place: str, namespace: str) -> None:
        self._open = open_journal
        self._place = place
        self._namespace = namespace
        self._worker = f"{os.uname().nodename}:{os.getpid()}"
        self._journal: Journal | None = None
        self._unwritten: list[NewRow] = []
        self._lock = threading.Lock()

    def add(self, kind: GapKind, since: int, until: int, reason: str) -> None:
        """Record a gap. Times are in microseconds since 1970."""
        lasted = spoken(max(until - since, 0))
        reason = on_one_line(f"Gap of {lasted}, from {rfc3339(since)} to {rfc3339(until)}: {reason}")
        _log.warning("%s", reason)
        if self._open is None:
            return
        fields = Fields(at=until, since=since, reason=reason[:LONGEST_REASON], worker=self._worker)
        label = (label_text(self._place), label_text(self._namespace), "genesys", "", GAP, kind)
        with self._lock:
            self._unwritten = [*self._unwritten, NewRow(label, fields)][-_MOST_UNWRITTEN:]
            if (problem := self._write()) is not None:
                _log.warning("the journal has no row for this gap yet: %s", problem)

    def write_rest(self) -> bool:
        """Write the rows that could not be written before. Returns False if this fails again."""
        with self._lock:
            return self._write() is None

    def _write(self) -> OncegateError | OSError | None:
        if self._open is None or not self._unwritten:
            return None
        try:
            if self._journal is None:
                self._journal = self._open()
            self._journal.append(NewRows(self._unwritten, {}, {}))
        except (OncegateError, OSError) as error:
            return error
        self._unwritten = []
        return None

    def close(self) -> None:
        with self._lock:
            if (problem := self._write()) is not None:
                _log.error("the journal has no row for %s: %s", counted(len(self._unwritten), "gap"), problem)
            journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
