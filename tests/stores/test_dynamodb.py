"""The DynamoDB store against the contract, its table, and clocks that differ."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest
from hypothesis.stateful import run_state_machine_as_test

from oncegate import open_store
from oncegate.claims import Address, Duplicate, EventSummary, Granted, InFlight
from oncegate.clocks import Clock
from oncegate.stores.base import Change, Document, Store
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import ManualClock, SharedStoreContract
from oncegate.testing.model_comparison import machine
from oncegate.testing.requests import (
    KEY,
    LEASE,
    NAMESPACE,
    bury,
    claim,
    complete,
    granted,
    owner,
    redrive,
    stored,
    take,
)
from tests.stores.dynamo_server import DynamoServer

SECOND = 1_000_000


class TestDynamoStore(SharedStoreContract):
    # Every key is a request of its own, and the emulator answers a few hundred of them in a second.
    histories = 12
    crowd = 100

    @pytest.fixture(autouse=True)
    def _server(self, dynamo_server: DynamoServer) -> None:
        self.server = dynamo_server
        self.table = dynamo_server.new_table()

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url(), clock=clock)

    def open_empty(self, clock: Clock) -> Store:
        self.table = self.server.new_table()
        return self.open(clock)

    def url(self) -> str:
        return self.server.url(self.table)


class Alternating:
    """Two stores on one table, as two processes have them, that change it in turn."""

    def __init__(self, *stores: Store) -> None:
        self._stores = stores
        self._turn = itertools.cycle(stores)

    def __getattr__(self, verb: str) -> Any:
        asked = self._stores[0] if verb in ("browse", "dead_letters", "load") else next(self._turn)
        return getattr(asked, verb)

    def close(self) -> None:
        for store in self._stores:
            store.close()


def test_what_is_remembered_may_be_wrong(dynamo_server: DynamoServer) -> None:
    """Two processes that take turns agree with the model: what one remembers of its claims is a guess, no more."""

    def open_two(clock: Clock) -> Store:
        url = dynamo_server.url(dynamo_server.new_table())
        return cast("Store", Alternating(open_store(url, clock=clock), open_store(url, clock=clock)))

    run_state_machine_as_test(machine(open_two, histories=8))


def test_a_no_is_never_a_guess(store: DynamoStore, dynamo_server: DynamoServer, table: str, clock: ManualClock) -> None:
    """A process that remembers its own, lost claim looks again before it refuses what another's proof asks for."""
    granted(store)
    clock.advance(LEASE)
    with closing(open_store(dynamo_server.url(table), clock=clock)) as another:
        successor = granted(another, "bob")
    assert complete(store, successor)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(dynamo_server: DynamoServer, table: str, clock: ManualClock) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(table), clock=clock)) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


def items(server: DynamoServer, table: str) -> list[dict[str, Any]]:
    return list(server.client.scan(TableName=table)["Items"])


