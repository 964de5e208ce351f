"""Servers that several test modules share: started once, when the first test asks for them."""

from collections.abc import Iterator

import pytest

from tests.stores import postgres_server
from tests.stores.dynamo_server import DynamoServer, emulated
from tests.stores.redis_server import RedisCluster, RedisServer


@pytest.fixture(scope="session")
def dynamo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoServer]:
    with emulated(tmp_path_factory.mktemp("dynamodb")) as server:
        yield server


@pytest.fixture
def table(dynamo_server: DynamoServer) -> str:
    return dynamo_server.new_table()


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.PostgresServer]:
    with postgres_server.running() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()
