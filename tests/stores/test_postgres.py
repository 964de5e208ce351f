"""The Postgres store against the contract, and places that will not do for one."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from oncegate import Event, Gate, open_store
from oncegate.claims import Admitted, Redrive
from oncegate.clocks import Clock, since_boot
from oncegate.errors import SettingError, StoreError, StoreRefused, StoreUnavailable, Unkeepable
from oncegate.gate.claimer import GuardedStore
from oncegate.stores.base import Store
from oncegate.stores.circuit_breaker import IN_A_ROW, CircuitBreaker
from oncegate.stores.postgres import PostgresStore, schema
from oncegate.stores.postgres.arrays import statements
from oncegate.stores.postgres.connections import Connections
from oncegate.stores.postgres.settings import read_url
from oncegate.testing import InboxContract, ManualClock, SharedStoreContract
from oncegate.testing.claim_contract import ClaimContract, TakeContract
from oncegate.testing.operator_contract import DocumentContract, OperatorContract
from oncegate.testing.race_contract import race
from oncegate.testing.requests import ABOUT, admit, claim_of, complete, granted, take
from oncegate.testing.settle_contract import RenewContract, SettleContract
from tests import FORKS
from tests.stores import postgres_server
from tests.stores.postgres_server import LOCKED_OUT, PostgresServer

NEWEST = len(schema.migrations(statements("oncegate")))
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "stores" / "postgres.md"


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
    """A pooler in transaction mode gives every transaction whatever session it has at hand."""

    grants = False

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, postgres: PostgresServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        """A store that finds each session emptied of all that the one before may have left in it."""
        give_back = Connections._give_back

        def forget(self: Connections, connection: psycopg.Connection) -> None:
            prepared = connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
            assert prepared == []
            connection.execute("DISCARD ALL")
            give_back(self, connection)  # type: ignore[arg-type]

        postgres.empty("pooled")
        monkeypatch.setattr(Connections, "_give_back", forget)
        with closing(open_store(f"{postgres.url()}?oncegate_schema=pooled", clock=clock)) as store:
            yield store


def test_two_who_take_of_one_entity(postgres: PostgresServer) -> None:
    """While one takes an event, nobody is given another of its entity, not even one that has happened before and came
    after the first had looked."""
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


URL_ERRORS = [
    ("postgresql://me:secret@host/db?oncegate_colour=blue", "has no option 'oncegate_colour'; it has oncegate_schema"),
    ("postgresql://me:secret@host/db?oncegate_schema=My-Schema", "'My-Schema' is not a plain name"),
    ("postgresql://me:secret@host/db?oncegate_schema=pg_catalog", "'pg_catalog' is not a plain name"),
    ("postgresql://me:secret@host/db?oncegate_connections=0", "'0' is not a number from 1 to 1000"),
    ("postgresql://me:secret@host/db?oncegate_timeout=5", "is not a duration"),
    ("postgresql://me:secret@host/db?colour=blue", 'invalid URI query parameter: "colour"'),
    ("postgresql://me:secret@[host/db", "not one that Postgres understands"),
    ("postgresql://me:secret@[::1]x/db", "not one that Postgres understands"),
]


@pytest.mark.parametrize(("url", "said"), URL_ERRORS)
def test_urls_that_cannot_be_meant(url: str, said: str) -> None:
    """A URL with an unknown option or value is refused with what would do, and without the password in it."""
    with pytest.raises(SettingError, match=re.escape(said)) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_a_url_keeps_what_is_libpqs() -> None:
    """Our own options are taken out of a URL; all others reach Postgres, and go before our defaults."""
    url = "postgres://me:p%40ss@host:6432/db?sslmode=require&oncegate_schema=mine&connect_timeout=9&oncegate_timeout=250ms"
    settings = read_url(url)
    assert (settings.schema, settings.timeout, settings.connections) == ("mine", 0.25, 8)
    expected = {"user": "me", "password": "p@ss", "host": "host", "sslmode": "require", "connect_timeout": "9"}
    assert expected.items() <= settings.parameters.items()
    assert settings.place == "Postgres at host:6432/db"


def test_a_url_without_a_host() -> None:
    """A URL may leave everything to libpq, or name a socket."""
    assert read_url("postgresql://").place == "Postgres at this machine's socket"
    settings = read_url("postgresql:///db?oncegate_schema=mine&host=/run/postgresql")
    assert (settings.schema, settings.place) == ("mine", "Postgres at /run/postgresql/db")


def test_the_extra_is_named_when_it_is_missing() -> None:
    """Without psycopg the error has the line that installs it."""
    code = "import sys; sys.modules['psycopg'] = None; import oncegate; oncegate.open_store('postgresql://host/db')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert "MissingExtra: the Postgres store needs an optional dependency: pip install 'oncegate[postgres]'" in said


@pytest.fixture
def role(postgres: PostgresServer) -> Iterator[str]:
    """A role that may log in and nothing else."""
    with postgres.connect() as db:
        db.execute("CREATE ROLE guest LOGIN")
        yield "guest"
        db.execute("DROP OWNED BY guest")
        db.execute("DROP ROLE guest")


class TestRefusals:
    """A place that cannot be used is refused in one sentence with the remedy."""

    def refused(self, url: str, said: str, *, create: bool = True) -> None:
        with pytest.raises(StoreRefused, match=re.escape(said)):
            open_store(url, create=create)

    def test_wrong_password(self, postgres: PostgresServer) -> None:
        """A password that is wrong is not tried for ever."""
        with postgres.connect() as db:
            db.execute(f"CREATE ROLE {LOCKED_OUT} LOGIN PASSWORD 'right'")
        url = postgres.url(user=f"{LOCKED_OUT}:wrong")
        self.refused(url, "refused the connection (FATAL:  password authentication failed")

    def test_values_that_cannot_be_meant(self) -> None:
        """What libpq finds out only when it connects is refused all the same."""
        self.refused("postgresql://127.0.0.1/db?sslmode=perhaps", 'invalid sslmode value: "perhaps"')
        self.refused("postgresql://127.0.0.1/db?connect_timeout=soon", "'soon'); correct its options")

    def test_options_that_the_server_does_not_know(self, postgres: PostgresServer) -> None:
        """What the server is told in the URL and does not understand is refused as that."""
        self.refused(f"{postgres.url()}?options=-cbogus%3D1", 'parameter "bogus"); correct its options')

    def test_no_connection_left(self, postgres: PostgresServer, role: str) -> None:
        """A server or role that has all the connections it may have is told from one that is not there."""
        with postgres.connect() as db:
            db.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
        with pytest.raises(StoreUnavailable, match=r"has no connection left .*; raise its max_connections"):
            open_store(postgres.url(user=role))

    def test_no_such_database_or_role(self, postgres: PostgresServer) -> None:
        """A database or a role that is not there is named."""
        self.refused(postgres.url("nowhere"), 'database "nowhere" does not exist')
        self.refused(postgres.url(user="nobody_known"), 'role "nobody_known" does not exist')

    def test_no_store(self, postgres: PostgresServer) -> None:
        """Who only looks is told that there is nothing to look at, and leaves nothing behind."""
        self.refused(f"{postgres.url()}?oncegate_schema=absent", "there is no store in the schema absent", create=False)
        with postgres.connect() as db:
            assert db.execute("SELECT to_regnamespace('absent')").fetchone() == (None,)
        open_store(f"{postgres.url()}?oncegate_schema=select").close()
        open_store(f"{postgres.url()}?oncegate_schema=select", create=False).close()

    def test_newer(self, postgres: PostgresServer) -> None:
        """A schema of a later version is not written by an earlier one."""
        url = f"{postgres.url()}?oncegate_schema=newer"
        open_store(url).close()
        with postgres.connect() as db:
            db.execute("UPDATE newer.meta SET version = 99")
        self.refused(url, f"written by a newer Oncegate (schema 99, this one knows {NEWEST}); upgrade")

    def test_foreign(self, postgres: PostgresServer) -> None:
        """Another program's schema is not moved into; an empty one that somebody has made for us is."""
        with postgres.connect() as db:
            db.execute("CREATE SCHEMA theirs CREATE TABLE customers (id integer)")
            db.execute("CREATE SCHEMA ours")
        self.refused(f"{postgres.url()}?oncegate_schema=theirs", "is another program's; name one of its own")
        open_store(f"{postgres.url()}?oncegate_schema=ours").close()

    def test_no_rights(self, postgres: PostgresServer, role: str) -> None:
        """A role that may not create the schema, or not use it, is told which right it lacks."""
        self.refused(f"{postgres.url(user=role)}?oncegate_schema=denied", "(permission denied for database postgres)")
        open_store(f"{postgres.url()}?oncegate_schema=denied").close()
        self.refused(f"{postgres.url(user=role)}?oncegate_schema=denied", "(permission denied for schema denied)")

    @pytest.mark.session
    def test_the_rights_of_a_worker(self, postgres: PostgresServer, role: str) -> None:
        """With the grants that the documentation shows, a role that has not made the schema can do all work in it."""
        open_store(f"{postgres.url()}?oncegate_schema=granting").close()
        with postgres.connect() as db:
            for grant in re.findall(r"^ {4}(GRANT .+);$", DOCUMENTATION.read_text(), re.MULTILINE):
                db.execute(grant.replace("oncegate", "granting").replace("worker", role))
        with closing(open_store(f"{postgres.url(user=role)}?oncegate_schema=granting")) as store:
            assert Gate(store).run({"id": "a"}, lambda event: None).status == "processed"
            assert Gate(store).transaction({"id": "b"}, lambda event, connection: None).status == "processed"
            store.claim([claim_of(key=number.to_bytes(16)) for number in range(300)])

    @pytest.mark.session
    def test_read_only(self, postgres: PostgresServer, role: str) -> None:
        """A session that may not write is refused when it is opened."""
        with postgres.connect() as db:
            db.execute("ALTER ROLE guest SET default_transaction_read_only = on")
        self.refused(f"{postgres.url(user=role)}?oncegate_schema=unmade", "is a replica or read-only; name the primary")

    def test_replica(self) -> None:
        """A hot standby is refused when it is opened."""
        with postgres_server.running(replica=True) as standby:
            self.refused(standby.url(), "is a replica or read-only; name the primary")

    @pytest.mark.session
    def test_isolation(self, postgres: PostgresServer, role: str) -> None:
        """Where every transaction is serializable, batches that meet would fail instead of waiting."""
        with postgres.connect() as db:
            db.execute("ALTER ROLE guest SET default_transaction_isolation = serializable")
        url = f"{postgres.url(user=role)}?oncegate_schema=unmade"
        self.refused(url, "SET default_transaction_isolation = 'read committed'")

    def test_encoding(self, postgres: PostgresServer) -> None:
        """A database that cannot hold every character is refused."""
        with postgres.connect() as db:
            db.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
        self.refused(postgres.url("latin"), "is encoded in LATIN1; use a database that is encoded in UTF8")

    def test_too_old(self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server that lacks what is needed is refused by its version."""
        monkeypatch.setattr(schema, "_OLDEST", 99)
        self.refused(postgres.url(), "which is too old; 99 or newer is needed")

    def test_tables_that_are_gone(self, postgres: PostgresServer) -> None:
        """When somebody drops the tables under a running store, it says so."""
        with closing(open_store(f"{postgres.url()}?oncegate_schema=dropped")) as store:
            with postgres.connect() as db:
                db.execute("DROP SCHEMA dropped CASCADE")
            with pytest.raises(StoreRefused, match="has lost tables or functions of Oncegate"):
                granted(store)

    def test_closed(self, postgres: PostgresServer) -> None:
        """A closed store says that it is closed."""
        store = open_store(f"{postgres.url()}?oncegate_schema=closed")
        store.close()
        with pytest.raises(StoreRefused, match="was closed"):
            granted(store)


class TestUnreachable:
    def test_nobody_listens(self) -> None:
        """A port where nobody listens is told of at once."""
        url = f"postgresql://postgres:secret@127.0.0.1:{postgres_server.free_port()}/postgres"
        with pytest.raises(StoreUnavailable, match=r"cannot be reached \(Connection refused\)") as refused:
            open_store(url)
        assert "secret" not in str(refused.value)

    def test_nobody_answers(self) -> None:
        """A server that takes the connection and says nothing is waited for no longer than the connect timeout."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                open_store(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/db?connect_timeout=2")
            assert time.monotonic() - started < 4


