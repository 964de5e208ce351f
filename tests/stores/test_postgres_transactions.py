"""Transactions on Postgres: the effect and its completion are one write."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from textwrap import dedent
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from oncegate import Event, Gate, open_store
from oncegate.claims import ClaimProof, Complete, Granted, InFlight
from oncegate.errors import SettingError
from oncegate.stores.postgres import PostgresStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import KEY, LEASE, NAMESPACE, RETENTION, claim_of, granted, stored
from tests.stores.postgres_server import PostgresServer

Connection = psycopg.Connection[Any]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    postgres.empty("transactions")
    with postgres.connect() as db:
        db.execute("DROP TABLE IF EXISTS effects")
        db.execute("CREATE TABLE effects (event text UNIQUE DEFERRABLE INITIALLY IMMEDIATE)")
    return f"{postgres.url()}?oncegate_schema=transactions"


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[PostgresStore]:
    with closing(open_store(url, clock=clock)) as store:
        assert isinstance(store, PostgresStore)
        yield store


def effects(server: PostgresServer) -> list[str]:
    with server.connect() as db:
        return [name for (name,) in db.execute("SELECT event FROM effects ORDER BY event")]


def write(event: Event, connection: Connection) -> str:
    connection.execute("INSERT INTO effects VALUES (%s)", (event.id,))
    return "written"


def write_and(event: Event, connection: Connection, *, then: Any) -> None:
    write(event, connection)
    then(connection)


def fail(connection: Connection) -> None:
    raise ValueError("boom")


class TestTransaction:
    def test_effect_and_completion(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """What the handler writes is there once, and its result is given to duplicates."""
        gate = Gate(store)
        first, second = gate.transaction({"id": "a"}, write), gate.transaction({"id": "a"}, write)
        assert (first.status, first.result) == ("processed", "written")
        assert (second.status, second.result) == ("duplicate", "written")
        assert effects(postgres) == ["a"]

    def test_a_failure_is_rolled_back_and_counted(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """A failing handler leaves no effect, its attempt counts, and a poison event ends as a dead letter."""
        gate = Gate(store, max_attempts=2)
        outcomes = [gate.transaction({"id": "a"}, partial(write_and, then=fail)) for _ in range(3)]
        assert [outcome.status for outcome in outcomes] == ["failed", "buried", "buried"]
        assert [outcome.error for outcome in outcomes] == ["ValueError: boom"] * 3
        assert effects(postgres) == []

    def test_savepoints(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """A handler may use transactions within its own, and roll one of them back."""

        def handler(event: Event, connection: Connection) -> None:
            with connection.transaction():
                write(event, connection)
            with suppress(psycopg.errors.UniqueViolation), connection.transaction():
                write(event, connection)

        assert Gate(store).transaction({"id": "a"}, handler).status == "processed"
        assert effects(postgres) == ["a"]

    def test_an_error_of_the_database_is_the_handlers(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """A constraint of the user's own tables fails the event, at once or when it is checked at the end."""
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
    @pytest.mark.parametrize("overlooked", [(), (psycopg.Error,)], ids=["noticed", "overlooked"])
    def test_a_handler_cannot_end_it(
        self, store: PostgresStore, postgres: PostgresServer, end: Any, overlooked: Any
    ) -> None:
        """However a handler tries to end the transaction, and whether it notices or not, nothing of it is there."""

        def handler(event: Event, connection: Connection) -> None:
            write(event, connection)
            with suppress(*overlooked):
                end(connection)
            with suppress(*overlooked):
                connection.execute("INSERT INTO effects VALUES ('more')")

        assert Gate(store).transaction({"id": "a"}, handler).status == "failed"
        assert effects(postgres) == []
        assert Gate(store).transaction({"id": "a"}, write).status == "processed"
        assert postgres.count("transactions.pledges") == 0

    def test_an_error_that_was_overlooked(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """When a statement has failed and the handler goes on, nothing is completed."""

        def handler(event: Event, connection: Connection) -> None:
            write(event, connection)
            with suppress(psycopg.Error):
                connection.execute("SELECT 1 / 0")

        outcome = Gate(store).transaction({"id": "a"}, handler)
        assert (outcome.status, (outcome.error or "")[:24]) == ("failed", "InFailedSqlTransaction: ")
        assert effects(postgres) == []

    def test_interrupted(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """Ctrl-C rolls back, releases with the reason and goes on upwards."""

        def interrupt(connection: Connection) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Gate(store).transaction({"id": "a"}, partial(write_and, then=interrupt))
        assert effects(postgres) == []
        (entry,) = store.browse()
        assert (entry.record.state, entry.record.error) == ("R", "KeyboardInterrupt")

    @pytest.mark.session
    def test_what_a_handler_leaves_set(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """How a handler has set up its session is no matter to the store."""

        def handler(event: Event, connection: Connection) -> None:
            connection.row_factory = dict_row
            connection.cursor_factory = psycopg.ClientCursor
            connection.execute("SET search_path = pg_catalog")
            connection.execute("SET default_transaction_read_only = on")

        gate = Gate(store)
        assert gate.transaction({"id": "a"}, handler).status == "processed"
        assert gate.run({"id": "b"}, lambda event: None).status == "processed"

    def test_other_keys_are_not_blocked(self, store: PostgresStore, clock: ManualClock) -> None:
        """While a handler runs, its event is in flight to everybody, however long ago its lease ended, and a batch
        that names it among others waits for nothing."""
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


class TestStaleOwners:
    def attempt(self, store: PostgresStore, held: ClaimProof) -> tuple[bool, list[str]]:
        """Try a transaction with a proof: the answer, and whether the effect was run."""
        ran: list[str] = []

        def effect(connection: Connection) -> Complete:
            ran.append("ran")
            return Complete(held.namespace, held.key, held.owner, held.fence, RETENTION)

        return store.transact(held, effect), ran

    def test_taken_over(self, store: PostgresStore, clock: ManualClock) -> None:
        """An owner whose claim was taken over does not even start, and its successor's claim stands."""
        record = granted(store)
        clock.advance(LEASE)
        successor = granted(store, "bob")
        assert self.attempt(store, ClaimProof(NAMESPACE, KEY, record.owner, record.fence)) == (False, [])
        assert stored(store) == successor

    def test_completed_before(self, store: PostgresStore) -> None:
        """A transaction that is tried again after it was committed does not write its effect again."""
        record = granted(store)
        held = ClaimProof(NAMESPACE, KEY, record.owner, record.fence)
        assert self.attempt(store, held) == (True, ["ran"])
        assert self.attempt(store, held) == (False, [])

    def test_expired_meanwhile(self, store: PostgresStore, clock: ManualClock, postgres: PostgresServer) -> None:
        """A record that expires while the handler runs takes its effect with it."""
        record = granted(store, retention=LEASE)

        def slow(connection: Connection) -> Complete:
            connection.execute("INSERT INTO effects VALUES ('late')")
            clock.advance(LEASE)
            return Complete(NAMESPACE, KEY, record.owner, record.fence, RETENTION)

        assert store.transact(ClaimProof(NAMESPACE, KEY, record.owner, record.fence), slow) is False
        assert effects(postgres) == []


def test_killed_workers(url: str, postgres: PostgresServer, tmp_path: Any) -> None:
    """Workers that are killed between effect and commit attempt events again and leave each exactly one effect."""
    log, done = tmp_path / "attempted", tmp_path / "done"
    code = f"""
        import os, pathlib, random, signal
        from oncegate import Gate
        gate = Gate({url!r}, lease="100ms", max_attempts=None)
        def handler(event, connection):
            connection.execute("INSERT INTO effects VALUES (%s)", (event.id,))
            with open({str(log)!r}, "a+") as file:
                file.seek(0)
                anew = event.id in file.read().split()
                file.write(event.id + " ")
            if int(event.id) % 5 == 0 and not anew:
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


def cut(server: PostgresServer) -> None:
    """End the sessions of the user's own, as a restart or a firewall does."""
    with server.connect() as db:
        db.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'own'")


class TestOwnConnection:
    @pytest.fixture(params=["psycopg", "psycopg autocommit", "session", "connection"])
    def own(self, postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Any]:
        """A connection of the user's own, of every sort there is."""
        url = postgres.url()
        if request.param.startswith("psycopg"):
            with psycopg.connect(url, autocommit="auto" in request.param, application_name="own") as db:
                yield db
            return
        engine = sqlalchemy.create_engine(
            url.replace("postgresql://", "postgresql+psycopg://", 1), connect_args={"application_name": "own"}
        )
        with Session(engine) if request.param == "session" else engine.connect() as db:
            yield db
        engine.dispose()

    def write(self, event: Event, connection: Any) -> str:
        """An effect by way of whatever connection it is."""
        if isinstance(connection, psycopg.Connection):
            return write(event, connection)
        connection.execute(sqlalchemy.text("INSERT INTO effects VALUES (:name)"), {"name": event.id})
        return "written"

    def write_and_fail(self, event: Event, connection: Any) -> None:
        self.write(event, connection)
        raise ValueError("boom")

    def test_effect_and_completion(self, store: PostgresStore, postgres: PostgresServer, own: Any) -> None:
        """The handler gets the very connection, and what it writes is committed with the completion."""
        given: list[Any] = []

        def handler(event: Event, connection: Any) -> str:
            given.append(connection)
            return self.write(event, connection)

        gate = Gate(store)
        outcomes = [gate.transaction({"id": name}, handler, connection=own) for name in ("a", "a", "b")]
        assert [outcome.status for outcome in outcomes] == ["processed", "duplicate", "processed"]
        assert given == [own, own]
        assert effects(postgres) == ["a", "b"]

    def test_a_failure(self, store: PostgresStore, postgres: PostgresServer, own: Any) -> None:
        """What a failing handler wrote is rolled back, its attempt counts, and the connection can be used again."""
        gate = Gate(store, max_attempts=3)
        failed = gate.transaction({"id": "a"}, self.write_and_fail, connection=own)
        assert (failed.status, failed.error) == ("failed", "ValueError: boom")
        again = gate.transaction({"id": "a"}, self.write, connection=own)
        assert (again.status, again.event.attempt) == ("processed", 2)
        assert effects(postgres) == ["a"]

    def test_a_stale_owner(self, store: PostgresStore, clock: ManualClock, postgres: PostgresServer, own: Any) -> None:
        """An owner whose claim was taken over does not even start."""
        record = granted(store)
        clock.advance(LEASE)
        granted(store, "bob")
        held = ClaimProof(NAMESPACE, KEY, record.owner, record.fence)
        assert store.transact(held, lambda connection: pytest.fail("it ran"), own) is False
        assert effects(postgres) == []

    def test_a_commit_by_the_handler(self, store: PostgresStore, postgres: PostgresServer, own: Any) -> None:
        """A handler that commits is found out, and what it wrote is not there."""

        def handler(event: Event, connection: Any) -> None:
            self.write(event, connection)
            connection.commit()

        assert Gate(store).transaction({"id": "a"}, handler, connection=own).status == "failed"
        assert effects(postgres) == []

    def test_in_a_transaction_already(self, store: PostgresStore, own: Any) -> None:
        """A connection with a transaction open is refused: it would be committed with ours."""
        if isinstance(own, psycopg.Connection):
            own.autocommit = False
            own.execute("SELECT 1")
        else:
            own.execute(sqlalchemy.text("SELECT 1"))
        with pytest.raises(SettingError, match="in a transaction already"):
            Gate(store).transaction({"id": "a"}, self.write, connection=own)
        assert store.browse() == []

    def test_closed(self, store: PostgresStore, own: Any) -> None:
        """A closed connection is told of as such, before anything is claimed. A session opens itself again."""
        own.close()
        if isinstance(own, Session):
            assert Gate(store).transaction({"id": "a"}, self.write, connection=own).status == "processed"
            return
        with pytest.raises(SettingError, match="the connection is closed"):
            Gate(store).transaction({"id": "a"}, self.write, connection=own)
        assert store.browse() == []

    @pytest.mark.session
    def test_lost(self, store: PostgresStore, postgres: PostgresServer, own: Any) -> None:
        """One that was lost fails the event: it costs no attempt before the handler has started, and one after that."""
        gate = Gate(store, max_attempts=5)
        if not isinstance(own, psycopg.Connection):
            assert (
                gate.transaction({"id": "warm"}, self.write, connection=own).status == "processed"
            )  # it has connected
        cut(postgres)
        outcome = gate.transaction({"id": "a"}, self.write, connection=own)
        assert (outcome.status, (outcome.error or "")[:31]) == ("failed", "its transaction could not begin")
        if isinstance(own, psycopg.Connection):
            return
        assert gate.transaction({"id": "a"}, lambda *_: cut(postgres), connection=own).status == "failed"
        outcome = gate.transaction({"id": "a"}, self.write, connection=own)
        assert (outcome.status, outcome.event.attempt) == ("processed", 2)

    @pytest.mark.session
    def test_another_database(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """A connection to a database that does not have the store is told of as that, and costs no attempt."""
        with postgres.connect() as db:
            db.execute("DROP DATABASE IF EXISTS elsewhere")
            db.execute("CREATE DATABASE elsewhere")
        gate = Gate(store, max_attempts=1)
        refused = pytest.raises(SettingError, match="a database without the schema transactions")
        with psycopg.connect(postgres.url(), dbname="elsewhere") as db, refused:
            gate.transaction({"id": "a"}, self.write, connection=db)
        assert gate.transaction({"id": "a"}, write).status == "processed"

    @pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
    def test_another_encoding(self, store: PostgresStore, postgres: PostgresServer, encoding: str) -> None:
        """A connection on which names and results would be written in other letters is refused."""
        refused = pytest.raises(SettingError, match="set its client_encoding to UTF8")
        with psycopg.connect(postgres.url(), client_encoding=encoding) as db, refused:
            Gate(store, namespace="é").transaction({"id": "a"}, self.write, connection=db)
        assert store.browse() == []

    def test_one_that_commits_by_itself(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """SQLAlchemy's AUTOCOMMIT, which knows no transaction, is told of by its name."""
        url = postgres.url().replace("postgresql://", "postgresql+psycopg://", 1)
        engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as db, pytest.raises(SettingError, match="commits by itself"):
            Gate(store).transaction({"id": "a"}, self.write, connection=db)
        engine.dispose()
        assert store.browse() == []

    def test_what_is_no_connection(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """Anything else, and SQLAlchemy on another driver or database, is refused clearly."""
        with pytest.raises(SettingError, match="is none to Postgres"):
            Gate(store).transaction({"id": "a"}, self.write, connection="postgres")
        engine = sqlalchemy.create_engine("sqlite://")
        with engine.connect() as db, pytest.raises(SettingError, match="postgresql"):
            Gate(store).transaction({"id": "b"}, self.write, connection=db)
        engine.dispose()
