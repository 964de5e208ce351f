"""Set-up for all tests."""

import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ingress.nats_server import NatsServer
    from tests.ingress.rabbit_server import Rabbit
    from tests.ingress.sqs.queues import Cloud
    from tests.stores.dynamo_server import DynamoServer
    from tests.stores.postgres_server import PostgresServer
    from tests.stores.redis_server import RedisCluster, RedisServer

# A shell starts a background job without job control, such as `make test &` in a script, with SIGINT ignored. Programs
# that the tests start would inherit this, and Ctrl-C would not end them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Rabbit]":
    """A RabbitMQ server, the same in all test processes of this run."""
    from tests.ingress.rabbit_server import shared

    folder = tmp_path_factory.getbasetemp()
    with shared((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "rabbitmq") as rabbit:
        yield rabbit


# The following servers start once in a test process, when the first test needs them. Do not import these fixtures in
# another module: pytest would start another server for the tests there.


@pytest.fixture(scope="session")
def dynamo_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[DynamoServer]":
    from tests.stores.dynamo_server import emulated

    with emulated(tmp_path_factory.mktemp("dynamodb")) as server:
        yield server


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cloud]":
    """Another emulator, with a queue for each test."""
    from tests.ingress.sqs.queues import Cloud

    cloud = Cloud(tmp_path_factory.mktemp("cloud"))
    yield cloud
    cloud.stop()


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[NatsServer]":
    """A NATS server, with a stream for each test."""
    from tests.ingress.nats_server import NatsServer

    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


@pytest.fixture
def table(dynamo_server: "DynamoServer") -> str:
    return dynamo_server.new_table()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> "Iterator[PostgresServer]":
    from tests.stores import postgres_server
    from tests.stores.pgbouncer_server import pooled

    # pytest knows the option only if the command line names tests of tests/stores.
    pooler = pooled if pytestconfig.getoption("--pgbouncer", False) else nullcontext
    with postgres_server.running() as server, pooler(server) as reached:
        yield reached


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RedisServer]":
    from tests.stores.redis_server import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RedisCluster]":
    from tests.stores.redis_server import RedisCluster

    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()
