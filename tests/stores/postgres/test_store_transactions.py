"""Transactions of the Postgres store: the effect and its completion commit together."""

import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from textwrap import dedent
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from oncegate import Event, Gate
from oncegate.claims import ClaimProof, Complete, Granted, InFlight
from oncegate.stores.postgres import PostgresStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import KEY, LEASE, NAMESPACE, RETENTION, claim_of, forget, granted, stored
from tests.stores.postgres.effects import Connection, effects, write
from tests.stores.postgres_server import PostgresServer


def write_and(event: Event, connection: Connection, *, then: Any) -> None:
    write(event, connection)
    then(connection)


def fail(connection: Connection) -> None:
    raise ValueError("boom")


class TestTransaction:
    def test_effect_and_completion(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """The handler's writes are committed once, and duplicates get its result."""
        gate = Gate(store)
        first, second = gate.transaction({"id": "a"}, write), gate.transaction({"id": "a"}, write)
        assert (first.status, first.result) == ("processed", "written")
        assert (second.status, second.result) == ("duplicate", "written")
        assert effects(postgres) == ["a"]

    def test_a_failure_is_rolled_back_and_counted(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """A failing handler leaves no effect; its attempt counts, and the last attempt buries the event."""
        gate = Gate(store, max_attempts=2)
        outcomes = [gate.transaction({"id": "a"}, partial(write_and, then=fail)) for _ in range(3)]
        assert [outcome.status for outcome in outcomes] == ["failed", "buried", "buried"]
        assert [outcome.error for outcome in outcomes] == ["ValueError: boom"] * 3
        assert effects(postgres) == []

    def test_savepoints(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """A handler may use nested transactions, and roll one of them back."""

        def handler(event: Event, connection: Connection) -> None:
            with connection.transaction():
                write(event, connection)
            with suppress(psycopg.errors.UniqueViolation), connection.transaction():
                write(event, connection)

        assert Gate(store).transaction({"id": "a"}, handler).status == "processed"
        assert effects(postgres) == ["a"]

    def test_a_violated_constraint(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """A violated constraint of the user's tables fails the event, also if the constraint is deferred."""
        with postgres.connect() as db:
            db.execute("INSERT INTO effects VALUES ('a')")
        outcome = Gate(store).transaction({"id": "a"}, write)
        assert (outcome.status, (outcome.error or "")[:16]) == ("failed", "UniqueViolation:")

        def late(event: Event, connection: Connection) -> None:
            connection.execute("SET CONSTRAINTS effects_event_key DEFERRED")
            write(event, connection)

        outcome = Gate(store).transaction({"id": "a"}, late)
        assert (outcome.status, (outcome.error or "")[:16]) == ("failed", "UniqueViolation:")

    @pytest.mark.parametrize(
        "end",
        [
            lambda connection: connection.execute("COMMIT"),
            lambda connection: connection.execute("SELECT 1; END"),
            lambda connection: connection.commit(),
            lambda connection: connection.__exit__(None, None, None),
            lambda connection: connection.execute("ROLLBACK"),
            lambda connection: connection.rollback(),
            lambda connection: connection.close(),
            lambda connection: connection.execute("PREPARE TRANSACTION 'x'"),
            lambda connection: connection.execute("SET CONSTRAINTS ALL IMMEDIATE"),
        ],
        ids=["COMMIT", "END", "commit()", "with", "ROLLBACK", "rollback()", "close()", "PREPARE", "SET CONSTRAINTS"],
    )
    @pytest.mark.parametrize("ignored", [(), (psycopg.Error,)], ids=["raised", "ignored"])
    def test_a_handler_cannot_end_the_transaction(
        self, store: PostgresStore, postgres: PostgresServer, end: Any, ignored: Any
    ) -> None:
        """A handler that ends the transaction in any way leaves no effect, whether it ignores the error or not."""

        def handler(event: Event, connection: Connection) -> None:
            write(event, connection)
            with suppress(*ignored):
                end(connection)
            with suppress(*ignored):
                connection.execute("INSERT INTO effects VALUES ('more')")

        assert Gate(store).transaction({"id": "a"}, handler).status == "failed"
        assert effects(postgres) == []
        assert Gate(store).transaction({"id": "a"}, write).status == "processed"
        assert postgres.count("transactions.pledges") == 0

    def test_a_handler_that_ignores_an_error(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """When a statement fails and the handler ignores the error, the claim is not completed."""

        def handler(event: Event, connection: Connection) -> None:
            write(event, connection)
            with suppress(psycopg.Error):
                connection.execute("SELECT 1 / 0")

        outcome = Gate(store).transaction({"id": "a"}, handler)
        assert (outcome.status, (outcome.error or "")[:24]) == ("failed", "InFailedSqlTransaction: ")
        assert effects(postgres) == []

    def test_interrupted(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """Ctrl-C rolls back, releases the claim with the reason, and is raised to the caller."""

        def interrupt(connection: Connection) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Gate(store).transaction({"id": "a"}, partial(write_and, then=interrupt))
        assert effects(postgres) == []
        (entry,) = store.browse()
        assert (entry.record.state, entry.record.error) == ("R", "KeyboardInterrupt")

    @pytest.mark.session
    def test_session_settings_of_a_handler(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """Session settings that a handler changes do not affect the store."""

        def handler(event: Event, connection: Connection) -> None:
            connection.row_factory = dict_row
            connection.cursor_factory = psycopg.ClientCursor
            connection.execute("SET search_path = pg_catalog")
            connection.execute("SET default_transaction_read_only = on")

        gate = Gate(store)
        assert gate.transaction({"id": "a"}, handler).status == "processed"
        assert gate.run({"id": "b"}, lambda event: None).status == "processed"

    def test_other_keys_are_not_blocked(self, store: PostgresStore, clock: ManualClock) -> None:
        """While a handler runs, its event is in flight, also after its lease expired, and no batch waits for it."""
        started, finish = threading.Event(), threading.Event()
        record = granted(store)

        def effect(connection: Connection) -> Complete:
            started.set()
            assert finish.wait(30)
            return Complete(NAMESPACE, KEY, record.owner, record.fence, RETENTION)

        answers: list[bool] = []
        held = ClaimProof(NAMESPACE, KEY, record.owner, record.fence)
        thread = threading.Thread(target=lambda: answers.append(store.transact(held, effect)))
        thread.start()
        assert started.wait(30)
        clock.advance(LEASE)
        before = time.monotonic()
        verdicts = store.claim([claim_of("bob", key=b"a" * 16), claim_of("bob"), claim_of("bob", key=b"z" * 16)])
        assert [type(verdict) for verdict in verdicts] == [Granted, InFlight, Granted]
        assert time.monotonic() - before < 2
        finish.set()
        thread.join()
        assert answers == [True]


def test_an_erasure_does_not_wait_for_a_handler(store: PostgresStore, clock: ManualClock) -> None:
    """While the transaction of a handler holds the row of its claim, also after the lease, an erasure skips it."""
    record = granted(store)
    clock.advance(LEASE)
    answers = []

    def effect(_connection: Connection) -> Complete:
        answers.append(forget(store))
        return Complete(NAMESPACE, KEY, record.owner, record.fence, RETENTION, b"1")

    assert store.transact(ClaimProof(NAMESPACE, KEY, record.owner, record.fence), effect)
    assert answers == [False]
    assert forget(store)


class TestStaleOwners:
    def attempt(self, store: PostgresStore, held: ClaimProof) -> tuple[bool, list[str]]:
        """Run a transaction. Return its answer, and `ran` if the effect was called."""
        ran: list[str] = []

        def effect(connection: Connection) -> Complete:
            ran.append("ran")
            return Complete(held.namespace, held.key, held.owner, held.fence, RETENTION)

        return store.transact(held, effect), ran

    def test_taken_over(self, store: PostgresStore, clock: ManualClock) -> None:
        """The effect of an owner whose claim was taken over is not called, and the new claim is unchanged."""
        record = granted(store)
        clock.advance(LEASE)
        successor = granted(store, "bob")
        assert self.attempt(store, ClaimProof(NAMESPACE, KEY, record.owner, record.fence)) == (False, [])
        assert stored(store) == successor

    def test_completed_before(self, store: PostgresStore) -> None:
        """A transaction that is retried after its commit does not run the effect again."""
        record = granted(store)
        held = ClaimProof(NAMESPACE, KEY, record.owner, record.fence)
        assert self.attempt(store, held) == (True, ["ran"])
        assert self.attempt(store, held) == (False, [])

    def test_expired_meanwhile(self, store: PostgresStore, clock: ManualClock, postgres: PostgresServer) -> None:
        """When the record expires while the handler runs, its effect is rolled back."""
        record = granted(store, retention=LEASE)

        def slow(connection: Connection) -> Complete:
            connection.execute("INSERT INTO effects VALUES ('late')")
            clock.advance(LEASE)
            return Complete(NAMESPACE, KEY, record.owner, record.fence, RETENTION)

        assert store.transact(ClaimProof(NAMESPACE, KEY, record.owner, record.fence), slow) is False
        assert effects(postgres) == []


def test_killed_workers(url: str, postgres: PostgresServer, tmp_path: Any) -> None:
    """Workers that are killed between effect and commit run events again, and each event has exactly one effect."""
    log, done = tmp_path / "attempted", tmp_path / "done"
    code = f"""
        import os, pathlib, random, signal
        from oncegate import Gate
        gate = Gate({url!r}, lease="100ms", max_attempts=None)
        def handler(event, connection):
            connection.execute("INSERT INTO effects VALUES (%s)", (event.id,))
            with open({str(log)!r}, "a+") as file:
                file.seek(0)
                is_retry = event.id in file.read().split()
                file.write(event.id + " ")
            if int(event.id) % 5 == 0 and not is_retry:
                os.kill(os.getpid(), signal.SIGKILL)
        while True:
            outcomes = [gate.transaction({{"id": str(number)}}, handler) for number in random.sample(range(40), 40)]
            if all(outcome.status == "duplicate" for outcome in outcomes):
                pathlib.Path({str(done)!r}).touch()
                break
        """  # noqa: S608  # the program is ours
    command = [sys.executable, "-c", dedent(code)]
    workers = [subprocess.Popen(command) for _ in range(3)]
    kills, deadline = 0, time.monotonic() + 60
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
        for number, worker in enumerate(workers):
            if worker.poll() == -signal.SIGKILL:
                kills += 1
                workers[number] = subprocess.Popen(command)
    for worker in workers:
        worker.kill()
        worker.wait()
    assert sorted(effects(postgres), key=int) == [str(number) for number in range(40)]
    assert kills >= 8
    assert len(log.read_text().split()) >= 48
