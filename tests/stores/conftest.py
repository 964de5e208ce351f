"""Servers that several test modules share. Each starts once, when the first test needs it."""

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
    """With PgBouncer, leave out tests of sessions: in transaction mode no client has its own session."""
    if config.getoption("--pgbouncer", False):
        of_sessions = [item for item in items if item.get_closest_marker("session")]
        config.hook.pytest_deselected(items=of_sessions)
        items[:] = [item for item in items if item not in of_sessions]


def _pooler(config: pytest.Config) -> Callable[[PostgresServer], AbstractContextManager[PostgresServer]]:
    # pytest knows the option only if the command line names tests of this folder.
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
    with postgres_server.running() as server, _pooler(pytestconfig)(server) as reached:
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
