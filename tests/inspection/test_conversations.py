"""Conversations: the rows of one entity in order, with echoes and stale states marked."""

from collections.abc import Callable

from oncegate.inspection.conversations import conversation
from oncegate.journal import RowFilter
from tests.inspection.test_stories import Desk, change, desk, succeed

__all__ = ["desk"]


def marks(calls: Desk) -> list[tuple[str | None, str | None, str | None]]:
    lines = conversation(calls.journal, "c-1").lines
    return [(each.row.event_id, each.mark, each.of.event_id if each.of else None) for each in lines]


def test_a_conversation(desk: Callable[..., Desk]) -> None:
    """With state_change, echoes and stale states are marked, and the rows are in order."""
    calls = desk(key='state_change("500ms")')
    calls.gate.run(change("evt-1", "ringing", "00"), succeed)
    calls.gate.run(change("evt-2", "connected", "05"), succeed)
    calls.gate.run(change("evt-3", "connected", "05.2"), succeed)
    calls.gate.run(change("evt-4", "held", "03"), succeed)
    assert marks(calls) == [
        ("evt-1", None, None),
        ("evt-2", None, None),
        ("evt-3", "echo", "evt-2"),
        ("evt-4", "stale", "evt-2"),
    ]
    assert calls.journal.rows(RowFilter(term="evt-4"))[0].stale is True
    page = conversation(calls.journal, "c-1", most=3)
    assert [each.row.event_id for each in page.lines] == ["evt-2", "evt-3", "evt-4"]
    assert [each.gap is None for each in page.lines] == [True, False, False]
    assert [each.row.event_id for each in conversation(calls.journal, "c-1", before=page.next).lines] == ["evt-1"]
    assert conversation(calls.journal, "c-2").lines == ()


def test_skipped_stale_states(desk: Callable[..., Desk]) -> None:
    calls = desk(key='state_change("500ms")', on_stale="skip")
    calls.gate.run(change("evt-1", "connected", "05"), succeed)
    calls.gate.run(change("evt-2", "held", "03"), succeed)
    assert marks(calls) == [("evt-1", None, None), ("evt-2", "stale", "evt-1")]


def test_possible_echoes(desk: Callable[..., Desk]) -> None:
    """Without state_change, two events with one state and nearly one time are marked as a possible echo."""
    calls = desk()
    calls.gate.run(change("evt-1", "connected", "05"), succeed)
    calls.gate.run(change("evt-1", "connected", "05"), succeed)
    calls.gate.run(change("evt-2", "connected", "05.4"), succeed)
    calls.gate.run(change("evt-3", "connected", "09"), succeed)
    calls.gate.run(change("evt-4", "held", "08"), succeed)
    assert marks(calls) == [
        ("evt-1", None, None),
        ("evt-1", None, None),
        ("evt-2", "possible echo", "evt-1"),
        ("evt-3", None, None),
        ("evt-4", "stale", "evt-3"),
    ]
