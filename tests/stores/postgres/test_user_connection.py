"""Transactions on a connection of the user."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from oncegate import Event, Gate
from oncegate.claims import ClaimProof
from oncegate.errors import SettingError
from oncegate.stores.postgres import PostgresStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import KEY, LEASE, NAMESPACE, granted
from tests.stores.postgres.effects import effects, write
from tests.stores.postgres_server import PostgresServer


def end_user_sessions(server: PostgresServer) -> None:
    """End the sessions of the user, as a restart or a firewall does."""
    with server.connect() as db:
        db.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'own'")


class TestUserConnection:
    @pytest.fixture(params=["psycopg", "psycopg autocommit", "session", "connection"])
    def connection(self, postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Any]:
        """A connection of the user, of each supported type."""
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
        """Write an effect on a connection of any type."""
        if isinstance(connection, psycopg.Connection):
            return write(event, connection)
        connection.execute(sqlalchemy.text("INSERT INTO effects VALUES (:name)"), {"name": event.id})
        return "written"

    def write_and_fail(self, event: Event, connection: Any) -> None:
        self.write(event, connection)
        raise ValueError("boom")

    def test_effect_and_completion(self, store: PostgresStore, postgres: PostgresServer, connection: Any) -> None:
        """The handler gets the connection that was passed, and its writes are committed with the completion."""
        given: list[Any] = []

        def handler(event: Event, passed: Any) -> str:
            given.append(passed)
            return self.write(event, passed)

        gate = Gate(store)
        outcomes = [gate.transaction({"id": name}, handler, connection=connection) for name in ("a", "a", "b")]
        assert [outcome.status for outcome in outcomes] == ["processed", "duplicate", "processed"]
        assert given == [connection, connection]
        assert effects(postgres) == ["a", "b"]

    def test_a_failure(self, store: PostgresStore, postgres: PostgresServer, connection: Any) -> None:
        """The writes of a failing handler are rolled back, its attempt counts, and the connection can be used again."""
        gate = Gate(store, max_attempts=3)
        failed = gate.transaction({"id": "a"}, self.write_and_fail, connection=connection)
        assert (failed.status, failed.error) == ("failed", "ValueError: boom")
        again = gate.transaction({"id": "a"}, self.write, connection=connection)
        assert (again.status, again.event.attempt) == ("processed", 2)
        assert effects(postgres) == ["a"]

    def test_a_stale_owner(
        self, store: PostgresStore, clock: ManualClock, postgres: PostgresServer, connection: Any
    ) -> None:
        """The effect of an owner whose claim was taken over is not called."""
        record = granted(store)
        clock.advance(LEASE)
        granted(store, "bob")
        held = ClaimProof(NAMESPACE, KEY, record.owner, record.fence)
        assert store.transact(held, lambda _: pytest.fail("the effect ran"), connection) is False
        assert effects(postgres) == []

    def test_a_commit_by_the_handler(self, store: PostgresStore, postgres: PostgresServer, connection: Any) -> None:
        """The event of a handler that commits fails, and its writes are rolled back."""

        def handler(event: Event, passed: Any) -> None:
            self.write(event, passed)
            passed.commit()

        assert Gate(store).transaction({"id": "a"}, handler, connection=connection).status == "failed"
        assert effects(postgres) == []

    def test_in_a_transaction_already(self, store: PostgresStore, connection: Any) -> None:
        """A connection with an open transaction is refused: Oncegate would commit that transaction."""
        if isinstance(connection, psycopg.Connection):
            connection.autocommit = False
            connection.execute("SELECT 1")
        else:
            connection.execute(sqlalchemy.text("SELECT 1"))
        with pytest.raises(SettingError, match="in a transaction already"):
            Gate(store).transaction({"id": "a"}, self.write, connection=connection)
        assert store.browse() == []

    def test_closed(self, store: PostgresStore, connection: Any) -> None:
        """A closed connection is refused before the claim. A closed session reopens itself."""
        connection.close()
        if isinstance(connection, Session):
            assert Gate(store).transaction({"id": "a"}, self.write, connection=connection).status == "processed"
            return
        with pytest.raises(SettingError, match="the connection is closed"):
            Gate(store).transaction({"id": "a"}, self.write, connection=connection)
        assert store.browse() == []

    @pytest.mark.session
    def test_lost(self, store: PostgresStore, postgres: PostgresServer, connection: Any) -> None:
        """A lost connection fails the event. The attempt counts only if the handler had started."""
        gate = Gate(store, max_attempts=5)
        if not isinstance(connection, psycopg.Connection):
            # SQLAlchemy connects at the first use.
            assert gate.transaction({"id": "warm"}, self.write, connection=connection).status == "processed"
        end_user_sessions(postgres)
        outcome = gate.transaction({"id": "a"}, self.write, connection=connection)
        assert (outcome.status, (outcome.error or "")[:31]) == ("failed", "its transaction could not begin")
        if isinstance(connection, psycopg.Connection):
            return
        assert (
            gate.transaction({"id": "a"}, lambda *_: end_user_sessions(postgres), connection=connection).status
            == "failed"
        )
        outcome = gate.transaction({"id": "a"}, self.write, connection=connection)
        assert (outcome.status, outcome.event.attempt) == ("processed", 2)

    @pytest.mark.session
    def test_another_database(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """A connection to a database without the store is refused, and the attempt does not count."""
        with postgres.connect() as db:
            db.execute("DROP DATABASE IF EXISTS elsewhere")
            db.execute("CREATE DATABASE elsewhere")
        gate = Gate(store, max_attempts=1)
        refused = pytest.raises(SettingError, match="the database of the connection has no schema transactions")
        with psycopg.connect(postgres.url(), dbname="elsewhere") as db, refused:
            gate.transaction({"id": "a"}, self.write, connection=db)
        assert gate.transaction({"id": "a"}, write).status == "processed"

    @pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
    def test_another_encoding(self, store: PostgresStore, postgres: PostgresServer, encoding: str) -> None:
        """A connection whose encoding is not UTF-8 is refused: it would change names and results."""
        refused = pytest.raises(SettingError, match="set its client_encoding to UTF8")
        with psycopg.connect(postgres.url(), client_encoding=encoding) as db, refused:
            Gate(store, namespace="é").transaction({"id": "a"}, self.write, connection=db)
        assert store.browse() == []

    def test_autocommit(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """An SQLAlchemy connection with AUTOCOMMIT is refused: it has no transactions."""
        url = postgres.url().replace("postgresql://", "postgresql+psycopg://", 1)
        engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as db, pytest.raises(SettingError, match="has the isolation level AUTOCOMMIT"):
            Gate(store).transaction({"id": "a"}, self.write, connection=db)
        engine.dispose()
        assert store.browse() == []

    def test_unsupported_connections(self, store: PostgresStore, postgres: PostgresServer) -> None:
        """An object that is not a connection, and SQLAlchemy on another driver or database, are refused."""
        with pytest.raises(SettingError, match="'postgres' is not a connection to Postgres"):
            Gate(store).transaction({"id": "a"}, self.write, connection="postgres")
        engine = sqlalchemy.create_engine("sqlite://")
        with engine.connect() as db, pytest.raises(SettingError, match="postgresql"):
            Gate(store).transaction({"id": "b"}, self.write, connection=db)
        engine.dispose()
