"""The Redis store on one server: the store contract, expiry, time, and the shortest path of a claim."""

import sys
import time
from contextlib import closing
from types import FrameType
from typing import Any

import pytest

from oncegate import open_store
from oncegate.claims import Duplicate, Granted, InFlight
from oncegate.clocks import Clock
from oncegate.errors import StoreRefused
from oncegate.stores.base import Store
from oncegate.stores.redis.codec import encode_namespace
from oncegate.testing import ManualClock, SharedStoreContract
from oncegate.testing.requests import (
    KEY,
    LEASE,
    NAMESPACE,
    RETENTION,
    bury,
    claim,
    claim_of,
    complete,
    granted,
    release,
    renew,
    stored,
)
from tests import FORKS
from tests.stores.forking import Forks
from tests.stores.redis_server import RedisServer


class TestRedisStore(SharedStoreContract):
    processes = FORKS
    histories = 60

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.server = redis_server
        redis_server.client.flushall()

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url(), clock=clock)

    def open_empty(self, clock: Clock) -> Store:
        self.server.client.flushall()
        return self.open(clock)

    def url(self) -> str:
        return self.server.url


class TestForks(Forks):
    @pytest.fixture
    def url(self, server: RedisServer) -> str:
        return server.url


def test_prefixes_are_separate_stores(server: RedisServer) -> None:
    """Two prefixes on one server are two stores, and every key of a store starts with its prefix."""
    with closing(open_store(f"{server.url}?prefix=a")) as one, closing(open_store(f"{server.url}?prefix=b")) as other:
        granted(one)
        assert isinstance(claim(other, "bob"), Granted)
        assert bury(one, granted(one, key=b"d" * 16), key=b"d" * 16)
        assert other.dead_letters() == []
        assert len(one.browse()) == 2
        assert {key[:1] for key in server.client.keys("*")} == {b"a", b"b"}


def test_one_call_for_a_batch(server: RedisServer, store: Store) -> None:
    """A batch of a thousand claims is one script call."""
    granted(store)
    server.client.config_resetstat()
    store.claim([claim_of(key=number.to_bytes(16)) for number in range(1_000)])
    assert server.client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


def test_closed(server: RedisServer) -> None:
    """A closed store raises StoreRefused."""
    store = open_store(server.url)
    store.close()
    with pytest.raises(StoreRefused, match="was closed"):
        granted(store)


