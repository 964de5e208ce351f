"""Filters and totals of journals. tests/journal/contract.py tests the journals themselves."""

import pytest

from oncegate.journal.base import MINUTE, RowFilter, totals_of
from oncegate.journal.rows import ID_BITS, Label

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
