"""The DynamoDB store against the contract of stores."""

import base64
import itertools
import os

import pytest
from msgspec.structs import replace

from oncegate import Event, Gate, keys, open_store
from oncegate.claims import (
    COMPLETED,
    RELEASED,
    Claim,
    Complete,
    Granted,
    Redrive,
)
from oncegate.clocks import Clock
from oncegate.errors import StoreError, StoreRefused
from oncegate.ingress.http_answers import answer_of
from oncegate.stores.base import Store
from oncegate.stores.dynamodb import DynamoStore
from oncegate.testing import SharedStoreContract
from oncegate.testing.requests import (
    RETENTION,
    claim_of,
)
from tests.stores.dynamo_server import DynamoServer, EmulatorForks, Wire, reply


class TestDynamoStore(SharedStoreContract):
    # Each key is a separate request, and the emulator answers a few hundred requests per second.
    histories = 8
    crowd = 100
    rounds = 6
    processes = EmulatorForks()
    counts_expired_dead_letters = True

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


def test_forks(store: DynamoStore) -> None:
    """After a fork the parent and the child both work, each with its own connections and threads."""
    batch = [claim_of(key=bytes([number]) * 16) for number in range(8)]
    store.claim(batch)
    child = os.fork()
    if child == 0:
        answers = store.claim([claim_of("ann", key=request.key) for request in batch])
        os._exit(0 if all(isinstance(answer, Granted) for answer in answers) else 1)
    store.claim(batch)
    _, status = os.waitpid(child, 0)
    assert status == 0


class TestPartialBatches:
    """Each key of a batch is a separate write: when one fails, others may have been made."""

    @pytest.fixture
    def batch(self) -> list[Claim]:
        return [claim_of(key=bytes([number]) * 16) for number in range(10)]

    @pytest.fixture
    def refused(self, wire: Wire) -> None:
        """The fifth request is refused."""
        numbers = itertools.count(1)
        wire.before = lambda _action: reply(400, "ValidationException", "no") if next(numbers) == 5 else None

    def test_granted_claims_are_released(self, store: DynamoStore, batch: list[Claim], refused: None) -> None:
        """Claims that were granted before the failure are free at once, without counting an attempt."""
        with pytest.raises(StoreError, match="ValidationException"):
            store.claim(batch)
        assert {entry.record.state for entry in store.browse()} == {RELEASED}
        again = [claim_of("bob", key=claim.key) for claim in batch]
        assert [(type(verdict), verdict.record.attempts) for verdict in store.claim(again)] == [(Granted, 1)] * 10

    def test_marked_claims_stay(self, store: DynamoStore, batch: list[Claim], refused: None) -> None:
        """Claims that were marked as completed before the failure stay completed: at most once."""
        with pytest.raises(StoreError):
            store.claim([replace(claim, marks=True) for claim in batch])
        assert {entry.record.state for entry in store.browse()} == {COMPLETED}

    def test_settlements_stay(self, store: DynamoStore, wire: Wire, batch: list[Claim]) -> None:
        """Settlements that were made before the failure stay, and the retry of the batch is accepted."""
        records = [verdict.record for verdict in store.claim(batch)]
        completions = [
            Complete(claim.namespace, claim.key, record.owner, record.fence, RETENTION)
            for claim, record in zip(batch, records, strict=True)
        ]
        numbers = itertools.count(1)
        wire.before = lambda _action: reply(400, "ValidationException", "no") if next(numbers) == 5 else None
        with pytest.raises(StoreError):
            store.settle(completions)
        assert store.settle(completions) == [True] * 10


def test_too_large_among_others(store: DynamoStore) -> None:
    """An event that is too large fails, the other events of its batch are settled, and the breaker stays closed."""
    gate = Gate(store, max_attempts=1, breaker="10s")
    huge = base64.b64encode(os.urandom(450_000)).decode()

    def handler(event: Event) -> None:
        if "huge" in event.body:
            raise ValueError("boom")

    for turn in range(3):
        batch = [{"id": f"{turn}-a"}, {"id": f"{turn}-b", "huge": huge}, {"id": f"{turn}-c", "type": huge}]
        first, second, third = gate.run_batch(batch, handler)
        assert (first.status, third.status) == ("processed", "processed")
        assert "larger than the 400 kB" in (second.error or "")
    assert gate.counts.get("breaker.opened", 0) == 0


@pytest.mark.parametrize("body", [b'{"id": 1', b'{"no id": "'], ids=["unreadable", "without a key"])
def test_a_refused_body_that_is_too_large(store: DynamoStore, body: bytes) -> None:
    """A refused body that is too large for an item is truncated and stored as a dead letter, each time and also in a
    batch. A redriven truncated body never runs, even if the stored part is a valid event."""
    gate = Gate(store, key=keys.event_id, max_attempts=1)
    whole = b'{"id": 1}' + b" " * 300_000  # the stored part is a valid event
    for large in (body + base64.b64encode(os.urandom(450_000)) + b'"}', whole + os.urandom(450_000)):
        for _ in range(2):
            refused = gate.run_batch([large, b"{"], print)
            assert [outcome.status for outcome in refused] == ["invalid", "invalid"]
            outcomes = gate.keep(refused)
            assert [outcome.status for outcome in outcomes] == ["invalid", "invalid"]
            assert [outcome.cut for outcome in outcomes] == [True, False]
            assert answer_of(outcomes, discreet=True).code == 413
            assert answer_of(outcomes[1:]).code == 400
        kept = outcomes[0].kept
        assert kept is not None
        (entry,) = store.browse("default", key=kept.digest)
        assert entry.record.error is not None
        assert entry.record.error.startswith(f"truncated: only 262144 of its {len(large)} bytes are stored")
        assert entry.record.payload == large[:262144] + b"\n(truncated)"
        assert store.redrive([Redrive("default", kept.digest)]) == [True]
        ran: list[Event] = []
        (again,) = gate.run_waiting(ran.append)
        assert (again.status, ran) == ("buried", [])


def test_closed(dynamo_server: DynamoServer, table: str) -> None:
    """A call on a closed store says that the store was closed."""
    opened = open_store(dynamo_server.url(table))
    opened.close()
    with pytest.raises(StoreRefused, match="was closed"):
        opened.claim([claim_of(), claim_of(key=b"x" * 16)])
