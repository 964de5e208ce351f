"""Stores that an earlier version wrote can be read and used."""

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate import open_store
from oncegate.claims import Duplicate, Granted, InFlight
from oncegate.errors import StoreRefused
from oncegate.stores import open_read_only
from oncegate.stores.sqlite import SqliteStore
from oncegate.testing import ManualClock
from oncegate.testing.requests import claim, seeded
from tests.stores.dynamo_server import DynamoServer
from tests.stores.older_formats import DATA, DAY, LEASE, NAMESPACE, RECORDS, START, assert_usable, key
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer

HOUR = 3_600_000_000


def test_sqlite(tmp_path: Path) -> None:
    """A file of schema 1 is migrated when it is opened to write, and not before."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript((DATA / "sqlite.sql").read_text())
    with pytest.raises(StoreRefused, match="was written by an older Oncegate"):
        open_read_only(f"sqlite:///{path}")
    clock = ManualClock(START)
    assert_usable(SqliteStore(str(path), clock=clock), clock)
    open_read_only(f"sqlite:///{path}").close()


_INSERT = """
INSERT OR REPLACE INTO claims (
    state, attempts, owner, fence, lease_until, payload_hash, expires_at,
    source, type, entity, occurred_at, delivery_id, first_seen, namespace, key
) VALUES ('P', 1, x'61', 7, 8, x'68', ?, 'plain', NULL, NULL, NULL, NULL, 7, 'crm', CAST('new' AS BLOB));
"""
_COMPLETE = """
UPDATE claims SET
    state = 'C', lease_until = 0, payload = NULL, error = NULL, expires_at = ?, completed_at = 9, result = x'30'
WHERE namespace = 'crm' AND key = CAST('new' AS BLOB);
"""


def test_sqlite_beside_a_process_of_version_1(tmp_path: Path) -> None:
    """A process of version 1 that has the file open can still write it after another process has migrated it."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript((DATA / "sqlite.sql").read_text())
        with closing(SqliteStore(str(path), clock=ManualClock(START))) as store:
            old.execute(_INSERT, (START + DAY,))
            old.execute(_COMPLETE, (START + DAY,))
            old.commit()
            (entry,) = store.browse(key=b"new")
    assert (entry.record.state, entry.record.result) == ("C", b"0")
    assert (entry.record.lost, entry.record.unavailable_since, entry.record.handed_to) == (0, None, None)


def _version_1(postgres: PostgresServer, schema: str) -> str:
    """Create a schema of version 1 and return the URL of its store."""
    text = (DATA / "postgres.sql").read_text().replace("oncegate.", f"{schema}.")
    with postgres.connect() as db:
        db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}; {text}".encode())
    return f"{postgres.url()}?oncegate_schema={schema}"


def test_postgres(postgres: PostgresServer) -> None:
    """A schema of version 1 is migrated when it is opened, with its records."""
    clock = ManualClock(START)
    assert_usable(open_store(_version_1(postgres, "older_1"), clock=clock), clock)
    with postgres.connect() as db:
        shown = db.execute("SELECT state, handed_to, lost FROM older_1.readable WHERE handed_to IS NOT NULL").fetchall()
    assert shown == [("C", "sqs://queue", 0)]


def test_postgres_whose_clock_was_set_back(postgres: PostgresServer) -> None:
    """A schema of version 1 whose time was ahead of the clock keeps its leases through the migration and through a
    correction of the clock."""
    url, held = _version_1(postgres, "older_3"), RECORDS["held"]
    with postgres.connect() as db:
        db.execute("UPDATE older_3.meta SET high = %s, ahead = %s", (START + HOUR, HOUR))
        db.execute("UPDATE older_3.claims SET lease_until = %s WHERE key = %s", (START + HOUR + LEASE, key("held")))
    clock = ManualClock(START)
    with closing(open_store(url, clock=clock)) as store:
        for _ in range(2):
            again = claim(store, "dan", namespace=NAMESPACE, key=key("held"), payload_hash=held.payload_hash)
            assert isinstance(again, InFlight)
            clock.advance(HOUR)


def test_postgres_of_version_2(postgres: PostgresServer) -> None:
    """The functions of a schema of version 2 are replaced: they did not yet accept a record of unknown content."""
    url, rule = f"{postgres.url()}?oncegate_schema=older_4", "payload_hash NOT IN (a.hash, '')"
    open_store(url).close()
    with postgres.connect() as db:
        (source,) = db.execute("SELECT pg_get_functiondef('older_4.claim_2'::regproc)").fetchone() or ("",)
        assert rule in source
        db.execute(source.replace(rule, "payload_hash <> a.hash").encode())
        db.execute("UPDATE older_4.meta SET version = 2")
    with closing(open_store(url)) as store:
        assert isinstance(seeded(store), Granted)
        assert isinstance(claim(store), Duplicate)


