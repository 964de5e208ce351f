"""Checks of the server and the schema, and migrations."""

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Gate, open_store
from oncegate.errors import StoreError, StoreRefused
from oncegate.stores.postgres import schema
from oncegate.stores.postgres.arrays import statements
from oncegate.testing.race_contract import race
from oncegate.testing.requests import claim_of, complete, granted
from tests.stores import postgres_server
from tests.stores.postgres_server import PostgresServer

NEWEST = len(schema.migrations(statements("oncegate")))

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "stores" / "postgres.md"


class TestMigrations:
    def test_many_processes_create_one_schema(self, postgres: PostgresServer) -> None:
        """Processes that open a new database at the same time all succeed."""
        url = f"{postgres.url()}?oncegate_schema=crowded"
        code = f"from oncegate import open_store; open_store({url!r}).close()"
        processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(6)]
        assert [process.wait(60) for process in processes] == [0] * 6

    def test_migration(self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """An older schema is migrated once when it is opened, with its records, also by many processes at once."""
        url = f"{postgres.url()}?oncegate_schema=older"
        with closing(open_store(url)) as store:
            record = granted(store)
        monkeypatch.setattr(schema, "migrations", with_migration(b"ALTER TABLE older.claims ADD COLUMN colour text;"))
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
        """A migration that fails is rolled back completely."""
        url = f"{postgres.url()}?oncegate_schema=halfway"
        open_store(url).close()
        broken = b"CREATE TABLE halfway.more (id integer); CREATE TABLE halfway.claims (id integer);"
        monkeypatch.setattr(schema, "migrations", with_migration(broken))
        with pytest.raises(StoreError, match="already exists"):
            open_store(url)
        with postgres.connect() as db:
            found = db.execute("SELECT version, to_regclass('halfway.more') FROM halfway.meta").fetchone()
            assert found == (NEWEST, None)


def with_migration(migration: bytes) -> object:
    known = schema.migrations
    return lambda sql: [*known(sql), migration]


class TestRefusals:
    """A server or schema that cannot be used is refused with one sentence that says what to do."""

    def refused(self, url: str, message: str, *, create: bool = True) -> None:
        with pytest.raises(StoreRefused, match=re.escape(message)):
            open_store(url, create=create)

    def test_no_store(self, postgres: PostgresServer) -> None:
        """Opening a schema that does not exist with create=False is refused and creates nothing."""
        self.refused(f"{postgres.url()}?oncegate_schema=absent", "there is no store in the schema absent", create=False)
        with postgres.connect() as db:
            assert db.execute("SELECT to_regnamespace('absent')").fetchone() == (None,)
        open_store(f"{postgres.url()}?oncegate_schema=select").close()
        open_store(f"{postgres.url()}?oncegate_schema=select", create=False).close()

    def test_newer(self, postgres: PostgresServer) -> None:
        """A schema of a newer version is refused."""
        url = f"{postgres.url()}?oncegate_schema=newer"
        open_store(url).close()
        with postgres.connect() as db:
            db.execute("UPDATE newer.meta SET version = 99")
        self.refused(url, f"written by a newer Oncegate (schema 99, this version knows {NEWEST}); upgrade Oncegate")

    def test_foreign(self, postgres: PostgresServer) -> None:
        """A schema with tables of another program is refused; an empty schema is used."""
        with postgres.connect() as db:
            db.execute("CREATE SCHEMA theirs CREATE TABLE customers (id integer)")
            db.execute("CREATE SCHEMA ours")
        self.refused(f"{postgres.url()}?oncegate_schema=theirs", "belongs to another program; name another schema")
        open_store(f"{postgres.url()}?oncegate_schema=ours").close()

    def test_no_rights(self, postgres: PostgresServer, role: str) -> None:
        """A role that may not create or use the schema is refused, and the message names the missing privilege."""
        self.refused(f"{postgres.url(user=role)}?oncegate_schema=denied", "(permission denied for database postgres)")
        open_store(f"{postgres.url()}?oncegate_schema=denied").close()
        self.refused(f"{postgres.url(user=role)}?oncegate_schema=denied", "(permission denied for schema denied)")

    @pytest.mark.session
    def test_the_documented_grants(self, postgres: PostgresServer, role: str) -> None:
        """With the grants of the documentation, a role that does not own the schema can do all operations."""
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
        """A read-only session is refused when the store is opened."""
        with postgres.connect() as db:
            db.execute("ALTER ROLE guest SET default_transaction_read_only = on")
        self.refused(f"{postgres.url(user=role)}?oncegate_schema=unmade", "is a replica or read-only; name the primary")

    def test_replica(self) -> None:
        """A hot standby is refused when the store is opened."""
        with postgres_server.running(replica=True) as standby:
            self.refused(standby.url(), "is a replica or read-only; name the primary")

    @pytest.mark.session
    def test_isolation(self, postgres: PostgresServer, role: str) -> None:
        """A default isolation level of serializable is refused: concurrent batches would fail instead of waiting."""
        with postgres.connect() as db:
            db.execute("ALTER ROLE guest SET default_transaction_isolation = serializable")
        url = f"{postgres.url(user=role)}?oncegate_schema=unmade"
        self.refused(url, "SET default_transaction_isolation = 'read committed'")

    def test_encoding(self, postgres: PostgresServer) -> None:
        """A database whose encoding is not UTF8 is refused."""
        with postgres.connect() as db:
            db.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
        self.refused(postgres.url("latin"), "has the encoding LATIN1; use a database with the encoding UTF8")

    def test_too_old(self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server of an unsupported version is refused."""
        monkeypatch.setattr(schema, "_MIN_VERSION", 99)
        self.refused(postgres.url(), "which is too old; use version 99 or newer")
