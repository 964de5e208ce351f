"""Postgres errors become store errors with one sentence that says what to do."""

import os
import re
from contextlib import closing

import psycopg
import pytest
from msgspec.structs import replace

from oncegate import open_store
from oncegate.claims import Admitted
from oncegate.clocks import since_boot
from oncegate.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable, Unkeepable
from oncegate.gate.claimer import GuardedStore
from oncegate.stores.circuit_breaker import IN_A_ROW, CircuitBreaker
from oncegate.stores.postgres import errors
from oncegate.testing.requests import ABOUT, admit, granted
from tests.stores.postgres_server import LOCKED_OUT, PostgresServer


def test_a_record_that_postgres_cannot_store(postgres: PostgresServer) -> None:
    """A record whose values Postgres refuses raises Unkeepable, and the circuit breaker stays closed."""
    with closing(open_store(f"{postgres.url()}?oncegate_schema=unstorable")) as store:
        guarded = GuardedStore(store, CircuitBreaker(10**9, since_boot))
        about = replace(ABOUT, entity=os.urandom(3_000).hex())
        for _ in range(IN_A_ROW + 1):
            with pytest.raises(Unkeepable, match=r"cannot store this record \(index row size"):
                admit(guarded, about=about)
        assert isinstance(admit(guarded), Admitted)


class TestConnecting:
    """A connection that the server or libpq refuses."""

    def refused(self, url: str, message: str, *, create: bool = True) -> None:
        with pytest.raises(StoreRefused, match=re.escape(message)):
            open_store(url, create=create)

    def test_wrong_password(self, postgres: PostgresServer) -> None:
        """A wrong password is refused at the first try."""
        with postgres.connect() as db:
            db.execute(f"CREATE ROLE {LOCKED_OUT} LOGIN PASSWORD 'right'")
        url = postgres.url(user=f"{LOCKED_OUT}:wrong")
        self.refused(url, "refused the connection (FATAL:  password authentication failed")

    def test_invalid_values(self) -> None:
        """Invalid values that libpq checks only when it connects are refused."""
        self.refused("postgresql://127.0.0.1/db?sslmode=perhaps", 'invalid sslmode value: "perhaps"')
        self.refused("postgresql://127.0.0.1/db?connect_timeout=soon", "'soon'); correct the option")

    def test_unknown_server_options(self, postgres: PostgresServer) -> None:
        """A configuration parameter in the URL that the server does not know is refused."""
        self.refused(f"{postgres.url()}?options=-cbogus%3D1", 'parameter "bogus"); correct the option')

    def test_no_connection_left(self, postgres: PostgresServer, role: str) -> None:
        """A server or role at its connection limit is reported as such, not as unreachable."""
        with postgres.connect() as db:
            db.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
        with pytest.raises(StoreUnavailable, match=r"has no connection left .*; raise its max_connections"):
            open_store(postgres.url(user=role))

    def test_no_such_database_or_role(self, postgres: PostgresServer) -> None:
        """The message names the database or role that does not exist."""
        self.refused(postgres.url("nowhere"), 'database "nowhere" does not exist')
        self.refused(postgres.url(user="nobody_known"), 'role "nobody_known" does not exist')


def test_missing_tables(postgres: PostgresServer) -> None:
    """When the tables of an open store are dropped, the error says that they are missing."""
    with closing(open_store(f"{postgres.url()}?oncegate_schema=dropped")) as store:
        with postgres.connect() as db:
            db.execute("DROP SCHEMA dropped CASCADE")
        with pytest.raises(StoreRefused, match="tables or functions of Oncegate are missing"):
            granted(store)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (psycopg.OperationalError("server closed the connection"), StoreUnavailable, "was lost (server closed the"),
        (
            errors.DeadlineExceeded("no answer in time"),
            StoreUnavailable,
            "did not answer in time; the request may have",
        ),
        (psycopg.errors.ReadOnlySqlTransaction("read-only"), StoreReadOnly, "accepts no writes now (read-only)"),
        (psycopg.errors.DiskFull("no space left"), StoreReadOnly, "accepts no writes now (no space left)"),
        (
            psycopg.errors.DeadlockDetected("deadlock"),
            StoreUnavailable,
            "could not execute the request (deadlock); retry",
        ),
        (psycopg.errors.InsufficientPrivilege("no"), StoreRefused, "does not allow this role to do that (no); grant"),
        (psycopg.errors.UndefinedFunction("no function"), StoreRefused, "are missing in the server (no function)"),
        (psycopg.errors.SyntaxError("odd"), StoreError, "the server failed: odd"),
    ],
)
def test_each_kind_of_error(error: psycopg.Error, kind: type[StoreError], message: str) -> None:
    """The code of an error decides which store error it becomes."""
    raised = errors.store_error(error, "the server")
    assert type(raised) is kind
    assert message in str(raised)
