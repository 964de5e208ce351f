"""The Postgres store against the contract of stores, and what is specific to Postgres."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import psycopg
import pytest
from msgspec.structs import replace

from oncegate import Event, Gate, open_store
from oncegate.claims import Complete, Redrive, Renew
from oncegate.clocks import Clock
from oncegate.errors import StoreError
from oncegate.stores.base import Store
from oncegate.stores.postgres import PostgresStore
from oncegate.stores.postgres import store as module
from oncegate.stores.postgres.connections import Connections
from oncegate.stores.postgres.settings import read_url
from oncegate.testing import InboxContract, ManualClock, SharedStoreContract
from oncegate.testing.claim_contract import ClaimContract, TakeContract
from oncegate.testing.operator_contract import DocumentContract, OperatorContract
from oncegate.testing.race_contract import race
from oncegate.testing.requests import (
    ABOUT,
    LEASE,
    NAMESPACE,
    RETENTION,
    admit,
    claim_of,
    complete,
    granted,
    owner,
    take,
)
from oncegate.testing.settle_contract import RenewContract, SettleContract
from tests import FORKS
from tests.stores.postgres_server import PostgresServer


class TestPostgresStore(InboxContract, SharedStoreContract):
    processes = FORKS
    grants = False
    histories = 60

    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.server = postgres
        postgres.empty("contract")

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url(), clock=clock)

    def open_empty(self, clock: Clock) -> Store:
        self.server.empty("contract")
        return self.open(clock)

    def url(self) -> str:
        return f"{self.server.url()}?oncegate_schema=contract"

    def kept(self, store: Store) -> int:
        return self.server.count("contract.claims")


class TestBehindAPooler(
    InboxContract, ClaimContract, TakeContract, SettleContract, RenewContract, OperatorContract, DocumentContract
):
    """A pooler in transaction mode runs each transaction in any session."""

    grants = False

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, postgres: PostgresServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        """A store whose sessions are reset after each use, so that nothing in a session carries over."""
        give_back = Connections._give_back

        def reset_session(self: Connections, connection: psycopg.Connection) -> None:
            prepared = connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
            assert prepared == []
            connection.execute("DISCARD ALL")
            give_back(self, connection)  # type: ignore[arg-type]

        postgres.empty("pooled")
        monkeypatch.setattr(Connections, "_give_back", reset_session)
        with closing(open_store(f"{postgres.url()}?oncegate_schema=pooled", clock=clock)) as store:
            yield store


def test_concurrent_takes_of_one_entity(postgres: PostgresServer) -> None:
    """While a transaction takes an event, no other event of its entity is granted, not even an earlier event that was
    admitted in the meantime."""
    postgres.empty("lines")
    with closing(PostgresStore(read_url(f"{postgres.url()}?oncegate_schema=lines"))) as store:
        admit(store, key=b"2" * 16, about=replace(ABOUT, occurred_at=2))
        with postgres.connect() as taking:
            taking.autocommit = False
            taken = "SELECT key FROM lines.take_in_order(NULL, 'contract', '{one}', '{1000000}')"
            assert taking.execute(taken).fetchall() == [(b"2" * 16,)]
            admit(store, "bob", key=b"1" * 16, about=replace(ABOUT, occurred_at=1))
            assert take(store, in_order=True) is None
            taking.rollback()
        first = take(store, in_order=True)
        assert first is not None
        assert first.key == b"1" * 16


def test_time_goes_back_by_at_most_half_a_second(postgres: PostgresServer) -> None:
    """When the server's clock is set back, time advances by a microsecond per call until the clock has caught up."""
    url = f"{postgres.url()}?oncegate_schema=clocks"
    clock = ManualClock(2_000_000_000_000_000)
    with closing(open_store(url, clock=clock)) as store:
        noted = granted(store, key=b"1" * 16)
        clock.advance(499_999)
        granted(store, key=b"2" * 16)
        clock.advance(-3_600_000_000)
        assert granted(store, key=b"3" * 16).fence == noted.fence + 1
        clock.advance("10s")
        assert granted(store, key=b"4" * 16).fence == noted.fence + 2
        clock.advance("2h")
        assert granted(store, key=b"5" * 16).fence == clock.now


