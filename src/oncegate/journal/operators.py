"""The record of what operators did: rows of the journal with the status `operator`.

The kind of such a row is the action: redrive, drop, reset, replay or forget. Its worker is the person. Totals do not
count these rows. Lists leave them out, unless the filter asks for the status `operator`.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from oncegate.claims import EventSummary
from oncegate.clocks import Clock, wall
from oncegate.errors import NoStore, OncegateError, SettingError
from oncegate.journal.base import Journal, NewRow, NewRows, RowFilter
from oncegate.journal.rows import LONGEST_REASON, OPERATOR, Fields, operator_label
from oncegate.text import on_one_line

_log = logging.getLogger("oncegate.operators")

OperatorKind: TypeAlias = Literal["redrive", "drop", "reset", "replay", "forget"]

MOST_EVENT_ROWS: Final = 1_000  # an action that changes more events has no row for each event
_ACTION: Final = "operator"  # the place of the row of an action
_EVENT: Final = ""  # the place of the row of one of several events that an action changed
OPERATOR_ACTIONS: Final = RowFilter(status=OPERATOR, place=_ACTION)


class ChangedEvent(Struct, frozen=True):
    """An event that an operator changed."""

    namespace: str
    key: bytes
    about: EventSummary


class OperatorLog:
    """Writes what one person does. `open_journal` is called with the first row. No method raises if the journal cannot
    be written: `problem` is then the reason. With `is_logged`, the log then gets a line for each action."""

    def __init__(
        self, open_journal: Callable[[], Journal], who: str, clock: Clock = wall, *, is_logged: bool = True
    ) -> None:
        self._open = open_journal
        self._is_logged = is_logged
        self._who = on_one_line(who)
        self._clock = clock
        self._journal: Journal | None = None
        self.problem: str | None = None
        self.is_missing = False  # whether there is no journal

    def add(
        self,
        kind: OperatorKind,
        reason: str,
        event: ChangedEvent | None = None,
        *,
        namespace: str = "",
        to: bytes = b"",
    ) -> None:
        """Record an action. `reason` says what was done. `event` is the event, if the action changed one event. `to` is
        the key of another record that the action made of the event."""
        reason = on_one_line(reason)
        if event is not None:
            namespace = event.namespace
        self._write([self._row(_ACTION, namespace, kind, reason, event, to)])
        if self.problem is not None and self._is_logged:
            _log.warning("%s (%s): %s", kind, self._who, reason)

    def add_events(self, kind: OperatorKind, reason: str, events: Sequence[ChangedEvent]) -> None:
        """Record events that an action on several events has changed, so that the history of each event shows it."""
        self._write([self._row(_EVENT, event.namespace, kind, reason, event) for event in events])

    def _row(
        self,
        place: str,
        namespace: str,
        kind: OperatorKind,
        reason: str,
        event: ChangedEvent | None,
        to: bytes = b"",
    ) -> NewRow:
        about = EventSummary("") if event is None else event.about
        fields = Fields(
            key=b"" if event is None else event.key,
            event_id=about.delivery_id,
            entity=about.entity,
            kept=to,
            at=self._clock(),
            reason=reason[:LONGEST_REASON],
            worker=self._who,
            named_type=about.type,
        )
        return NewRow(operator_label(place, namespace, kind), fields)

    def _write(self, rows: Sequence[NewRow]) -> None:
        if not rows or self.problem is not None:
            return
        try:
            if self._journal is None:
                self._journal = self._open()
            self._journal.append(NewRows(rows, {}, {}))
        except (OncegateError, OSError) as error:
            self.problem = str(error)
            self.is_missing = isinstance(error, NoStore | SettingError)

    def close(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
