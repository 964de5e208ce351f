"""Collapse storms: many copies of one event become one row with a count, so that a storm does not push out the history.

A window starts with the first row of an event and lasts a minute. The first five copies of a window have a row each.
Further copies are counted, and one row with the count is written when the window ends. The rows of new events and of
handler runs are always written, and do not count as copies.

Events without a key, such as refused events, are copies of each other if they have the same error and the same
document. A sender can make any number of different refused events, so a second window counts the rows of one error and
place. After 20 such rows in a minute, further events with this error are counted, unless they are copies that have
their own count. One row with the count is written when the window ends. This row stands for different events, so it has
no event id, no entity, no delivery id and no key.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.gate.outcome import Outcome
from oncegate.journal.base import MINUTE, NewRow
from oncegate.journal.rows import Label, anonymous, error_of, fields_of, group_of

SEPARATE: Final = 5  # copies of an event in a window that have a row each
SEPARATE_ERRORS: Final = 20  # rows of an error and place, without a key, in a window that are written one by one
_MOST_WINDOWS: Final = 20_000
_MOST_STORMS: Final = 2_000
# An event with one of these outcomes was not a copy of an earlier event.
_NEW: Final = frozenset({"processed", "accepted", "unguarded"})


def is_copy(status: str, took: int | None) -> bool:
    """Whether a row with this status counts as a copy: no handler ran, and the event was not new."""
    return took is None and status not in _NEW


class _Copies(Struct):
    """Copies with one label that are counted instead of written. `row` is the row of the first of them."""

    row: NewRow
    count: int
    last_at: int


class Window(Struct):
    """The copies of one event since `start`. `rows` is the number of copies that have a row each. `body` is the hash of
    the document whose details are already in a row. The window of an event without a key has the window of all events
    with its error: `flood`."""

    name: tuple[str, bytes]
    start: int
    rows: int = 0
    body: int | None = None
    copies: dict[Label, _Copies] | None = None
    flood: "Window | None" = None
    is_flood: bool = False


class StormFilter:
    """Decides which outcomes get a row of their own. The number of windows is bounded; if there are more events in a
    minute, the oldest windows end early. Windows with storms are kept apart, so that many new events do not end
    them."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, bytes], Window] = {}
        self._storms: dict[tuple[str, bytes], Window] = {}

    def window(self, place: str, outcome: Outcome, at: int) -> Window:
        """Returns the window of an event. If there are many rows of different events with its error, and the event is
        not a copy that is counted already, returns the window of the error."""
        name = (place, group_of(outcome))
        if outcome.key is not None:
            return self._found(name, at) or self._new(name, at)
        flood_name = (place, error_of(outcome))
        flood = self._found(flood_name, at) or self._new(flood_name, at)
        flood.is_flood = True
        window = self._found(name, at)
        if flood.rows >= SEPARATE_ERRORS and (window is None or window.rows < SEPARATE):
            return flood
        window = window or self._new(name, at)
        window.flood = flood
        return window

    def _found(self, name: tuple[str, bytes], at: int) -> Window | None:
        """Returns the window with this name, unless it has ended."""
        window = self._storms.get(name) or self._windows.get(name)
        has_ended = window is not None and at - window.start >= MINUTE and window.copies is None
        return None if has_ended else window

    def _new(self, name: tuple[str, bytes], at: int) -> Window:
        self._windows.pop(name, None)
        window = self._windows[name] = Window(name, at)
        return window

    def is_separate(self, window: Window, outcome: Outcome) -> bool:
        """Whether an outcome gets a row of its own. Counts this row if it is that of a copy."""
        if not is_copy(outcome.status, outcome.took):
            return True
        if window.rows >= SEPARATE:
            return False
        window.rows += 1
        if window.flood is not None:
            window.flood.rows += 1
        return True

    def collapse(self, window: Window, outcome: Outcome, label: Label, at: int, worker: str) -> None:
        """Count an event that gets no row of its own."""
        if window.copies is None:
            window.copies = {}
            self._storms[window.name] = self._windows.pop(window.name, window)
        copies = window.copies.get(label)
        if copies is None:
            shown = anonymous(outcome) if window.is_flood else outcome
            window.copies[label] = _Copies(NewRow(label, fields_of(shown, at, worker)), 1, at)
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