def test_a_single_claim_takes_the_shortest_path(store: Store) -> None:
    """A single claim reaches the socket in three of our frames, in two files: each further frame costs every event."""
    granted(store)  # the first claim also lists the namespace
    stacks: list[list[str]] = []

    def record(frame: FrameType | None, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ == "sendall":
            stack = []
            while frame is not None and frame.f_code.co_name != "granted":
                if "oncegate" in frame.f_code.co_filename and "testing" not in frame.f_code.co_filename:
                    stack.append(frame.f_code.co_filename.rpartition("/")[2])
                frame = frame.f_back
            stacks.append(stack[::-1])

    sys.setprofile(record)
    try:
        granted(store, key=b"2" * 16)
    finally:
        sys.setprofile(None)
    assert stacks == [["store.py", "connection.py", "connection.py"]]


# ── expiry and time ───────────────────────────────────────────────────────────────────────────────────


def test_keys_expire_after_their_records(server: RedisServer, store: Store) -> None:
    """After every verb, Redis expires the key of a record half a minute to a minute after the record itself."""

    def check() -> None:
        record = stored(store)
        assert record is not None
        assert record.expires_at is not None
        left = server.client.pttl(b"oncegate:r" + encode_namespace(NAMESPACE) + KEY) * 1_000
        assert 29_000_000 < left - (record.expires_at - time.time_ns() // 1_000) <= 60_100_000

    record = granted(store)
    check()
    assert renew(store, record, lease=2 * RETENTION)
    check()
    assert release(store, record)
    check()
    second = granted(store, "bob")
    check()
    assert complete(store, second, b"null", retention=20 * RETENTION)
    check()
    claim(store, "cid", slides=100 * RETENTION, retention=30 * RETENTION)
    check()


@pytest.mark.parametrize(("retention", "result"), [(RETENTION, b"null"), (2 * RETENTION, b"null"), (RETENTION, None)])
def test_both_paths_of_completion(store: Store, retention: int, result: bytes | None) -> None:
    """The fast path of a completion leaves the same record as the slow path."""
    record = granted(store)
    assert complete(store, record, result, retention=retention)
    after = stored(store)
    assert after is not None
    assert (after.result, after.error, after.payload, after.about) == (result, None, None, record.about)
    assert after.completed_at is not None
    assert after.expires_at == after.completed_at + retention


def test_redis_deletes_expired_records(server: RedisServer) -> None:
    """Redis itself deletes an expired record that no call reads again."""
    with closing(open_store(server.url)) as store:
        granted(store, retention=LEASE)
        keys = server.client.keys("oncegate:r*")
        assert keys
        server.client.pexpire(keys[0], 1)
        time.sleep(0.05)
        assert server.client.keys("oncegate:r*") == []
        assert store.browse() == []


def test_lists_of_dead_letters_are_bounded(server: RedisServer) -> None:
    """A new dead letter removes expired ones from the lists."""
    clock = ManualClock()
    with closing(open_store(server.url, clock=clock)) as store:
        for number in range(60):
            key = number.to_bytes(16)
            assert bury(store, granted(store, key=key), key=key, retention=RETENTION)
            clock.advance(RETENTION // 10)
        assert server.client.zcard("oncegate:d") == server.client.zcard("oncegate:e") <= 11
        assert len(store.dead_letters()) == 9


def test_an_expired_dead_letter_is_new(server: RedisServer) -> None:
    """An expired dead letter is claimed as a new event, and is in no list."""
    clock = ManualClock()
    with closing(open_store(server.url, clock=clock)) as store:
        assert bury(store, granted(store), retention=RETENTION)
        clock.advance(RETENTION)
        assert granted(store, "bob").attempts == 1
        assert server.client.zcard("oncegate:d") == server.client.zcard("oncegate:e") == 0


def test_time_never_goes_back(server: RedisServer) -> None:
    """A client with an earlier clock decides by the latest time that any client has used."""
    ahead, behind = ManualClock(2_000_000_000_000_000), ManualClock(1_900_000_000_000_000)
    with closing(open_store(server.url, clock=ahead)) as first, closing(open_store(server.url, clock=behind)) as second:
        record = granted(first)
        assert isinstance(claim(second, "bob"), InFlight)
        ahead.advance("30s")
        granted(first, key=b"x" * 16)
        takeover = granted(second, "bob")
        assert takeover.fence == record.fence + 1
        assert takeover.lease_until == ahead.now + LEASE


def test_time_while_the_clock_is_behind(server: RedisServer, store: Store) -> None:
    """After the server's clock was set back by an hour, the time advances by one microsecond for each grant, and fences
    still rise."""
    now = time.time_ns() // 1_000
    high = now + 3_600_000_000
    server.client.set("oncegate:t", high.to_bytes(7) + now.to_bytes(7))
    assert [granted(store, key=b"%016d" % number).fence - high for number in range(3)] == [1, 2, 3]


def test_attempts_are_bounded(server: RedisServer, store: Store) -> None:
    """The attempts of a record, which have two bytes, stop at 65,535."""
    record = granted(store)
    key = b"oncegate:r" + encode_namespace(NAMESPACE) + KEY
    server.client.setrange(key, 8, b"\xff")
    server.client.setrange(key, 16, b"\xff")
    assert release(store, record)
    assert granted(store, "bob").attempts == 65_535


def test_only_grants_store_the_time(server: RedisServer, store: Store) -> None:
    """A duplicate writes nothing, and a completion only its record. Only a grant stores the time."""
    record = granted(store)
    noted = server.client.get("oncegate:t")
    assert complete(store, record, b"null")
    before = server.client.info("persistence")["rdb_changes_since_last_save"]
    assert isinstance(claim(store, "bob"), Duplicate)
    assert server.client.info("persistence")["rdb_changes_since_last_save"] == before
    assert server.client.get("oncegate:t") == noted
    granted(store, key=b"2" * 16)
    assert server.client.get("oncegate:t") > noted
