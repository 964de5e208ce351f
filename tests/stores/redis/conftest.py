"""Fixtures for the tests of the Redis store."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from oncegate import open_store
from oncegate.stores.base import Store
from tests.stores.proxy import Proxy
from tests.stores.redis_server import RedisServer


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    """The shared server, emptied."""
    redis_server.client.flushall()
    return redis_server


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    with closing(open_store(server.url)) as opened:
        yield opened


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def replica(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    replica = RedisServer(tmp_path_factory.mktemp("replica"), "--replicaof", f"127.0.0.1 {redis_server.port}")
    replica.until_it_follows()
    yield replica
    replica.stop()
