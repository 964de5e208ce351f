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
from oncegate.errors import OncegateError
from oncegate.journal.base import Journal, NewRow, NewRows
from oncegate.journal.rows import GAP, LONGEST_REASON, Fields, label_text
from oncegate.text import on_one_line
from oncegate.times import rfc3339

GapKind: TypeAlias = Literal["stopped", "socket", "store"]

_log: Final = logging.getLogger("oncegate.work")


class GapLog:
    """Writes gaps to the log and to the journal. Thread-safe. `open_journal` is called with the first gap; it is None
    if there is no journal. A journal that cannot be written never raises: the log has each gap."""

    def __init__(self, open_journal: Callable[[], Journal] | None, place: str, namespace: str) -> None:
        self._open = open_journal
        self._place = place
        self._namespace = namespace
        self._worker = f"{os.uname().nodename}:{os.getpid()}"
        self._journal: Journal | None = None
        self._lock = threading.Lock()

    def add(self, kind: GapKind, since: int, until: int, reason: str) -> None:
        """Record a gap. Times are in microseconds since 1970."""
        lasted = spoken(max(until - since, 0))
        reason = on_one_line(f"Gap of {lasted}, from {rfc3339(since)} to {rfc3339(until)}: {reason}")
        _log.warning("%s", reason)
        fields = Fields(at=until, since=since, reason=reason[:LONGEST_REASON], worker=self._worker)
        label = (label_text(self._place), label_text(self._namespace), "genesys", "", GAP, kind)
        if self._open is None:
            return
        try:
            with self._lock:
                if self._journal is None:
                    self._journal = self._open()
                self._journal.append(NewRows([NewRow(label, fields)], {}, {}))
        except (OncegateError, OSError) as error:
            _log.warning("the journal has no row for this gap: %s", error)

    def close(self) -> None:
        with self._lock:
            journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
