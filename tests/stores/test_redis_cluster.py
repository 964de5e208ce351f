"""The Redis store on a cluster of six nodes, and what only a cluster can do to it."""

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from redis.crc import key_slot

from oncegate import Event, Gate, open_store
from oncegate.claims import InFlight
from oncegate.clocks import Clock
from oncegate.errors import StoreRefused, StoreUnavailable
from oncegate.stores.base import Store
from oncegate.stores.redis import RedisStore
from oncegate.testing import SharedStoreContract
from oncegate.testing.asking import claim, claim_of, complete, granted
from tests.stores.redis_server import RedisCluster, RedisServer
from tests.stores.servers import until


class TestRedisClusterStore(SharedStoreContract):
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


@pytest.mark.parametrize("buckets", [1, 3, 16, 100])
def test_buckets_are_spread_evenly(cluster: RedisCluster, buckets: int) -> None:
    """Each of three primaries has a third of the buckets, one more or less, and all of a bucket is in one slot."""
    with closing(open_store(f"{cluster.url}?buckets={buckets}&prefix=b{buckets}")) as store:
        assert isinstance(store, RedisStore)
        servers = store._open().servers
        shares = Counter(servers.having(bucket).name for bucket in range(buckets))
        assert max(shares.values()) - min(shares.values()) <= 1
        for base in servers.bases:
            assert key_slot(base + b"t") == key_slot(base + b"rcrm\0" + b"}{" * 8)


def test_few_calls_for_a_batch(cluster: RedisCluster, store: RedisStore) -> None:
    """A batch of a thousand claims is one call of a script for each bucket."""
    store.claim([claim_of(key=b"%016d" % number) for number in range(1_000)])
    for node in cluster.primaries():
        node.client.config_resetstat()
    store.claim([claim_of(key=b"x%015d" % number) for number in range(1_000)])
    stats = [node.client.info("commandstats") for node in cluster.primaries()]
    assert sum(stat["cmdstat_evalsha"]["calls"] for stat in stats) == 16


def test_another_number_of_buckets(cluster: RedisCluster, store: RedisStore) -> None:
    """A store is not opened with other buckets than it was made with: claims would be looked for in the wrong place."""
    with pytest.raises(StoreRefused, match=re.escape("was made with 16 buckets, not 8; write ?buckets=16")):
        open_store(f"{cluster.url}?buckets=8")


def test_a_node_is_no_single_server(cluster: RedisCluster) -> None:
    """A node of a cluster is not used as if it were alone."""
    with pytest.raises(StoreRefused, match=re.escape("write redis+cluster:// instead of redis://")):
        open_store(cluster.nodes[0].url)


class Move:
    """A slot on its way from one primary to another."""

    def __init__(self, cluster: RedisCluster, slot: int, source: RedisServer, target: RedisServer) -> None:
        self.cluster, self.slot, self.source, self.target = cluster, slot, source, target
        self.new, old = (node.client.execute_command("CLUSTER", "MYID") for node in (target, source))
        target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.new)

    def carry(self, kind: bytes = b"}") -> None:
        """Bring keys over that have this in their name."""
        found = self.source.client.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000)
        keys = [key for key in found if kind in key]
        self.source.client.execute_command("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5_000, "KEYS", *keys)

    def finish(self) -> None:
        self.carry()
        others = [node for node in self.cluster.primaries() if node not in (self.target, self.source)]
        for node in [self.target, self.source, *others]:
            node.client.execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", self.new)


class TestMovingSlots:
    @pytest.fixture(autouse=True)
    def _ends(self, cluster: RedisCluster, store: RedisStore) -> Iterator[None]:
        """The first bucket has one record, and is where it was when the test is over."""
        self.servers = store._open().servers
        self.slot = key_slot(self.servers.bases[0])
        here, there = (self.servers.having(bucket).name for bucket in (0, 15))
        self.source, self.target = (cluster.node(name) for name in (here, there))
        self.key = next(key for key in map(b"%016d".__mod__, count()) if store._open().of(key) == 0)
        self.record = granted(store, key=self.key)
        yield
        back = Move(cluster, self.slot, self.target, self.source)
        back.finish()

    def test_moved(self, cluster: RedisCluster, store: RedisStore) -> None:
        """When a slot has got another primary, the next call finds it, and its records are there."""
        Move(cluster, self.slot, self.source, self.target).finish()
        assert complete(store, self.record, key=self.key)
        assert self.servers.having(0) is self.servers.having(15)

    def test_on_the_move(self, cluster: RedisCluster, store: RedisStore) -> None:
        """While a record is away from the rest of its bucket it is granted to nobody; afterwards all is as it was."""
        move = Move(cluster, self.slot, self.source, self.target)
        move.carry(b"}r")
        with pytest.raises(StoreUnavailable, match="is moving the slot"):
            claim(store, "bob", key=self.key)
        move.finish()
        assert isinstance(claim(store, "bob", key=self.key), InFlight)


class TestFailover:
    """A primary is killed while workers take events through a gate."""

    EVENTS = 600
    WORKERS = 4
    BATCH = 10

    @pytest.fixture(autouse=True)
    def _whole_again(self, cluster: RedisCluster) -> Iterator[None]:
        yield
        for node in cluster.nodes:
            if not node.running:
                node.start()
                node.wait()
        until(cluster.whole, "the cluster to be whole again")

    def test_work_goes_on_by_itself(self, cluster: RedisCluster) -> None:
        """Every event is acknowledged in the end; a sink that is idempotent on the key has each once; few effects are
        attempted twice."""
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
