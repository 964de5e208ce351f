"""Servers that several test modules share: started once, when the first test asks for them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from tests.stores import postgres_server
from tests.stores.dynamo_server import DynamoServer, emulated
from tests.stores.pgbouncer_server import pooled
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisCluster, RedisServer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pgbouncer", action="store_true", help="reach Postgres through a PgBouncer in transaction mode")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Behind a pooler, leave out what is about sessions: there nobody has one of their own."""
    if config.getoption("--pgbouncer", False):
        about_sessions = [item for item in items if item.get_closest_marker("session")]
        config.hook.pytest_deselected(items=about_sessions)
        items[:] = [item for item in items if item not in about_sessions]


def _in_front(config: pytest.Config) -> Callable[[PostgresServer], AbstractContextManager[PostgresServer]]:
    # The option is known only where tests of this folder are named, and nowhere else is it asked for.
    return pooled if config.getoption("--pgbouncer", False) else nullcontext


@pytest.fixture(scope="session")
def dynamo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoServer]:
    with emulated(tmp_path_factory.mktemp("dynamodb")) as server:
        yield server


@pytest.fixture
def table(dynamo_server: DynamoServer) -> str:
    return dynamo_server.new_table()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    with postgres_server.running() as server, _in_front(pytestconfig)(server) as reached:
        yield reached


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
