"""Stores that accept reads but no writes: a probe finds out before an event comes, and known events are answered."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from msgspec import Struct

from oncegate import Event, Gate, keys, open_store
from oncegate.errors import StoreError, StoreReadOnly, StoreRefused
from oncegate.stores.base import CanProbe, Store
from oncegate.stores.circuit_breaker import IN_A_ROW
from oncegate.testing import ManualClock
from oncegate.testing.requests import claim_of
from tests.stores.dynamo_server import DynamoServer
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer
from tests.stores.servers import free_port, until

WITHIN = 800_000
KNOWN = {"id": "known", "type": "call.ended"}
AT = datetime(2026, 1, 1, tzinfo=UTC)


class Place(Struct):
    """A store, and functions that make it refuse and accept writes."""

    url: str
    refuse: Callable[[], object]
    allow: Callable[[], object]
    message: str


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def full(own_redis: RedisServer) -> Place:
    own_redis.client.flushall()
    limit = own_redis.client.config_set
    return Place(
        own_redis.url, lambda: limit("maxmemory", 1), lambda: limit("maxmemory", 0), "is out of memory; nothing was"
    )


@pytest.fixture
def replica(own_redis: RedisServer) -> Place:
    own_redis.client.flushall()
    follow = own_redis.client.replicaof
    primary = free_port()
    return Place(
        own_redis.url,
        lambda: follow("127.0.0.1", str(primary)),
        lambda: follow("NO", "ONE"),
        "has become a read-only replica",
    )


@pytest.fixture
def read_only(postgres: PostgresServer) -> Place:
    def let_write(how: str) -> None:
        with postgres.connect() as db:
            db.execute("SET default_transaction_read_only = off")
            db.execute(f"ALTER SYSTEM SET default_transaction_read_only = {how}".encode())
            db.execute("SELECT pg_reload_conf()")
        until(lambda: shown(postgres) == how, f"default_transaction_read_only = {how}")

    postgres.empty("unwritten")
    url = f"{postgres.url()}?oncegate_schema=unwritten"
    return Place(url, lambda: let_write("on"), lambda: let_write("off"), "accepts no writes now")


def shown(postgres: PostgresServer) -> str:
    with postgres.connect() as db:
        ((value,),) = db.execute("SHOW default_transaction_read_only").fetchall()
    return str(value)


@pytest.fixture(params=["full", "replica", "read_only"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    place: Place = request.getfixturevalue(cast(str, request.param))
    yield place
    place.allow()


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    with closing(open_store(place.url)) as store:
        yield store


def done(_event: Event) -> str:
    return "done"


def test_a_probe(place: Place, store: Store) -> None:
    """A probe fails while the store refuses writes, and succeeds when the store accepts them again."""
    assert isinstance(store, CanProbe)
    store.probe(WITHIN)
    place.refuse()
    with pytest.raises(StoreReadOnly, match=place.message):
        store.probe(WITHIN)
    with pytest.raises(StoreReadOnly, match=place.message):
        store.claim([claim_of()])
    place.allow()
    store.probe(WITHIN)
    assert store.browse() == []


def test_known_events(place: Place, store: Store) -> None:
    """Completed events are duplicates with their result, also in a batch with new events and while the circuit breaker
    is open. New events fail, and are processed when the store accepts writes again."""
    boot = ManualClock(0)
    gate = Gate(store, boot=boot, remember=None)
    assert gate.run(KNOWN, done).status == "processed"
    place.refuse()
    mixed = gate.run_batch([{"id": "new"}, KNOWN, {"id": "newer"}], done)
    assert [outcome.status for outcome in mixed] == ["failed", "duplicate", "failed"]
    assert place.message in (mixed[0].error or "")
    for number in range(IN_A_ROW):
        assert gate.run({"id": number}, done).status == "failed"
    assert gate.counts["breaker.opened"] == 1
    known = [gate.run(KNOWN, done), asyncio.run(gate.arun(KNOWN, done))]
    assert [(outcome.status, outcome.result) for outcome in known] == [("duplicate", "done")] * 2
    assert "circuit breaker open after failures" in (gate.run({"id": "new"}, done).error or "")
    place.allow()
    boot.advance("1s")
    assert gate.run({"id": "new"}, done).status == "processed"


def test_known_state_changes(place: Place, store: Store) -> None:
    """Timelines are read, too: another emission of a known state change is a duplicate."""
    gate = Gate(store, remember=None, key=keys.first(keys.state_change(window="1s"), keys.event_id))

    def emission(number: int) -> Event:
        values: dict[str, Any] = {"source": "test", "type": "t", "entity": "e", "state": "ended", "occurred_at": AT}
        return Event(id=str(number), body={"number": number}, raw=b"%d" % number, **values)

    assert [gate.run(emission(number), done).status for number in range(2)] == ["processed", "duplicate"]
    place.refuse()
    assert gate.run(emission(1), done).status == "duplicate"
    for number in range(IN_A_ROW):
        assert gate.run({"id": number}, done).status == "failed"
    assert gate.counts["breaker.opened"] == 1
    assert gate.run(emission(1), done).status == "duplicate"


def test_a_process_that_has_just_started(place: Place, store: Store) -> None:
    """A process that has just started also answers known events."""
    gate = Gate(store, remember=None)
    gate.run(KNOWN, done)
    with closing(open_store(place.url)) as other:
        fresh = Gate(other, remember=None)
        place.refuse()
        assert fresh.run(KNOWN, done).status == "duplicate"
        assert fresh.run({"id": "new"}, done).status == "failed"


def test_a_changed_eviction_policy(own_redis: RedisServer) -> None:
    """The next probe finds an eviction policy that is set while the server runs, unless eviction is allowed."""
    own_redis.client.flushall()
    with closing(open_store(own_redis.url)) as store, closing(open_store(f"{own_redis.url}?evicting=allowed")) as lax:
        assert isinstance(store, CanProbe)
        assert isinstance(lax, CanProbe)
        store.probe(WITHIN)
        own_redis.client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(StoreRefused, match=r"may evict records to make room .*allkeys-lru"):
                store.probe(WITHIN)
            lax.probe(WITHIN)
        finally:
            own_redis.client.config_set("maxmemory-policy", "noeviction")
        store.probe(WITHIN)


def test_dynamodb(dynamo_server: DynamoServer, table: str) -> None:
    """A probe tries a write whose condition is never met: it writes nothing, and finds a deleted table."""
    with closing(open_store(dynamo_server.url(table))) as store:
        assert isinstance(store, CanProbe)
        store.probe(WITHIN)
        assert store.browse() == []
        dynamo_server.client.delete_table(TableName=table)
        with pytest.raises(StoreError, match="does not exist"):
            store.probe(WITHIN)