# Calls of processes of version 1, with the functions of version 1.
_CLAIM_1 = """SELECT verdict, state, attempts, payload FROM older_2.claim(
    %(now)s, '{crm}', ARRAY[%(key)s::bytea], ARRAY[%(owner)s::bytea], ARRAY[%(hash)s::bytea],
    ARRAY[%(lease)s], ARRAY[%(day)s], '{t}', '{f}', '{0}', '{plain}', '{NULL}', '{NULL}', '{NULL}', '{NULL}')"""
_SETTLE_1 = """SELECT older_2.settle(
    %(now)s, '{C}', '{crm}', ARRAY[%(key)s::bytea], ARRAY[%(owner)s::bytea], ARRAY[%(fence)s], ARRAY[%(day)s],
    ARRAY[%(hash)s::bytea], '{NULL}', '{f}')"""
_ADMIT_1 = """SELECT verdict, state, attempts, payload FROM older_2.admit(
    %(now)s, '{crm}', ARRAY[%(key)s::bytea], ARRAY[%(owner)s::bytea], ARRAY[%(hash)s::bytea], '{kept}', '{t}',
    '{plain}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{0}')"""
_TAKE_1 = """SELECT key, state, attempts, payload
    FROM older_2.take(%(now)s, 'crm', ARRAY[%(owner)s::bytea], ARRAY[%(lease)s])"""


def test_postgres_beside_a_process_of_version_1(postgres: PostgresServer) -> None:
    """A process of version 1 can still call its functions, prepared before the migration or not. The functions follow
    the rules of the current version."""
    url = _version_1(postgres, "older_2")
    values: dict[str, Any] = {"owner": b"o" * 16, "hash": b"h" * 16, "lease": LEASE, "day": DAY, "now": START + 4}
    with postgres.connect() as old:
        old.prepare_threshold = 0
        assert old.execute(_CLAIM_1, values | {"key": b"new"}).fetchone() == (None, None, None, None)
        assert old.execute(_TAKE_1, values).fetchone() == (key("redriven"), "P", 1, b'{"id":"evt-7"}')
        with closing(open_store(url, clock=ManualClock(START + 5))) as store:
            assert old.execute(_SETTLE_1, values | {"key": b"new", "fence": START + 4}).fetchone() == (None,)
            assert old.execute(_CLAIM_1, values | {"key": b"new"}).fetchone() == ("G", "C", 1, None)
            values["now"] = START + 4 + LEASE
            assert old.execute(_CLAIM_1, values | {"key": key("held")}).fetchone() == ("G", "P", 1, None)
            assert old.execute(_ADMIT_1, values | {"key": key("retried")}).fetchone() == ("A", "R", 1, b"kept")
            assert old.execute(_TAKE_1, values).fetchone() == (key("admitted"), "P", 1, b'{"id":"evt-5"}')
            assert old.execute(_TAKE_1, values).fetchone() == (key("taken"), "P", 1, b'{"id":"evt-6"}')
            records = {entry.key: entry.record for entry in store.browse()}
    assert {each: record.lost for each, record in records.items() if record.lost} == {
        key("held"): 1,
        key("retried"): 1,
        key("taken"): 1,
    }
    assert (records[b"new"].state, records[b"new"].result) == ("C", b"h" * 16)


def test_redis(redis_server: RedisServer) -> None:
    """Records of layout 1 are read as they are, and written in the current layout when they change."""
    redis_server.client.flushall()
    for name, value in json.loads((DATA / "redis.json").read_text()).items():
        where = bytes.fromhex(name)
        if isinstance(value, str):
            redis_server.client.set(where, bytes.fromhex(value))
        elif isinstance(value, list):
            redis_server.client.sadd(where, *map(bytes.fromhex, value))
        else:
            redis_server.client.zadd(where, {bytes.fromhex(member): score for member, score in value.items()})
    clock = ManualClock(START)
    assert_usable(open_store(redis_server.url, clock=clock), clock)


def test_dynamodb(dynamo_server: DynamoServer) -> None:
    """Items without the newer attributes are read; a newer attribute is written only if it has a value."""
    table, clock = dynamo_server.new_table(), ManualClock(START)
    store = open_store(dynamo_server.url(table), clock=clock)
    for item in json.loads((DATA / "dynamodb.json").read_text()):
        attributes = {name: _attribute(*value.items()) for name, value in item.items()}
        dynamo_server.client.put_item(TableName=table, Item=attributes)
    assert_usable(store, clock)
    items = {item["key"]["S"]: item for item in dynamo_server.client.scan(TableName=table)["Items"]}
    new = {"lost", "unavailableSince", "handedTo"}
    written = {bytes.fromhex(name).rstrip(b"-").decode(): new & item.keys() for name, item in items.items()}
    assert {name: names for name, names in written.items() if names} == {
        "retried": {"handedTo"},
        "held": {"unavailableSince"},
    }


def _attribute(value: tuple[str, str]) -> dict[str, Any]:
    kind, text = value
    return {kind: base64.b64decode(text) if kind == "B" else text}
