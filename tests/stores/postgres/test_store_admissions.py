"""An expired claim that its worker renews while a receiver admits the same key: one of the two wins.

An admission first reads a record and then locks it. To force a renewal in between, these tests add a statement to the
shipped function at that point, which waits for a lock that the test holds.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg
import pytest

from oncegate import open_store
from oncegate.claims import Admit, Admitted, InFlight, Record, Renew
from oncegate.stores.postgres import PostgresStore, arrays
from oncegate.stores.postgres.arrays import admission_arrays, settlement_arrays
from oncegate.testing import ManualClock
from oncegate.testing.requests import ABOUT, KEY, LEASE, NAMESPACE, admit, granted, owner, renew, stored
from tests.stores.postgres_server import PostgresServer
from tests.stores.servers import until

_LOCK = 20_261_116

_AFTER_READ = "        IF answer IN ('new', 'attach') THEN\n"

_WAIT = f"            PERFORM pg_advisory_xact_lock({_LOCK});\n"

_SAME_LEASE = " AND c.lease_until = was.lease_until\n"

Opener = Callable[..., "ExpiredClaim"]


class ExpiredClaim(NamedTuple):
    """A store, and the record of a claim in it whose lease has expired."""

    store: PostgresStore
    record: Record
    clock: ManualClock


@pytest.fixture
def open_expired(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens a store in a schema whose functions are the shipped ones with some text replaced."""
    stores = []

    def opener(schema: str, **changes: str) -> ExpiredClaim:
        for old, new in {_AFTER_READ: f"{_AFTER_READ}{_WAIT}", **changes}.items():
            assert arrays._TEXT.count(old) == 1, old
            monkeypatch.setattr(arrays, "_TEXT", arrays._TEXT.replace(old, new))
        clock = ManualClock()
        store = open_store(f"{postgres.url()}?oncegate_schema={schema}", clock=clock)
        assert isinstance(store, PostgresStore)
        stores.append(store)
        record = granted(store)
        clock.advance(LEASE)
        return ExpiredClaim(store, record, clock)

    yield opener
    for store in stores:
        store.close()


def renew_after_the_read(server: PostgresServer, expired: ExpiredClaim) -> tuple[Any, bool]:
    """Commit a renewal between the read and the lock of an admission. Return the answers of both."""
    with server.connect() as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        admission = pool.submit(admit, expired.store, "bob")
        waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
        until(lambda: bool(holder.execute(waiting, (_LOCK,)).fetchall()), "the admission to have read")
        renewed = renew(expired.store, expired.record)
        holder.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))
        return admission.result(30), renewed


def test_a_renewal_after_the_read(postgres: PostgresServer, open_expired: Opener) -> None:
    """An admission notices a renewal after its read: it answers InFlight, and the worker keeps the claim."""
    expired = open_expired("looked")
    answer, renewed = renew_after_the_read(postgres, expired)
    assert (type(answer), renewed) == (InFlight, True)
    record = stored(expired.store)
    assert record is not None
    assert (record.state, record.owner, record.payload) == ("P", expired.record.owner, None)
    assert record.lease_until == expired.clock.now + LEASE


def test_without_the_second_check_the_renewal_is_lost(postgres: PostgresServer, open_expired: Opener) -> None:
    """Without the second check of the lease, the renewal succeeds and the worker loses its claim all the same."""
    expired = open_expired("overlooking", **{_SAME_LEASE: "\n"})
    answer, renewed = renew_after_the_read(postgres, expired)
    assert (type(answer), renewed) == (Admitted, True)
    assert not renew(expired.store, expired.record)


def test_an_admission_during_a_renewal(postgres: PostgresServer, open_expired: Opener) -> None:
    """An admission during an uncommitted renewal waits for its commit, and then answers InFlight."""
    store, record, clock = open_expired("renewing")
    renewal = settlement_arrays([Renew(NAMESPACE, KEY, record.owner, record.fence, LEASE)])
    with postgres.connect() as db, ThreadPoolExecutor(1) as pool:
        with db.transaction():
            store._execute(db, "settle", (clock.now, *renewal))
            admission = pool.submit(admit, store, "bob")
            until(lambda: is_waiting(db, "renewing"), "the admission to wait")
        assert isinstance(admission.result(30), InFlight)
    assert renew(store, record)


def test_a_renewal_during_an_admission(postgres: PostgresServer, open_expired: Opener) -> None:
    """A renewal during an uncommitted admission waits for its commit, and then is refused."""
    store, record, clock = open_expired("admitting")
    admission = admission_arrays([Admit(NAMESPACE, KEY, owner("bob"), record.payload_hash, b"one", ABOUT)], [0])
    with postgres.connect() as db, ThreadPoolExecutor(1) as pool:
        with db.transaction():
            ((_, verdict, *_),) = store._execute(db, "admit", (clock.now, *admission))
            renewal = pool.submit(renew, store, record)
            until(lambda: is_waiting(db, "admitting"), "the renewal to wait")
        assert (verdict, renewal.result(30)) == ("A", False)


def is_waiting(db: psycopg.Connection[Any], schema: str) -> bool:
    """Whether a statement waits for a lock of another transaction in a schema."""
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    db.execute("SELECT pg_stat_clear_snapshot()")  # within a transaction the statistics do not change otherwise
    return bool(db.execute(waiting, (f"%{schema}%",)).fetchall())
