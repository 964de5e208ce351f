"""Filters and totals of journals. tests/journal/contract.py tests the journals themselves."""

import pytest

from oncegate.events import Event
from oncegate.gate.outcome import Outcome
from oncegate.journal.base import MINUTE, RowFilter, totals_of
from oncegate.journal.rows import ID_BITS, Label, label_of
from tests.journal.contract import HOSTILE

LABEL: Label = ("calls", "crm", "plain", "call.ended", "failed", "")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (RowFilter(), True),
        (RowFilter(place="calls", status="failed"), True),
        (RowFilter(place="calls", status="processed"), False),
        (RowFilter(kind=""), True),
        (RowFilter(kind="replay"), False),
    ],
)
def test_matches(where: RowFilter, expected: bool) -> None:
    """A filter matches a label if every part that it names is equal."""
    assert where.matches(LABEL) is expected


def test_ids() -> None:
    """Times and cursors together give one range of ids."""
    assert RowFilter().ids(None, None) == (0, 2**63 - 1)
    assert RowFilter(since=5, until=9).ids(None, None) == ((5 << ID_BITS) - 1, 9 << ID_BITS)
    assert RowFilter(since=5, until=9).ids(6 << ID_BITS, 7 << ID_BITS) == (7 << ID_BITS, 6 << ID_BITS)
    assert RowFilter(since=5).ids(None, 3) == ((5 << ID_BITS) - 1, 2**63 - 1)


def test_ids_are_bounded() -> None:
    """Both bounds are numbers that every database takes."""
    assert RowFilter(since=2**70, until=2**71).ids(None, None) == (2**63 - 1, 2**63 - 1)
    assert RowFilter(since=-(2**70), until=-5).ids(None, None) == (0, 0)
    assert RowFilter().ids(-1, -1) == (0, 0)
    assert RowFilter().ids(2**70, 2**70) == (2**63 - 1, 2**63 - 1)


def test_parts_are_written_like_labels() -> None:
    """A filter finds a label by the text of the event, also if the label cannot have this text."""
    outcome = Outcome("processed", Event(source=HOSTILE, body={}, type=HOSTILE))
    label = label_of(HOSTILE, HOSTILE, outcome, named_type=HOSTILE)
    where = RowFilter(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    assert where.matches(label)
    assert tuple(where.label.values()) == label[:4]


def test_totals() -> None:
    """Counts by minute are added up to longer intervals."""
    other = (*LABEL[:4], "processed", "replay")
    counts = {(10, LABEL): 1, (11, LABEL): 2, (12, other): 4}
    assert [(each.start, each.count) for each in totals_of(counts, MINUTE)] == [
        (10 * MINUTE, 1),
        (11 * MINUTE, 2),
        (12 * MINUTE, 4),
    ]
    hours = totals_of(counts, 60 * MINUTE)
    assert [(each.start, each.status, each.kind, each.count) for each in hours] == [
        (0, "failed", None, 3),
        (0, "processed", "replay", 4),
    ]
