"""The Redis store on a cluster of six nodes, and what only a cluster can do to it."""

import pytest

from oncegate import open_store
from oncegate.clocks import Clock
from oncegate.stores.base import Store
from oncegate.testing import SharedStoreContract
from tests.stores.redis_server import RedisCluster


class TestRedisClusterStore(SharedStoreContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, redis_cluster: RedisCluster) -> None:
        self.cluster = redis_cluster
        redis_cluster.flush()

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url(), clock=clock)

    def open_empty(self, clock: Clock) -> Store:
        self.cluster.flush()
        return self.open(clock)

    def url(self) -> str:
        return self.cluster.url
