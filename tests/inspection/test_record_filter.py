"""The order of lists on every store, and the time at which an event became a dead letter."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from oncegate import Gate, open_store
from oncegate.claims import DEAD
from oncegate.clocks import wall
from oncegate.inspection.record_filter import Newest, RecordFilter, dead_since, list_newest
from oncegate.stores.base import Entry
from oncegate.testing import ManualClock
from tests.cli.conftest import Run
from tests.stores.dynamo_server import DynamoServer
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisCluster, RedisServer

DAY = 86_400_000_000
LATEST = "the first that was seen and the last that died"


@pytest.fixture(params=["sqlite", "redis", "cluster", "dynamodb", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/claims.db"
    if request.param == "dynamodb":
        emulator: DynamoServer = request.getfixturevalue("dynamo_server")
        return emulator.url(emulator.new_table())
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return f"{postgres.url()}?oncegate_schema=listed"
    if request.param == "cluster":
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        cluster.flush()
        return cluster.url
    server: RedisServer = request.getfixturevalue("redis_server")
    server.client.flushall()
    return server.url


def bury_in_turn(gate: Gate) -> list[str]:
    """Make dead letters one after the other. Returns their event ids, the newest dead letter first."""
    gate.run({"id": LATEST}, lambda event: 1 / 0)
    for number in range(12):
        for _attempt in range(2):
            gate.run({"id": str(number)}, lambda event: 1 / 0)
    gate.run({"id": LATEST}, lambda event: 1 / 0)
    return [LATEST, *(str(number) for number in reversed(range(12)))]


def test_every_store_lists_the_newest_first(oncegate: Run, url: str) -> None:
    """`dlq list` shows the dead letter that died last first. Its order is not the order of addresses or of first
    deliveries."""
    with closing(Gate(url, max_attempts=2)) as gate:
        expected = bury_in_turn(gate)
        _, out, err = oncegate("dlq", "list", "--output", "json", "--store", url, "--limit", "12")
        assert [each["event_id"] for each in json.loads(out)] == expected[:12]
        assert err == "Showing the newest 12 of 13; use --limit to see more.\n"
        _, out, _ = oncegate("keys", "list", "--output", "json", "--store", url, "--state", "dead", "--limit", "12")
        assert [each["event_id"] for each in json.loads(out)] == expected[1:]


def test_the_memory_store_lists_the_newest_first() -> None:
    """The same for the store that no other process can read."""
    store = open_store("memory://")
    expected = bury_in_turn(Gate(store, max_attempts=2))
    chosen = RecordFilter(lambda entry: dead_since(entry, {None: 30 * DAY}))
    found = list_newest(store.dead_letters(), chosen, 5, 100)
    assert [entry.record.about.delivery_id for entry in found.entries] == expected[:5]
    assert (found.count, found.is_cut, found.scanned) == (13, True, None)
    assert all(entry.record.payload is None for entry in found.entries)


@pytest.fixture
def entry() -> Entry:
    """A dead letter that died a day after its first delivery, two days ago."""
    clock = ManualClock(wall() - 3 * DAY)
    store = open_store("memory://", clock=clock)
    gate = Gate(store, max_attempts=2, dead_letter_retention="30d")
    gate.run({"id": "evt-1"}, lambda event: 1 / 0)
    clock.advance("1d")
    gate.run({"id": "evt-1"}, lambda event: 1 / 0)
    (found,) = store.dead_letters()
    return found


def test_when_it_died(entry: Entry) -> None:
    """The time comes from the expiry and the retention of the namespace. If the settings have another retention, and
    the time is impossible, the time of the first delivery counts."""
    died = entry.record.first_seen + DAY
    assert dead_since(entry, {None: 30 * DAY}) == died
    assert dead_since(entry, {None: DAY, "default": 30 * DAY}) == died
    assert dead_since(entry, {None: 90 * DAY}) == entry.record.first_seen
    assert dead_since(entry, {None: DAY}) == entry.record.first_seen
    without_expiry = replace(entry, record=replace(entry.record, expires_at=None))
    assert dead_since(without_expiry, {None: 30 * DAY}) == entry.record.first_seen


def test_ages_count_from_that_time(entry: Entry) -> None:
    """--older-than and --newer-than count from the time at which the event became a dead letter."""
    chosen = RecordFilter(lambda entry: dead_since(entry, {None: 30 * DAY}), state=DEAD)
    assert replace(chosen, older_than=DAY).matches(entry)
    assert not replace(chosen, older_than=5 * DAY // 2).matches(entry)
    assert replace(chosen, newer_than=5 * DAY // 2).matches(entry)
    assert not replace(chosen, newer_than=DAY).matches(entry)


def test_a_record_that_a_scan_yields_twice(entry: Entry) -> None:
    """A record is listed once."""
    newest = Newest(2, chosen := RecordFilter().time_of)
    for _ in range(3):
        newest.add(entry)
    other = replace(entry, key=b"o" * 16)
    newest.add(other)
    assert {each.key for each in newest.entries} == {entry.key, other.key}
    assert not newest.is_cut
    assert chosen(entry) == entry.record.first_seen
