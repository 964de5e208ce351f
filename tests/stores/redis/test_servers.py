"""Servers and buckets: a cluster of six nodes, moving slots and failovers."""

import os
import re
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from msgspec.structs import replace
from redis.crc import key_slot

from oncegate import Event, Gate, open_store
from oncegate.claims import Bury, InFlight, Redrive
from oncegate.clocks import Clock
from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.stores.base import Store, TakeRequest
from oncegate.stores.redis import RedisStore
from oncegate.stores.redis.script_calls import ScriptCaller
from oncegate.stores.redis.servers import _slot_of
from oncegate.testing import SharedStoreContract
from oncegate.testing.requests import LEASE, NAMESPACE, RETENTION, claim, claim_of, complete, granted
from tests import FORKS
from tests.stores.redis_server import RedisCluster, RedisServer
from tests.stores.servers import until


class TestRedisClusterStore(SharedStoreContract):
    processes = FORKS
    histories = 60

    @pytest.fixture(autouse=True)
    def _cluster(self, redis_cluster: RedisCluster) -> None:
        self.cluster = redis_cluster
        redis_cluster.flush()

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url(), clock=clock)

    def open_empty(self, clock: Clock) -> Store:
        self.cluster.flush()
        return open_store(f"{self.url()}?buckets=2", clock=clock)

    def url(self) -> str:
        return self.cluster.url


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> RedisCluster:
    redis_cluster.flush()
    return redis_cluster


@pytest.fixture
def store(cluster: RedisCluster) -> Iterator[RedisStore]:
    with closing(open_store(cluster.url)) as opened:
        assert isinstance(opened, RedisStore)
        yield opened


def test_slots() -> None:
    """The slot of a hash tag is the one that redis-py computes."""
    for tag in (b"layout", *(b"%x" % number for number in range(1_000))):
        assert _slot_of(tag) == key_slot(b"prefix{" + tag + b"}r")


@pytest.mark.parametrize("buckets", [1, 3, 16, 100])
def test_buckets_are_spread_evenly(cluster: RedisCluster, buckets: int) -> None:
    """Three primaries have equal numbers of buckets, give or take one, and all keys of a bucket are in one slot."""
    with closing(open_store(f"{cluster.url}?buckets={buckets}&prefix=b{buckets}")) as store:
        assert isinstance(store, RedisStore)
        servers = store._open().servers
        shares = Counter(servers.server_of(bucket).name for bucket in range(buckets))
        assert max(shares.values()) - min(shares.values()) <= 1
        for base in servers.key_prefixes:
            assert key_slot(base + b"t") == key_slot(base + b"rcrm\0" + b"}{" * 8)


def test_few_calls_for_a_batch(cluster: RedisCluster, store: RedisStore) -> None:
    """A batch of a thousand claims is one script call for each bucket."""
    store.claim([claim_of(key=b"%016d" % number) for number in range(1_000)])
    for node in cluster.primaries():
        node.client.config_resetstat()
    store.claim([claim_of(key=b"x%015d" % number) for number in range(1_000)])
    stats = [node.client.info("commandstats") for node in cluster.primaries()]
    assert sum(stat["cmdstat_evalsha"]["calls"] for stat in stats) == 16


def test_another_number_of_buckets(cluster: RedisCluster, store: RedisStore) -> None:
    """A store is not opened with another number of buckets: claims would be looked for in the wrong bucket."""
    with pytest.raises(StoreRefused, match=re.escape("was made with 16 buckets, not 8; write ?buckets=16")):
        open_store(f"{cluster.url}?buckets=8")


def test_a_node_is_not_a_single_server(cluster: RedisCluster) -> None:
    """A node of a cluster is is_unavailable as a single server."""
    with pytest.raises(StoreRefused, match=re.escape("write redis+cluster:// instead of redis://")):
        open_store(cluster.nodes[0].url)


