"""Stores that judge operations in Python: mixed operations in one write, and which records a page lists."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from oncegate.claims import Abandon, Address, Admit, Admitted, Claim, Complete, Duplicate, EventSummary, Granted, Record
from oncegate.errors import StoreError
from oncegate.stores.base import BatchesMixedOperations
from oncegate.stores.memory import MemoryStore
from oncegate.stores.sqlite import SqliteStore
from oncegate.stores.step_store import is_listed
from oncegate.testing import ManualClock

LEASE, RETENTION = 30_000_000, 60_000_000
CALL = EventSummary("plain", entity="call-1")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryStore | SqliteStore]:
    opened = MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / "store.db"))
    yield opened
    opened.close()


def claim(key: bytes, owner: bytes) -> Claim:
    return Claim("n", key, owner * 16, b"h" * 16, LEASE, RETENTION, CALL)


def admit(key: bytes, owner: bytes) -> Admit:
    return Admit("n", key, owner * 16, b"h" * 16, b"{}", CALL, lease=LEASE)


def completion(key: bytes, record: Record) -> Complete:
    return Complete("n", key, record.owner, record.fence, RETENTION)


def test_together(store: MemoryStore | SqliteStore) -> None:
    """Operations are judged in order: a copy is a duplicate of an event completed before it in the same write."""
    assert isinstance(store, BatchesMixedOperations)
    (granted,) = store.claim([claim(b"a", b"1")])
    settled, copy, new, admitted = store.together(
        [completion(b"a", granted.record), claim(b"a", b"2"), claim(b"b", b"3"), admit(b"c", b"4")]
    )
    assert settled is True
    assert [type(each) for each in (copy, new, admitted)] == [Duplicate, Granted, Granted]


def test_an_entity_that_becomes_free_in_the_same_write(store: MemoryStore | SqliteStore) -> None:
    """An event that comes together with the completion of another event of its entity is admitted, not granted."""
    (first,) = store.admit([admit(b"a", b"1")])
    settled, second = store.together([completion(b"a", first.record), admit(b"b", b"2")])
    assert settled is True
    assert isinstance(second, Admitted)


def test_abandon(store: MemoryStore | SqliteStore) -> None:
    """The claim of an ended process can be taken over in the same write, or later."""
    (first,) = store.claim([claim(b"a", b"1")])
    ended = Abandon("n", b"a", first.record.owner, first.record.fence)
    assert store.together([ended, ended, replace(ended, fence=0)]) == [True, False, False]
    (second,) = store.claim([claim(b"a", b"2")])
    assert isinstance(second, Granted)
    assert (second.record.attempts, second.record.lost) == (1, 1)
    ended = replace(ended, owner=second.record.owner, fence=second.record.fence)
    abandoned, third = store.together([ended, claim(b"a", b"3")])
    assert abandoned is True
    assert (third.record.attempts, third.record.lost) == (2, 2)
    assert [entry.record for entry in store.browse()] == [third.record]


def test_claimed_and_abandoned_in_one_write(tmp_path: Path) -> None:
    """A record is stored completely, also if its first write already counts a lost attempt."""
    clock = ManualClock()
    for request in (claim, admit):
        with closing(SqliteStore(str(tmp_path / f"{request.__name__}.db"), clock=clock)) as store:
            ended = Abandon("n", b"a", b"1" * 16, clock.now)
            *_, last = store.together([request(b"a", b"1"), ended, claim(b"a", b"2")])
            assert (last.record.attempts, last.record.lost) == (1, 1)
            assert [entry.record for entry in store.browse()] == [last.record]


def test_all_or_nothing(tmp_path: Path) -> None:
    """A write that fails has written none of its operations."""
    store = SqliteStore(str(tmp_path / "store.db"))
    (granted,) = store.claim([claim(b"a", b"1")])
    unwritable = replace(claim(b"b", b"2"), about=EventSummary("plain", type="\ud800"))
    with pytest.raises((StoreError, UnicodeEncodeError)):
        store.together([completion(b"a", granted.record), unwritable])
    assert [entry.record.state for entry in store.browse()] == ["P"]
    assert store.settle([completion(b"a", granted.record)]) == [True]
    store.close()


def test_is_listed() -> None:
    """A page lists records after its start that have not expired; a record without an expiry does not expire."""
    record = Record("C", b"o", 1, 0, 1, b"h", 100, CALL, first_seen=1)
    where = ("n", b"b")
    assert is_listed(where, record, None, 99)
    assert not is_listed(where, record, None, 100)
    assert is_listed(where, replace(record, expires_at=None), None, 100)
    assert is_listed(where, record, Address("n", b"a"), 99)
    assert is_listed(where, record, Address("m", b"z"), 99)
    assert not is_listed(where, record, Address("n", b"b"), 99)
    assert not is_listed(where, record, Address("o", b"a"), 99)
