"""Servers for the programs of tutorials and for the files that replace them."""

from collections.abc import Iterator

import pytest

from tests.ingress.sqs.queues import Cloud
from tests.stores import postgres_server
from tests.stores.dynamo_server import CREDENTIALS, REGION
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer


@pytest.fixture(scope="package")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        server = Cloud(tmp_path_factory.mktemp("aws"))
        yield server
        server.stop()


@pytest.fixture
def cloud(emulator: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """The emulator, at which programs with boto3 arrive without an option."""
    settings = {**CREDENTIALS, "AWS_ENDPOINT_URL": emulator.endpoint, "AWS_DEFAULT_REGION": REGION}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return emulator


@pytest.fixture(scope="package")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    redis_server.client.flushall()
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    return redis_server


@pytest.fixture(scope="package")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server.running() as server:
        yield server
