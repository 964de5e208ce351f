"""What the DynamoDB store costs: requests, which are the time, and capacity, which is the price."""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from oncegate import open_store
from oncegate.claims import Complete, Duplicate, InFlight
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import (
    ABOUT,
    KEY,
    LEASE,
    NAMESPACE,
    RETENTION,
    bury,
    claim,
    claim_of,
    complete,
    granted,
    redrive,
    release,
    renew,
    reset,
    stored,
    take,
)
from tests.stores.dynamo_server import DynamoServer, Wire


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(dynamo_server: DynamoServer, table: str, clock: ManualClock) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(table), clock=clock)) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


@pytest.fixture
def wire(store: DynamoStore) -> Wire:
    return Wire(store)


class TestRequests:
    """How many requests a thing takes: on DynamoDB they are the price and the time."""

    def test_new_duplicate_and_conflict(self, store: DynamoStore, wire: Wire) -> None:
        """A new event takes one request and its completion one more; a duplicate or conflict takes one."""
        record = granted(store)
        assert isinstance(claim(store, "bob"), InFlight)
        assert complete(store, record)
        assert isinstance(claim(store, "bob"), Duplicate)
        claim(store, "bob", payload_hash=b"?" * 16)
        assert wire.sent == ["PutItem"] * 5

    def test_marking(self, store: DynamoStore, wire: Wire) -> None:
        """At most once is one request altogether."""
        granted(store, marks=True)
        assert wire.sent == ["PutItem"]

    def test_takeover(self, store: DynamoStore, clock: ManualClock, wire: Wire) -> None:
        """A takeover is two: the first learns what is there, the second replaces exactly that."""
        granted(store)
        clock.advance(LEASE)
        wire.sent.clear()
        record = granted(store, "bob")
        assert wire.sent == ["PutItem"] * 2
        assert complete(store, record)
        assert wire.sent == ["PutItem"] * 3

    def test_expired(self, store: DynamoStore, clock: ManualClock, wire: Wire) -> None:
        """What has expired is replaced in one request, without a look at it."""
        granted(store)
        clock.advance(RETENTION)
        granted(store, "bob")
        assert wire.sent == ["PutItem"] * 2

    @pytest.mark.parametrize("settle", [complete, release, bury, renew])
    def test_settling(self, store: DynamoStore, wire: Wire, settle: Any) -> None:
        """One's own claim is settled or renewed in one request."""
        assert settle(store, granted(store))
        assert wire.sent == ["PutItem"] * 2

    def test_settling_for_another(
        self, store: DynamoStore, dynamo_server: DynamoServer, table: str, wire: Wire
    ) -> None:
        """A claim that another process was granted is read first."""
        with closing(open_store(dynamo_server.url(table), clock=ManualClock())) as another:
            record = granted(another)
        assert complete(store, record)
        assert wire.sent == ["GetItem", "PutItem"]

    def test_a_batch_goes_side_by_side(self, store: DynamoStore, wire: Wire) -> None:
        """Ten new events take ten requests to claim and ten to complete, and each ten are on their way at once."""
        at_once = threading.Barrier(10)

        def meet(_action: str) -> None:
            at_once.wait(10)

        wire.before = meet
        claims = [claim_of(key=bytes([number]) * 16) for number in range(10)]
        records = [verdict.record for verdict in store.claim(claims)]
        completions = [
            Complete(NAMESPACE, claim.key, record.owner, record.fence, RETENTION)
            for claim, record in zip(claims, records, strict=True)
        ]
        assert store.settle(completions) == [True] * 10
        assert wire.sent == ["PutItem"] * 20

    def test_no_more_at_once_than_allowed(self, dynamo_server: DynamoServer, table: str) -> None:
        """A batch of many keys has no more requests on their way than `parallel` says."""
        with closing(open_store(dynamo_server.url(table, parallel="3"))) as opened:
            assert isinstance(opened, DynamoStore)
            under_way = threading.Semaphore(3)
            wire = Wire(opened)

            def enter(_action: str) -> None:
                assert under_way.acquire(blocking=False)

            wire.before = enter
            opened._calls.client().meta.events.register("after-call.dynamodb", lambda **_rest: under_way.release())
            assert len(opened.claim([claim_of(key=bytes([number]) * 16) for number in range(40)])) == 40

    def test_looking_for_work(self, store: DynamoStore, wire: Wire) -> None:
        """A dispatcher that finds nothing asks the index once; what it finds it reads and claims."""
        granted(store)
        assert take(store) is None
        assert wire.sent == ["PutItem", "Query"]
        wire.sent.clear()
        assert bury(store, granted(store, key=b"x" * 16), key=b"x" * 16)
        assert redrive(store, b"x" * 16)
        wire.sent.clear()
        assert take(store) is not None
        assert wire.sent == ["Query", "GetItem", "PutItem"]

    def test_looking_at_a_key(self, store: DynamoStore, wire: Wire) -> None:
        """With its namespace a key is found in one read; without, the table is scanned."""
        granted(store)
        wire.sent.clear()
        assert len(store.browse(NAMESPACE, key=KEY)) == 1
        assert len(store.browse(key=KEY)) == 1
        assert wire.sent == ["GetItem", "Scan"]


class TestCapacity:
    """What is billed, as the emulator reports it; a unit is a write of up to 1 kB."""

    def test_an_event(self, store: DynamoStore, wire: Wire) -> None:
        """A claim and its completion are two write units, with a small result too."""
        assert complete(store, granted(store), b'{"case": "case for evt-1"}')
        assert wire.capacity == 2

    def test_marking(self, store: DynamoStore, wire: Wire) -> None:
        """At most once is one write unit."""
        granted(store, marks=True)
        assert wire.capacity == 1

    def test_a_dead_letter(self, store: DynamoStore, wire: Wire) -> None:
        """Burying is a unit for the record and one for the index; what ends well never touches the index."""
        assert bury(store, granted(store))
        assert wire.capacity == 3

    def test_compressed(self, store: DynamoStore, wire: Wire) -> None:
        """What is long is kept compressed, since cost goes by size."""
        result = b'{"participants": [' + b'{"state": "connected", "muted": false}, ' * 200 + b"{}]}"
        assert complete(store, granted(store), result)
        assert wire.capacity == 2
        assert stored(store).result == result  # type: ignore[union-attr]


def test_sliding_and_resetting(store: DynamoStore, wire: Wire) -> None:
    """A sliding duplicate is written with a second request; a reset reads what it deletes."""
    assert complete(store, granted(store, about=ABOUT))
    wire.sent.clear()
    claim(store, "bob", slides=10 * RETENTION, retention=2 * RETENTION)
    assert wire.sent == ["PutItem", "PutItem"]
    assert reset(store)
    assert wire.sent[2:] == ["GetItem", "DeleteItem"]
