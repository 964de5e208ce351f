"""The statements of the SQLite store: every record is read back as it was written."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, EventSummary, Record
from oncegate.stores.sqlite.connection import open_file
from oncegate.stores.sqlite.queries import _LENGTHS, _change, _chunks, find, find_busy, save

ROW = ("n", b"k" * 16)
ABOUT = EventSummary("plain", "type", "call-1", 5, "delivery-1")
CLAIMED = Record(IN_PROGRESS, b"o" * 16, 7, 37, 1, b"h" * 16, 1_000, ABOUT, first_seen=7)
KEPT = replace(CLAIMED, state=RELEASED, attempts=0, expires_at=None, payload=b"{}")
COMPLETE = replace(CLAIMED, state=COMPLETED, lease_until=0, completed_at=9, result=b"1", expires_at=2_000)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_file(str(tmp_path / "store.db"), "normal", 1_000_000)) as db:
        yield db


CHANGES: list[tuple[str, Record | None, Record | None]] = [
    ("insert claimed", None, CLAIMED),
    ("insert admitted", None, KEPT),
    ("insert admitted", None, replace(KEPT, state=IN_PROGRESS, attempts=1)),
    ("insert", None, replace(CLAIMED, fence=8, lost=1)),
    ("insert", None, replace(KEPT, lost=1)),
    ("insert", None, replace(KEPT, error="boom")),
    ("insert", None, replace(KEPT, unavailable_since=4)),
    ("insert", None, COMPLETE),
    ("insert claimed", COMPLETE, replace(CLAIMED, fence=3_000, first_seen=3_000, about=EventSummary("other"))),
    ("update completed", CLAIMED, COMPLETE),
    ("update completed", replace(CLAIMED, payload=b"{}", error="boom", lost=2, unavailable_since=3), COMPLETE),
    ("update", CLAIMED, replace(COMPLETE, handed_to="sqs://q")),
    ("update", CLAIMED, replace(COMPLETE, result=None)),
    ("update", CLAIMED, replace(COMPLETE, fence=8)),
    ("update held", CLAIMED, replace(CLAIMED, lease_until=99)),
    ("update held", replace(KEPT, lost=1), replace(KEPT, state=IN_PROGRESS, fence=8, lease_until=50, attempts=1)),
    ("update", CLAIMED, replace(CLAIMED, expires_at=3_000)),
    ("update", CLAIMED, replace(CLAIMED, state=DEAD, payload=b"{}", error="boom", expires_at=5_000)),
    ("delete", CLAIMED, None),
]


@pytest.mark.parametrize(("statement", "before", "after"), CHANGES)
def test_every_change(db: sqlite3.Connection, statement: str, before: Record | None, after: Record | None) -> None:
    """Each kind of change uses its statement, and the record is then read as it was written."""
    assert _change(before, after)[0] == statement
    save(db, {}, {ROW: before})
    found = {} if before is None else {ROW: before}
    assert find(db, [ROW]) == found
    assert save(db, found, {ROW: after}) == statement.startswith("insert")
    assert find(db, [ROW]) == ({} if after is None else {ROW: after})


def test_unchanged_records_are_not_written(db: sqlite3.Connection) -> None:
    """A record that is the one found is not written again."""
    save(db, {}, {ROW: CLAIMED})
    before = db.total_changes
    assert save(db, {ROW: CLAIMED}, {ROW: CLAIMED}) == 0
    assert db.total_changes == before


@pytest.mark.parametrize("count", [1, 2, 3, 127, 128, 129, 300])
def test_many_keys(db: sqlite3.Connection, count: int) -> None:
    """Any number of keys of several namespaces is found, with statements of few lengths."""
    rows = [(f"n{number % 2}", number.to_bytes(16)) for number in range(count)]
    save(db, {}, dict.fromkeys(rows, CLAIMED))
    assert find(db, [*rows, ("n0", b"absent")]) == dict.fromkeys(rows, CLAIMED)
    assert {len(chunk) for _, chunk in _chunks(rows)} <= set(_LENGTHS)


def test_busy_entities(db: sqlite3.Connection) -> None:
    """An entity is busy while a record with a payload waits or is in progress, in its own namespace only."""
    about: dict[str, Any] = {name: replace(ABOUT, entity=name) for name in ("waits", "runs", "done", "dead", "claimed")}
    records = {
        "waits": replace(KEPT, about=about["waits"]),
        "runs": replace(KEPT, about=about["runs"], state=IN_PROGRESS),
        "done": replace(COMPLETE, about=about["done"]),
        "dead": replace(KEPT, about=about["dead"], state=DEAD),
        "claimed": replace(CLAIMED, about=about["claimed"]),
    }
    save(db, {}, {("n", name.encode()): record for name, record in records.items()})
    assert find_busy(db, [("n", name) for name in records]) == {("n", "waits"), ("n", "runs")}
    assert find_busy(db, [("m", "waits")]) == set()