class TestMigrations:
    def test_many_processes_create_one_schema(self, postgres: PostgresServer) -> None:
        """Processes that start on a new database at once all come up on it."""
        url = f"{postgres.url()}?oncegate_schema=crowded"
        code = f"from oncegate import open_store; open_store({url!r}).close()"
        processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(6)]
        assert [process.wait(60) for process in processes] == [0] * 6

    def test_two_schemas(self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """An older schema is migrated when it is opened, once, with what it holds; many openers at once do no harm."""
        url = f"{postgres.url()}?oncegate_schema=older"
        with closing(open_store(url)) as store:
            record = granted(store)
        monkeypatch.setattr(schema, "migrations", with_another(b"ALTER TABLE older.claims ADD COLUMN colour text;"))
        stores = race([lambda: open_store(url)] * 6)
        assert complete(stores[0], record)
        with postgres.connect() as db:
            assert db.execute("SELECT version FROM older.meta").fetchone() == (NEWEST + 1,)
            assert db.execute("SELECT count(*) FROM older.claims WHERE colour IS NULL").fetchone() == (1,)
        for opened in stores:
            opened.close()

    def test_a_failed_migration_leaves_the_old_schema(
        self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A migration that stops half-way has not happened."""
        url = f"{postgres.url()}?oncegate_schema=halfway"
        open_store(url).close()
        broken = b"CREATE TABLE halfway.more (id integer); CREATE TABLE halfway.claims (id integer);"
        monkeypatch.setattr(schema, "migrations", with_another(broken))
        with pytest.raises(StoreError, match="already exists"):
            open_store(url)
        with postgres.connect() as db:
            found = db.execute("SELECT version, to_regclass('halfway.more') FROM halfway.meta").fetchone()
            assert found == (NEWEST, None)


def with_another(migration: bytes) -> object:
    known = schema.migrations
    return lambda sql: [*known(sql), migration]


def test_time_goes_back_by_no_more_than_half_a_second(postgres: PostgresServer) -> None:
    """When the server's clock is set back, time stands still where it was, until the clock has caught up."""
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


def test_expired_rows_are_swept_a_stretch_at_a_time(postgres: PostgresServer) -> None:
    """One batch after a long silence drops no more than its share of the expired rows."""
    clock = ManualClock()
    with closing(open_store(f"{postgres.url()}?oncegate_schema=swept", clock=clock)) as store:
        store.claim([claim_of(key=number.to_bytes(16)) for number in range(5_000)])
        clock.advance("2h")
        store.claim([claim_of(key=number.to_bytes(16)) for number in range(5_000, 5_256)])
        assert 5_256 - 512 <= postgres.count("swept.claims") < 5_256


def test_characters_that_postgres_cannot_keep(postgres: PostgresServer) -> None:
    """A NUL or half a character in a field stops no event, another sign stands for it; whatever the role's encoding."""
    with postgres.connect() as db:
        db.execute("CREATE ROLE western LOGIN SUPERUSER")
        db.execute("ALTER ROLE western SET client_encoding = 'LATIN1'")
    with closing(open_store(f"{postgres.url(user='western')}?oncegate_schema=letters")) as store:
        record = granted(store)
        assert complete(store, record, error="a\0b\ud800\N{SNOWMAN}")
        (entry,) = store.browse()
        assert entry.record.error == "a\N{SYMBOL FOR NULL}b\\ud800\N{SNOWMAN}"


def test_an_entity_that_no_index_can_hold(postgres: PostgresServer) -> None:
    """However long the texts of an event are, it is kept, buried and redriven like any other, in a line of its own."""
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


def test_what_cannot_be_kept_is_no_outage(postgres: PostgresServer) -> None:
    """A record that Postgres refuses for what is in it is told of as such, and the breaker stays closed."""
    with closing(open_store(f"{postgres.url()}?oncegate_schema=long")) as store:
        guarded = GuardedStore(store, CircuitBreaker(10**9, since_boot))
        about = replace(ABOUT, entity=os.urandom(3_000).hex())
        for _ in range(IN_A_ROW + 1):
            with pytest.raises(Unkeepable, match=r"cannot keep what it was given \(index row size"):
                admit(guarded, about=about)
        assert isinstance(admit(guarded), Admitted)


def test_what_a_person_reads(postgres: PostgresServer) -> None:
    """The view for people shows keys in hex and times as times."""
    with closing(open_store(f"{postgres.url()}?oncegate_schema=read")) as store:
        assert isinstance(store, PostgresStore)
        complete(store, granted(store, key=b"\x01" * 16), b'{"a":1}', key=b"\x01" * 16)
    with postgres.connect() as db:
        row = db.execute("SELECT key, state, type, result, completed_at > now() - interval '1m' FROM read.readable")
        assert row.fetchone() == ("01" * 16, "C", "call.ended", '{"a":1}', True)
