"""Conditional writes: expectations of this process, clocks that differ, and lost replies."""

import itertools
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest
from hypothesis.stateful import run_state_machine_as_test

from oncegate import open_store
from oncegate.claims import (
    Address,
    Duplicate,
    Granted,
    InFlight,
)
from oncegate.clocks import Clock
from oncegate.errors import StoreUnavailable
from oncegate.stores.base import Change, Document, Store
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import ManualClock
from oncegate.testing.model_comparison import machine
from oncegate.testing.requests import (
    KEY,
    LEASE,
    NAMESPACE,
    RETENTION,
    bury,
    claim,
    complete,
    granted,
    redrive,
    release,
    reset,
    stored,
    take,
)
from tests.stores.dynamo_server import DynamoServer, Wire
from tests.stores.proxy import Proxy

SECOND = 1_000_000


class Alternating:
    """Two stores on one table, like those of two processes, that are used in turn."""

    def __init__(self, *stores: Store) -> None:
        self._stores = stores
        self._turn = itertools.cycle(stores)

    def __getattr__(self, verb: str) -> Any:
        store = self._stores[0] if verb in ("browse", "dead_letters", "load") else next(self._turn)
        return getattr(store, verb)

    def close(self) -> None:
        for store in self._stores:
            store.close()


def test_two_processes_agree_with_the_model(dynamo_server: DynamoServer) -> None:
    """Two processes that take turns agree with the model, although each remembers claims that the other changes."""

    def open_two(clock: Clock) -> Store:
        url = dynamo_server.url(dynamo_server.new_table())
        return cast("Store", Alternating(open_store(url, clock=clock), open_store(url, clock=clock)))

    run_state_machine_as_test(machine(open_two, histories=5))


def test_a_refusal_is_never_based_on_a_remembered_claim(
    store: DynamoStore, dynamo_server: DynamoServer, table: str, clock: ManualClock
) -> None:
    """A process that remembers a lost claim reads the record before it refuses the new owner's settlement."""
    granted(store)
    clock.advance(LEASE)
    with closing(open_store(dynamo_server.url(table), clock=clock)) as another:
        successor = granted(another, "bob")
    assert complete(store, successor)


class TestSkew:
    """The clocks of machines differ: times that another machine wrote are compared with a margin."""

    @pytest.fixture
    def behind(self) -> ManualClock:
        """A clock that is a second behind."""
        return ManualClock(ManualClock().now - SECOND)

    @pytest.fixture
    def slow(self, dynamo_server: DynamoServer, table: str, behind: ManualClock) -> Iterator[Store]:
        with closing(open_store(dynamo_server.url(table, skew="2s"), clock=behind)) as opened:
            yield opened

    @pytest.fixture
    def fast(self, dynamo_server: DynamoServer, table: str, clock: ManualClock) -> Iterator[Store]:
        with closing(open_store(dynamo_server.url(table, skew="2s"), clock=clock)) as opened:
            yield opened

    def test_takeover(self, slow: Store, fast: Store, clock: ManualClock) -> None:
        """The lease of another owner ends when it has ended by the local clock and the margin has passed."""
        record = granted(slow)
        clock.now = record.lease_until + 2 * SECOND - 1
        verdict = claim(fast, "bob")
        assert isinstance(verdict, InFlight)
        assert verdict.lease_left == 1
        clock.advance(1)
        assert granted(fast, "bob").fence == record.fence + 1

    def test_the_owner(self, slow: Store, behind: ManualClock) -> None:
        """For its owner a lease is not extended by the margin."""
        record = granted(slow)
        behind.now = record.lease_until - 1
        verdict = claim(slow)
        assert isinstance(verdict, Granted)
        assert (verdict.record, verdict.lease_left) == (record, 1)
        behind.advance(1)
        again = granted(slow)
        assert (again.fence, again.lost) == (record.fence + 1, 1)

    def test_take(self, slow: Store, fast: Store, clock: ManualClock) -> None:
        """An event that another dispatcher took is free only after the margin."""
        assert bury(slow, granted(slow))
        assert redrive(slow)
        entry = take(slow)
        assert entry is not None
        clock.now = entry.record.lease_until + 2 * SECOND - 1
        assert take(fast, "another") is None
        clock.advance(1)
        assert take(fast, "another") is not None

    def test_expiry(self, slow: Store, fast: Store, clock: ManualClock) -> None:
        """A record expires only after the margin, for claims, settlements and reads."""
        record = granted(slow)
        assert complete(slow, record)
        expires_at = stored(slow).expires_at  # type: ignore[union-attr]
        assert expires_at is not None
        clock.now = expires_at + 2 * SECOND - 1
        assert isinstance(claim(fast, "bob"), Duplicate)
        assert complete(fast, record)
        assert stored(fast) is not None
        clock.advance(1)
        assert stored(fast) is None
        assert granted(fast, "bob").attempts == 1

    def test_documents(self, slow: Store, fast: Store, clock: ManualClock) -> None:
        """A document expires only after the margin, for loads and swaps."""
        where = Address(NAMESPACE, KEY)
        assert slow.swap([Change(NAMESPACE, KEY, 0, b"one", LEASE)]) == [True]
        (document,) = slow.load([where])
        clock.now = document.version + LEASE + 2 * SECOND - 1
        assert fast.load([where]) == [document]
        assert fast.swap([Change(NAMESPACE, KEY, 0, b"new", LEASE)]) == [False]
        clock.advance(1)
        assert fast.load([where]) == [Document()]
        assert fast.swap([Change(NAMESPACE, KEY, document.version, b"two", LEASE)]) == [False]
        assert fast.swap([Change(NAMESPACE, KEY, 0, b"new", LEASE)]) == [True]

    def test_late_settle(self, slow: Store, fast: Store, clock: ManualClock) -> None:
        """After a takeover the first owner cannot settle, even if its clock is behind."""
        record = granted(slow)
        clock.now = record.lease_until + 2 * SECOND
        successor = granted(fast, "bob")
        assert complete(slow, record) is False
        assert stored(fast) == successor