class Move:
    """A slot that moves from one primary to another."""

    def __init__(self, cluster: RedisCluster, slot: int, source: RedisServer, target: RedisServer) -> None:
        self.cluster, self.slot, self.source, self.target = cluster, slot, source, target
        self.new, old = (node.client.execute_command("CLUSTER", "MYID") for node in (target, source))
        target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.new)

    def migrate(self, kind: bytes = b"}") -> None:
        """Migrate the keys that have this in their name."""
        found = self.source.client.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000)
        keys = [key for key in found if kind in key]
        self.source.client.execute_command("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5_000, "KEYS", *keys)

    def finish(self) -> None:
        self.migrate()
        others = [node for node in self.cluster.primaries() if node not in (self.target, self.source)]
        for node in [self.target, self.source, *others]:
            node.client.execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", self.new)


class TestMovingSlots:
    @pytest.fixture(autouse=True)
    def _restore_slot(self, cluster: RedisCluster, store: RedisStore) -> Iterator[None]:
        """The first bucket has one record. After the test, the slot is moved back."""
        self.servers = store._open().servers
        self.slot = key_slot(self.servers.key_prefixes[0])
        here, there = (self.servers.server_of(bucket).name for bucket in (0, 15))
        self.source, self.target = (cluster.node(name) for name in (here, there))
        self.key = next(key for key in map(b"%016d".__mod__, count()) if store._open().bucket_of(key) == 0)
        self.record = granted(store, key=self.key)
        yield
        back = Move(cluster, self.slot, self.target, self.source)
        back.finish()

    def test_moved(self, cluster: RedisCluster, store: RedisStore) -> None:
        """After a slot has moved to another primary, the next call finds it, with its records."""
        Move(cluster, self.slot, self.source, self.target).finish()
        assert complete(store, self.record, key=self.key)
        assert self.servers.server_of(0) is self.servers.server_of(15)

    def test_while_it_moves(self, cluster: RedisCluster, store: RedisStore) -> None:
        """While a record is separated from the rest of its bucket, no claim on it is granted. Afterwards its state is
        unchanged."""
        move = Move(cluster, self.slot, self.source, self.target)
        move.migrate(b"}r")
        with pytest.raises(StoreUnavailable, match="is moving the slot"):
            claim(store, "bob", key=self.key)
        move.finish()
        assert isinstance(claim(store, "bob", key=self.key), InFlight)

    def test_claims_beside_a_failure_are_released(self, cluster: RedisCluster, store: RedisStore) -> None:
        """When one bucket of a batch fails, the claims granted in other buckets are released, and the attempt does not
        count."""
        batch = [claim_of(key=key) for key in (self.key, *(b"other-%d" % number for number in range(20)))]
        move = Move(cluster, self.slot, self.source, self.target)
        move.migrate(b"}r")
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="is moving the slot"):
                store.claim([replace(each, owner=os.urandom(16)) for each in batch])
        move.finish()
        records = [entry.record for entry in store.browse() if entry.key != self.key]
        assert {(record.state, record.attempts) for record in records} == {("R", 0)}

    def test_takes_beside_a_failure_are_released(self, cluster: RedisCluster, store: RedisStore) -> None:
        """When one bucket of a take fails, the events taken from other buckets wait again, and the attempt does not
        count."""
        others = [b"waits-%d" % number for number in range(20)]
        keys = [key for key in others if store._open().bucket_of(key) != 0]
        for key in [self.key, *keys]:
            record = self.record if key == self.key else granted(store, key=key)
            assert store.settle([Bury(NAMESPACE, key, record.owner, record.fence, RETENTION, b"{}", "broken")]) == [
                True
            ]
        assert all(store.redrive([Redrive(NAMESPACE, key) for key in [self.key, *keys]]))
        move = Move(cluster, self.slot, self.source, self.target)
        move.migrate(b"}r")
        with pytest.raises(StoreUnavailable, match="is moving the slot"):
            store.take([TakeRequest(NAMESPACE, os.urandom(16), LEASE) for _ in range(30)])
        move.finish()
        records = [entry.record for entry in store.browse()]
        assert {(record.state, record.attempts) for record in records} == {("R", 0)}


