"""Collapse storms: many copies of one event become one row with a count, so that a storm does not push out the history.

A window starts with the first row of an event and lasts a minute. The first five rows of a window are written one by
one. Further copies of the window are counted, and one row with the count is written when the window ends. Rows of
handler runs are always written.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.gate.outcome import Outcome
from oncegate.journal.base import MINUTE, NewRow
from oncegate.journal.rows import Label, fields_of, group_of

SEPARATE: Final = 5  # rows of an event in a window that are written one by one
_MOST_WINDOWS: Final = 20_000
_MOST_STORMS: Final = 2_000
# An event with one of these outcomes was not a copy of an earlier event.
_NEW: Final = frozenset({"processed", "accepted", "unguarded"})


class _Copies(Struct):
    """Copies with one label that are counted instead of written. `row` is the row of the first of them."""

    row: NewRow
    count: int
    last_at: int


class Window(Struct):
    """The rows of one event since `start`. `body` is the hash of the document whose details are already in a row."""

    start: int
    rows: int = 0
    body: int | None = None
    copies: dict[Label, _Copies] | None = None


class StormFilter:
    """Decides which outcomes get a row of their own. The number of windows is bounded; if there are more events in a
    minute, the oldest windows end early. Windows with storms are kept apart, so that many new events do not end
    them."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, bytes], Window] = {}
        self._storms: dict[tuple[str, bytes], Window] = {}

    def window(self, place: str, outcome: Outcome, at: int) -> Window:
        """Returns the window of an event."""
        name = (place, group_of(outcome))
        window = self._storms.get(name) or self._windows.get(name)
        if window is None or (at - window.start >= MINUTE and window.copies is None):
            self._windows.pop(name, None)
            window = self._windows[name] = Window(at)
        return window

    def is_separate(self, window: Window, outcome: Outcome) -> bool:
        """Whether an outcome gets a row of its own. Counts this row."""
        if window.rows >= SEPARATE and outcome.took is None and outcome.status not in _NEW:
            return False
        window.rows += 1
        return True

    def collapse(self, window: Window, place: str, outcome: Outcome, label: Label, at: int, worker: str) -> None:
        """Count a copy that gets no row of its own."""
        if window.copies is None:
            window.copies = {}
            name = (place, group_of(outcome))
            self._storms[name] = self._windows.pop(name, window)
        copies = window.copies.get(label)
        if copies is None:
            window.copies[label] = _Copies(NewRow(label, fields_of(outcome, at, worker)), 1, at)
        else:
            copies.count += 1
            copies.last_at = at

    def forget_bodies(self) -> None:
        """Forget which details are in a row, because rows were dropped or are in another journal."""
        for window in [*self._windows.values(), *self._storms.values()]:
            window.body = None

    def ended(self, now: int, *, all_of_them: bool = False) -> Iterator[NewRow]:
        """Yields the rows of the storms whose window has ended, and removes the windows that have ended."""
        _remove_ended(self._windows, now, 0 if all_of_them else _MOST_WINDOWS)
        for window in _remove_ended(self._storms, now, 0 if all_of_them else _MOST_STORMS):
            for copies in (window.copies or {}).values():
                yield _row_of(copies)


def _remove_ended(windows: dict[tuple[str, bytes], Window], now: int, most: int) -> list[Window]:
    """Remove the windows that started more than a minute ago, and the oldest windows beyond `most`. A window that
    starts more than a minute in the future has ended too: the clock was set back. A dict has its items in the order of
    insertion, so the oldest windows come first."""
    ended: list[tuple[tuple[str, bytes], Window]] = []
    for name, window in windows.items():
        if abs(window.start - now) < MINUTE and len(windows) - len(ended) <= most:
            break
        ended.append((name, window))
    for name, _ in ended:
        del windows[name]
    return [window for _, window in ended]


def _row_of(copies: _Copies) -> NewRow:
    fields = copies.row.fields
    if copies.count == 1:
        return copies.row
    return NewRow(copies.row.label, replace(fields, at=copies.last_at, since=fields.at, count=copies.count))