class TestTable:
    def test_readable(self, store: DynamoStore, dynamo_server: DynamoServer, table: str, clock: ManualClock) -> None:
        """What explains a record can be read in the table by people and by queries of theirs."""
        assert complete(store, granted(store), b'{"case":7}')
        (item,) = items(dynamo_server, table)
        texts = {name: value["S"] for name, value in item.items() if "S" in value}
        assert len(texts.pop("id")) == 32
        assert texts == {
            "namespace": NAMESPACE,
            "key": KEY.hex(),
            "status": "completed",
            "source": "plain",
            "type": "call.ended",
            "conversationId": "conversation-1",
            "timestamp": "2025-12-12T15:02:32.433000+00:00",
            "deliveryId": "evt-1",
            "firstSeen": "2027-01-15T08:00:00.000000+00:00",
            "processedAt": "2027-01-15T08:00:00.000000+00:00",
            "result": '{"case":7}',
        }

    def test_only_few_are_in_the_index(self, store: DynamoStore, dynamo_server: DynamoServer, table: str) -> None:
        """A record is in the index while it is a dead letter or waits with its payload, and at no other time."""

        def shelf() -> Any:
            (item,) = items(dynamo_server, table)
            return item["shelf"]["S"] if "shelf" in item else None

        record = granted(store)
        assert shelf() is None
        bury(store, record)
        assert shelf() == "dead"
        redrive(store)
        assert shelf() == "waiting"
        entry = take(store)
        assert shelf() == "waiting"
        assert entry is not None
        complete(store, entry.record)
        assert shelf() is None

    @pytest.mark.parametrize("past", [0, 1, 999_999])
    def test_swept_no_earlier_than_expired(
        self, store: DynamoStore, dynamo_server: DynamoServer, table: str, clock: ManualClock, past: int
    ) -> None:
        """The second in which DynamoDB may sweep a record is not before the microsecond in which it expires."""
        clock.advance(past + 1)
        record = granted(store)
        (item,) = items(dynamo_server, table)
        assert record.expires_at is not None
        assert 0 <= int(item["expiresAt"]["N"]) * SECOND - record.expires_at < SECOND

    def test_what_waits_is_never_swept(self, store: DynamoStore, dynamo_server: DynamoServer, table: str) -> None:
        """A record that holds an unprocessed payload has no expiry that the sweep could see."""
        assert bury(store, granted(store))
        assert redrive(store)
        (item,) = items(dynamo_server, table)
        assert "expiresAt" not in item
        assert "expires" not in item

    def test_created(self, dynamo_server: DynamoServer, table: str) -> None:
        """A table is created for payment by request, swept by `expiresAt`, with an index of keys alone."""
        with closing(open_store(dynamo_server.url(table))):
            described = dynamo_server.client.describe_table(TableName=table)["Table"]
            swept = dynamo_server.client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
        assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        assert [index["Projection"]["ProjectionType"] for index in described["GlobalSecondaryIndexes"]] == ["KEYS_ONLY"]
        assert swept == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expiresAt"}

    @pytest.mark.parametrize("name", ["", "a\0b", "\1", "a#b", "ü\N{SNOWMAN}", "n" * 900])
    def test_any_namespace(self, store: DynamoStore, name: str) -> None:
        """Any text is a namespace: its records are found, listed and kept apart from those of others."""
        assert bury(store, granted(store, namespace=name), namespace=name)
        assert bury(store, granted(store, namespace=name + "\1"), namespace=name + "\1")
        assert [entry.namespace for entry in store.browse(name)] == [name]
        assert [entry.namespace for entry in store.dead_letters(name)] == [name]
        assert [entry.namespace for entry in store.dead_letters()] == sorted([name, name + "\1"])

    @pytest.mark.parametrize("time", [-(10**18), -1, 0, 1, 10**19])
    def test_any_time(self, store: DynamoStore, time: int) -> None:
        """When an event happened comes back as it was, also if no calendar has it."""
        about = EventSummary("plain", "", None, time, "")
        granted(store, about=about)
        assert stored(store).about == about  # type: ignore[union-attr]


class TestSkew:
    """Machines' clocks differ; what one writes is judged by another with a margin for that."""

    @pytest.fixture
    def behind(self) -> ManualClock:
        """The clock of a machine that is a second behind."""
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
        """Another's lease is over when it has ended by one's own clock and the margin has passed as well."""
        record = granted(slow)
        clock.now = record.lease_until + 2 * SECOND - 1
        verdict = claim(fast, "bob")
        assert isinstance(verdict, InFlight)
        assert verdict.lease_left == 1
        clock.advance(1)
        assert granted(fast, "bob").fence == record.fence + 1

    def test_one_s_own(self, slow: Store, behind: ManualClock) -> None:
        """To its owner a lease is never longer than it asked for."""
        record = granted(slow)
        behind.now = record.lease_until - 1
        verdict = claim(slow)
        assert isinstance(verdict, Granted)
        assert (verdict.record, verdict.lease_left) == (record, 1)
        behind.advance(1)
        again = granted(slow)
        assert (again.fence, again.lost) == (record.fence + 1, 1)

    def test_dispatchers(self, slow: Store, fast: Store, clock: ManualClock) -> None:
        """What another dispatcher took is left alone for the margin too."""
        assert bury(slow, granted(slow))
        assert redrive(slow)
        entry = take(slow)
        assert entry is not None
        clock.now = entry.record.lease_until + 2 * SECOND - 1
        assert take(fast, "another") is None
        clock.advance(1)
        assert take(fast, "another") is not None

    def test_expiry(self, slow: Store, fast: Store, clock: ManualClock) -> None:
        """A record is remembered for the margin longer, by claims, by settling and to those who look."""
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
        """A document is there for the margin longer, to be loaded and to be swapped."""
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
        """What a takeover has decided stands, however far behind the first owner's clock is."""
        record = granted(slow)
        clock.now = record.lease_until + 2 * SECOND
        successor = granted(fast, "bob")
        assert complete(slow, record) is False
        assert stored(fast) == successor


def test_what_the_gate_keeps_fits(store: DynamoStore) -> None:
    """The largest result that a gate keeps by default fits, even if it cannot be compressed."""
    result = b"".join(owner(str(number)) for number in range(16_384))
    assert len(result) == 256 * 1024
    assert complete(store, granted(store), result)
    assert stored(store).result == result  # type: ignore[union-attr]