class TestLostReplies:
    """A request is applied and its reply is lost. The retry gets the answer of the first request."""

    @pytest.fixture
    def proxy(self, dynamo_server: DynamoServer) -> Iterator[Proxy]:
        with closing(Proxy(dynamo_server.port)) as proxy:
            yield proxy

    @pytest.fixture
    def lossy(self, dynamo_server: DynamoServer, table: str, proxy: Proxy) -> Iterator[Store]:
        with closing(open_store(dynamo_server.url(table, port=proxy.port), clock=ManualClock())) as opened:
            yield opened

    def test_claim(self, lossy: Store, proxy: Proxy) -> None:
        """The retry of a claim is granted at attempt 1."""
        proxy.lose = b".PutItem"
        record = granted(lossy)
        assert (record.attempts, stored(lossy)) == (1, record)
        assert proxy.lost == 1

    def test_takeover(self, lossy: Store, proxy: Proxy) -> None:
        """The retry of a takeover counts one attempt and raises the fence by one."""
        first = granted(lossy)
        assert release(lossy, first)
        proxy.lose = b"stamp = :stamp"
        second = granted(lossy, "bob")
        assert (second.attempts, second.fence) == (2, first.fence + 1)
        assert stored(lossy) == second
        assert proxy.lost == 1

    def test_complete(self, lossy: Store, proxy: Proxy) -> None:
        """The retry of a completion is accepted, and the completion is written once."""
        record = granted(lossy)
        proxy.lose = b".PutItem"
        assert complete(lossy, record)
        assert proxy.lost == 1
        assert isinstance(claim(lossy, "bob"), Duplicate)

    def test_redrive_and_take(self, lossy: Store, proxy: Proxy) -> None:
        """The retry of a redrive is accepted although the record is released now; a retried take is granted."""
        assert bury(lossy, granted(lossy))
        proxy.lose = b".PutItem"
        assert redrive(lossy)
        proxy.lose = b".PutItem"
        entry = take(lossy)
        assert entry is not None
        assert entry.record.attempts == 1
        assert proxy.lost == 2

    def test_reset(self, lossy: Store, proxy: Proxy) -> None:
        """The retry of a reset is accepted although the record no longer exists."""
        granted(lossy)
        proxy.lose = b".DeleteItem"
        assert reset(lossy)
        assert proxy.lost == 1
        assert reset(lossy) is False

    def test_swap(self, lossy: Store, proxy: Proxy) -> None:
        """The retry of a swap is accepted although the version has changed."""
        proxy.lose = b".PutItem"
        assert lossy.swap([Change(NAMESPACE, KEY, 0, b"one", RETENTION)]) == [True]
        assert proxy.lost == 1


def test_a_record_that_keeps_changing(store: DynamoStore, wire: Wire, dynamo_server: DynamoServer) -> None:
    """If a record changes before every write, the store gives up after a bounded number of tries."""
    record = granted(store)

    def change(action: str) -> None:
        if action == "PutItem":
            item = dynamo_server.client.scan(TableName=store._client.table)["Items"][0]
            item["stamp"] = {"B": os.urandom(12)}
            dynamo_server.client.put_item(TableName=store._client.table, Item=item)

    wire.before = change
    with pytest.raises(StoreUnavailable, match="changed 32 times before it could be written"):
        complete(store, record)
    assert len(wire.sent) < 100