def test_a_batch_sweeps_a_bounded_number_of_rows(postgres: PostgresServer) -> None:
    """One batch after a long idle time deletes at most its share of the expired rows."""
    clock = ManualClock()
    with closing(open_store(f"{postgres.url()}?oncegate_schema=swept", clock=clock)) as store:
        store.claim([claim_of(key=number.to_bytes(16)) for number in range(5_000)])
        clock.advance("2h")
        store.claim([claim_of(key=number.to_bytes(16)) for number in range(5_000, 5_256)])
        assert 5_256 - 512 <= postgres.count("swept.claims") < 5_256


def test_an_entity_too_long_for_an_index(postgres: PostgresServer) -> None:
    """An event with very long texts is admitted, buried and redriven like any other, in the order of its own entity."""
    begins = os.urandom(3_000).hex()
    with closing(open_store(f"{postgres.url()}?oncegate_schema=long")) as store:
        gate = Gate(store, max_attempts=1)
        long = [{"id": f"long-{name}", "type": begins, "conversationId": begins + name} for name in "ab"]
        outcomes = gate.admit([*long, {"id": "short", "conversationId": "c-1"}])
        assert [outcome.status for outcome in outcomes] == ["accepted"] * 3
        assert len(gate.run_waiting(lambda event: None)) == 3
        entities = {entry.record.about.entity for entry in store.browse()}
        assert len(entities) == 3
        assert max(len(entity or "") for entity in entities) == 256
        buried = gate.run({"id": "poison", "conversationId": begins}, boom)
        assert buried.status == "buried"
        assert buried.key is not None
        assert gate.run({"id": "poison", "conversationId": begins}, boom).kind == "redelivery"
        assert store.redrive([Redrive("default", buried.key.digest)]) == [True]


def boom(event: Event) -> None:
    raise ValueError("boom")


def test_the_readable_view(postgres: PostgresServer) -> None:
    """The view `readable` shows keys in hex and times as timestamps."""
    with closing(open_store(f"{postgres.url()}?oncegate_schema=read")) as store:
        assert isinstance(store, PostgresStore)
        complete(store, granted(store, key=b"\x01" * 16), b'{"a":1}', key=b"\x01" * 16)
    with postgres.connect() as db:
        row = db.execute("SELECT key, state, type, result, completed_at > now() - interval '1m' FROM read.readable")
        assert row.fetchone() == ("01" * 16, "C", "call.ended", '{"a":1}', True)


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    postgres.empty("faults")
    return f"{postgres.url()}?oncegate_schema=faults"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as store:
        yield store


def use_all_keys(store: Store, barrier: threading.Barrier, order: int) -> set[str]:
    """Claim, renew and complete the same keys as the other threads, some keys twice. Return the errors."""
    failures = set()
    for turn in range(3):
        keys = [(turn * 1_000 + number).to_bytes(16) for number in [*range(400), *range(0, 400, 5)]][::order]
        fences = {entry.key: entry.record.fence for entry in store.browse(limit=10_000)}
        proofs = [(NAMESPACE, key, owner("one"), fences.get(key, 0)) for key in keys]
        for call in (
            partial(store.claim, [claim_of("one", key=key) for key in keys]),
            partial(store.renew, [Renew(*proof, LEASE) for proof in proofs]),
            partial(store.settle, [Complete(*proof, RETENTION) for proof in proofs]),
        ):
            barrier.wait(60)
            try:
                call()
            except StoreError as error:
                failures.add(str(error))
    return failures


def errors_of_racing_threads(store: Store) -> set[str]:
    """The errors of threads that use the same keys at once: first with absent records, then with existing ones."""
    barrier = threading.Barrier(4)
    racers: list[Callable[[], set[str]]] = [partial(use_all_keys, store, barrier, order) for order in (1, -1, 1, -1)]
    return set().union(*race(racers), *race(racers))


def test_no_deadlock(store: Store) -> None:
    """Threads that claim, renew and settle the same keys in any order do not deadlock."""
    assert errors_of_racing_threads(store) == set()


def test_unsorted_batches_deadlock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the sorting of batches the same threads deadlock: the test above can fail."""
    monkeypatch.setattr(module, "split_rounds", lambda batch: [list(range(len(batch)))])
    assert "deadlock detected" in " ".join(errors_of_racing_threads(store))
