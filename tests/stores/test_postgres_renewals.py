"""A claim whose lease is over, renewed by its worker and admitted by a receiver at once: on Postgres one of them wins.

An admission first looks at a record and then locks it. To force a renewal in between, the shipped function gets one
statement more there, which waits for a lock that the test holds.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg
import pytest

from oncegate import open_store
from oncegate.claims import Admit, Admitted, InFlight, Record, Renew
from oncegate.stores.postgres import PostgresStore, arrays
from oncegate.stores.postgres.arrays import admissions_of, settlements_of
from oncegate.testing import ManualClock
from oncegate.testing.requests import ABOUT, KEY, LEASE, NAMESPACE, admit, granted, owner, renew, stored
from tests.stores.postgres_server import PostgresServer
from tests.stores.servers import until

_LOCK = 20_261_116
_LOOKED = "        IF told IN ('new', 'attach') THEN\n"
_WAIT = f"            PERFORM pg_advisory_xact_lock({_LOCK});\n"
_SAME_LEASE = " AND c.lease_until = was.lease_until\n"

Opened = Callable[..., "Lapsed"]


class Lapsed(NamedTuple):
    """A store, and the record of a claim in it whose lease is over."""

    store: PostgresStore
    record: Record
    clock: ManualClock


@pytest.fixture
def opened(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Open a store in a schema whose functions are the shipped ones, but for these pieces of their text."""
    stores = []

    def open_lapsed(schema: str, **changes: str) -> Lapsed:
        for old, new in {_LOOKED: f"{_LOOKED}{_WAIT}", **changes}.items():
            assert arrays._TEXT.count(old) == 1, old
            monkeypatch.setattr(arrays, "_TEXT", arrays._TEXT.replace(old, new))
        clock = ManualClock()
        store = open_store(f"{postgres.url()}?oncegate_schema={schema}", clock=clock)
        assert isinstance(store, PostgresStore)
        stores.append(store)
        record = granted(store)
        clock.advance(LEASE)
        return Lapsed(store, record, clock)

    yield open_lapsed
    for store in stores:
        store.close()


def renewed_after_the_look(server: PostgresServer, lapsed: Lapsed) -> tuple[Any, bool]:
    """What an admission is answered between whose look and lock a renewal is committed, and what the renewal is."""
    with server.connect() as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        admission = pool.submit(admit, lapsed.store, "bob")
        waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
        until(lambda: bool(holder.execute(waiting, (_LOCK,)).fetchall()), "the admission to have looked")
        renewed = renew(lapsed.store, lapsed.record)
        holder.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))
        return admission.result(30), renewed


def test_a_renewal_after_the_look(postgres: PostgresServer, opened: Opened) -> None:
    """A lease that is renewed after an admission has looked is noticed: it is in flight, and the worker keeps it."""
    lapsed = opened("looked")
    answer, renewed = renewed_after_the_look(postgres, lapsed)
    assert (type(answer), renewed) == (InFlight, True)
    record = stored(lapsed.store)
    assert record is not None
    assert (record.state, record.owner, record.payload) == ("P", lapsed.record.owner, None)
    assert record.lease_until == lapsed.clock.now + LEASE


def test_the_check_finds_an_overlooked_renewal(postgres: PostgresServer, opened: Opened) -> None:
    """Without the second look at the lease, the worker is told that it is renewed and yet has lost its claim."""
    lapsed = opened("overlooking", **{_SAME_LEASE: "\n"})
    answer, renewed = renewed_after_the_look(postgres, lapsed)
    assert (type(answer), renewed) == (Admitted, True)
    assert not renew(lapsed.store, lapsed.record)


def test_a_renewal_that_is_being_written(postgres: PostgresServer, opened: Opened) -> None:
    """An admission that comes while a renewal is being written waits for it, and then is in flight."""
    store, record, clock = opened("renewing")
    renewal = settlements_of([Renew(NAMESPACE, KEY, record.owner, record.fence, LEASE)])
    with postgres.connect() as db, ThreadPoolExecutor(1) as pool:
        with db.transaction():
            store._ask(db, "settle", (clock.now, *renewal))
            admission = pool.submit(admit, store, "bob")
            until(lambda: waits(db, "renewing"), "the admission to wait")
        assert isinstance(admission.result(30), InFlight)
    assert renew(store, record)


def test_an_admission_that_is_being_written(postgres: PostgresServer, opened: Opened) -> None:
    """A renewal that comes while an admission is being written waits for it, and then is refused."""
    store, record, clock = opened("admitting")
    admission = admissions_of([Admit(NAMESPACE, KEY, owner("bob"), record.payload_hash, b"one", ABOUT)], [0])
    with postgres.connect() as db, ThreadPoolExecutor(1) as pool:
        with db.transaction():
            ((_, verdict, *_),) = store._ask(db, "admit", (clock.now, *admission))
            renewal = pool.submit(renew, store, record)
            until(lambda: waits(db, "admitting"), "the renewal to wait")
        assert (verdict, renewal.result(30)) == ("A", False)


def waits(db: psycopg.Connection[Any], schema: str) -> bool:
    """Whether somebody waits for what another transaction is writing in a schema."""
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    db.execute("SELECT pg_stat_clear_snapshot()")  # or a transaction sees the sessions as they were at its first look
    return bool(db.execute(waiting, (f"%{schema}%",)).fetchall())