def server_name(caller: ScriptCaller, key: bytes) -> str:
    """The server that has the bucket of this key."""
    return caller.servers.server_of(caller.bucket_of(key)).name


def is_unavailable(store: RedisStore, key: bytes) -> bool:
    try:
        claim(store, key=key)
    except StoreUnavailable:
        return True
    return False


class TestFailover:
    """A primary hangs, or is killed while workers run events through a gate."""

    EVENTS = 600
    WORKERS = 4
    BATCH = 10

    @pytest.fixture(autouse=True)
    def _restore_cluster(self, cluster: RedisCluster) -> Iterator[None]:
        self.hung: list[RedisServer] = []
        yield
        for node in self.hung:
            os.kill(node.pid, signal.SIGCONT)
        for node in cluster.nodes:
            if not node.running:
                node.start()
                node.wait()
        until(cluster.whole, "the cluster to be whole again")

    def test_a_primary_that_hangs(self, cluster: RedisCluster) -> None:
        """A store that knows a hanging primary finds its successor once there is one, and from then on does not wait
        for the old primary."""
        with closing(open_store(f"{cluster.url}?timeout=300ms&connect_timeout=300ms")) as store:
            assert isinstance(store, RedisStore)
            caller = store._open()
            hung = cluster.primaries()[0]
            keys = (key for key in map(b"%016d".__mod__, count()) if hung.url.endswith(server_name(caller, key)))
            granted(store, key=next(keys))
            self.hang(hung)
            with pytest.raises(StoreUnavailable, match="did not answer in time"):
                granted(store, key=next(keys))
            later = next(keys)
            until(lambda: not is_unavailable(store, later), "a successor to be found")
            asked_at = time.monotonic()
            granted(
                store,
                key=next(
                    key for key in map(b"%016d".__mod__, count(500)) if caller.bucket_of(key) == caller.bucket_of(later)
                ),
            )
            assert time.monotonic() - asked_at < 0.3
            assert not hung.url.endswith(server_name(caller, later))

    def hang(self, node: RedisServer) -> None:
        os.kill(node.pid, signal.SIGSTOP)
        self.hung.append(node)

    def test_work_continues(self, cluster: RedisCluster) -> None:
        """In the end every event is acknowledged. A sink that is idempotent on the key has each event once, and few
        effects are attempted twice."""
        self.attempted: Counter[str] = Counter()
        self.sink: dict[str, int] = {}
        self.reasons: list[str] = []
        self.queue: deque[list[dict[str, str]]] = deque()
        for start in range(0, self.EVENTS, self.BATCH):
            self.queue.append([{"id": f"event-{number}"} for number in range(start, start + self.BATCH)])
        gate = Gate(open_store(f"{cluster.url}?timeout=1s"), lease="2s", max_attempts=None)
        workers = [threading.Thread(target=self.work, args=(gate,)) for _ in range(self.WORKERS)]
        for worker in workers:
            worker.start()
        until(lambda: len(self.sink) > self.EVENTS // 10, "work to begin")
        cluster.primaries()[0].kill()
        killed_at = len(self.sink)
        for worker in workers:
            worker.join(60)
        gate.store.close()
        assert killed_at < self.EVENTS
        assert set(self.attempted) == {f"event-{number}" for number in range(self.EVENTS)}, self.reasons[-3:]
        assert list(self.sink.values()) == [1] * self.EVENTS
        assert self.attempted.total() <= self.EVENTS + 2 * self.WORKERS * self.BATCH

    def work(self, gate: Gate) -> None:
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            try:
                batch = self.queue.popleft()
            except IndexError:
                return
            outcomes = gate.run_batch(batch, self.effect)
            left = [payload for payload, outcome in zip(batch, outcomes, strict=True) if not outcome.acked]
            self.reasons += [outcome.reason for outcome in outcomes if not outcome.acked]
            if left:
                self.queue.append(left)
                time.sleep(0.05)

    def effect(self, event: Event) -> None:
        time.sleep(0.002)
        self.attempted[str(event.id)] += 1
        self.sink.setdefault(str(event.key), 1)
