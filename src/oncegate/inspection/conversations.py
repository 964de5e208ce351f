"""Read a conversation from the journal: the rows of one entity in order, with echoes and stale states marked."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from oncegate.inspection.copies import WINDOW
from oncegate.inspection.stories import in_order
from oncegate.journal.base import ALL_ROWS, Journal, RowFilter, all_rows
from oncegate.journal.rows import OPERATOR, Row

Mark: TypeAlias = Literal["echo", "possible echo", "stale"]


class ConversationLine(Struct, frozen=True):
    """A row of a conversation. `gap` is the time from the start of the row before it, in microseconds. `mark` is `echo`
    for a logical duplicate, `possible echo` for an event that reports the state of an earlier event of nearly the same
    time, and `stale` for an event that is older than a state that was known before. `of` is the earlier row."""

    row: Row
    gap: int | None
    mark: Mark | None = None
    of: Row | None = None


class Conversation(Struct, frozen=True):
    """The rows of one entity, oldest first. `next` is the cursor of the older rows."""

    entity: str
    lines: tuple[ConversationLine, ...]
    next: int | None = None


def conversation(
    journal: Journal, entity: str, where: RowFilter = ALL_ROWS, *, before: int | None = None, most: int = 200
) -> Conversation:
    """Returns the newest rows of an entity in the order of their times, with echoes and stale states marked."""
    page = all_rows(journal, replace(where, entity=entity), most, before=before)
    return Conversation(entity, tuple(conversation_lines(page)), page.next)


def conversation_lines(rows: Iterable[Row]) -> Iterator[ConversationLine]:
    """Yields the lines for rows of one entity, oldest first. The rows may have any order."""
    states = _KnownStates()
    before: int | None = None
    for row in in_order(rows):
        yield ConversationLine(row, None if before is None else row.start - before, *states.add(row))
        before = row.start


class _KnownStates:
    """The states of the parts of an entity that were seen so far."""

    def __init__(self) -> None:
        self._by_part: dict[tuple[str, str | None], list[Row]] = {}

    def add(self, row: Row) -> tuple[Mark | None, Row | None]:
        known = self._by_part.setdefault((row.source, row.part), [])
        first = next((each for each in known if each.key == row.key), None)
        if row.kind == "state-echo":
            return "echo", first
        if row.stale:
            return "stale", _newest(known, row)
        if first is not None or row.state is None or row.occurred_at is None or row.status == OPERATOR:
            return None, None
        echo = next((each for each in known if each.state == row.state and _distance(each, row) <= WINDOW), None)
        newer = _newest(known, row)
        known.append(row)
        if echo is not None:
            return "possible echo", echo
        return (None, None) if newer is None else ("stale", newer)


def _newest(known: Sequence[Row], row: Row) -> Row | None:
    """Returns the row of another state with the latest event time, if this time is later than that of `row`."""
    at = row.occurred_at
    later = [each for each in known if at is not None and (each.occurred_at or 0) > at and each.state != row.state]
    return max(later, key=lambda each: each.occurred_at or 0, default=None)


def _distance(one: Row, other: Row) -> int:
    return abs((one.occurred_at or 0) - (other.occurred_at or 0))
