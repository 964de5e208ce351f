"""What the DynamoDB store costs: requests, which take time, and capacity, which costs money."""

from contextlib import closing
from typing import Any

import pytest

from oncegate import open_store
from oncegate.claims import Duplicate, InFlight
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import (
    ABOUT,
    LEASE,
    RETENTION,
    bury,
    claim,
    complete,
    granted,
    release,
    renew,
    reset,
    stored,
)
from tests.stores.dynamo_server import DynamoServer, Wire


class TestCapacity:
    """The billed capacity as the emulator reports it. A unit is a write of up to 1 kB."""

    def test_an_event(self, store: DynamoStore, wire: Wire) -> None:
        """A claim and its completion are two write units, also with a small result."""
        assert complete(store, granted(store), b'{"case": "case for evt-1"}')
        assert wire.capacity == 2

    def test_marking(self, store: DynamoStore, wire: Wire) -> None:
        """A marking claim (at most once) is one write unit."""
        granted(store, marks=True)
        assert wire.capacity == 1

    def test_a_dead_letter(self, store: DynamoStore, wire: Wire) -> None:
        """Burying is one unit for the record and one for the index; completed events never touch the index."""
        assert bury(store, granted(store))
        assert wire.capacity == 3

    def test_compressed(self, store: DynamoStore, wire: Wire) -> None:
        """Long values are compressed, because DynamoDB charges by size."""
        result = b'{"participants": [' + b'{"state": "connected", "muted": false}, ' * 200 + b"{}]}"
        assert complete(store, granted(store), result)
        assert wire.capacity == 2
        assert stored(store).result == result  # type: ignore[union-attr]


def test_sliding_and_resetting(store: DynamoStore, wire: Wire) -> None:
    """A sliding duplicate needs a second request; a reset reads the record that it deletes."""
    assert complete(store, granted(store, about=ABOUT))
    wire.sent.clear()
    claim(store, "bob", slides=10 * RETENTION, retention=2 * RETENTION)
    assert wire.sent == ["PutItem", "PutItem"]
    assert reset(store)
    assert wire.sent[2:] == ["GetItem", "DeleteItem"]


class TestRequests:
    """How many requests an operation needs."""

    def test_new_duplicate_and_conflict(self, store: DynamoStore, wire: Wire) -> None:
        """A new event needs one request and its completion another one; a duplicate or conflict needs one."""
        record = granted(store)
        assert isinstance(claim(store, "bob"), InFlight)
        assert complete(store, record)
        assert isinstance(claim(store, "bob"), Duplicate)
        claim(store, "bob", payload_hash=b"?" * 16)
        assert wire.sent == ["PutItem"] * 5

    def test_marking(self, store: DynamoStore, wire: Wire) -> None:
        """A marking claim (at most once) is one request in total."""
        granted(store, marks=True)
        assert wire.sent == ["PutItem"]

    def test_takeover(self, store: DynamoStore, clock: ManualClock, wire: Wire) -> None:
        """A takeover needs two requests: the first gets the current record, the second replaces it."""
        granted(store)
        clock.advance(LEASE)
        wire.sent.clear()
        record = granted(store, "bob")
        assert wire.sent == ["PutItem"] * 2
        assert complete(store, record)
        assert wire.sent == ["PutItem"] * 3

    def test_expired(self, store: DynamoStore, clock: ManualClock, wire: Wire) -> None:
        """An expired record is replaced in one request, without reading it."""
        granted(store)
        clock.advance(RETENTION)
        granted(store, "bob")
        assert wire.sent == ["PutItem"] * 2

    @pytest.mark.parametrize("settle", [complete, release, bury, renew])
    def test_settling(self, store: DynamoStore, wire: Wire, settle: Any) -> None:
        """A claim of this process is settled or renewed in one request."""
        assert settle(store, granted(store))
        assert wire.sent == ["PutItem"] * 2

    def test_settling_a_claim_of_another_process(
        self, store: DynamoStore, dynamo_server: DynamoServer, table: str, wire: Wire
    ) -> None:
        """A claim of another process is read before it is settled."""
        with closing(open_store(dynamo_server.url(table), clock=ManualClock())) as another:
            record = granted(another)
        assert complete(store, record)
        assert wire.sent == ["GetItem", "PutItem"]
