"""The DynamoDB store against the contract, what it costs, and what is in its table."""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from oncegate import open_store
from oncegate.claims import About, Address, Complete, Duplicate, Granted, InFlight
from oncegate.clocks import Clock
from oncegate.stores.base import Change, Document, Store
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import ManualClock, SharedStoreContract
from oncegate.testing.asking import (
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
    owner,
    redrive,
    release,
    renew,
    reset,
    stored,
    take,
)
from tests.stores.dynamo_server import DynamoServer, Wire

SECOND = 1_000_000


class TestDynamoStore(SharedStoreContract):
    # Every key is a request of its own, and the emulator answers a few hundred of them in a second.
    histories = 20
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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def table(dynamo_server: DynamoServer) -> str:
    return dynamo_server.new_table()


@pytest.fixture
def store(dynamo_server: DynamoServer, table: str, clock: ManualClock) -> Iterator[DynamoStore]:
    with closing(open_store(dynamo_server.url(table), clock=clock)) as opened:
        assert isinstance(opened, DynamoStore)
        yield opened


@pytest.fixture
def wire(store: DynamoStore) -> Wire:
    return Wire(store)


def items(server: DynamoServer, table: str) -> list[dict[str, Any]]:
    return list(server.client.scan(TableName=table)["Items"])


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
        about = About("plain", "", None, time, "")
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
        assert granted(slow).attempts == 2

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


def test_sliding_and_resetting(store: DynamoStore, wire: Wire) -> None:
    """A sliding duplicate is written with a second request; a reset reads what it deletes."""
    assert complete(store, granted(store, about=ABOUT))
    wire.sent.clear()
    claim(store, "bob", slides=10 * RETENTION, retention=2 * RETENTION)
    assert wire.sent == ["PutItem", "PutItem"]
    assert reset(store)
    assert wire.sent[2:] == ["GetItem", "DeleteItem"]
