"""The Redis store against the contract, and what only a server can do to it."""

import pytest

from oncegate import open_store
from oncegate.clocks import Clock
from oncegate.stores.base import Store
from oncegate.testing import SharedStoreContract
from tests.stores.redis_server import RedisServer


class TestRedisStore(SharedStoreContract):
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
