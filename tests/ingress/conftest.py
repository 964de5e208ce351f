"""The emulator of SQS and a Redis server, started once for all tests of a file, and a fresh queue for each."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.ingress.sqs import client as clients
from tests.ingress.queues import Cloud, Queue
from tests.stores.dynamo_server import CREDENTIALS
from tests.stores.redis_server import RedisServer

Hook = Callable[[Callable[[Any], None]], None]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    cloud = Cloud(tmp_path_factory.mktemp("cloud"))
    yield cloud
    cloud.stop()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops waits a moment for its open polls, which matters only where it lets go of something."""
    if "patient" not in request.fixturenames:
        monkeypatch.setattr("oncegate.ingress.sqs.worker._LAST_POLL", 0.05)


@pytest.fixture
def patient() -> None:
    """This test is about what is let go."""


@pytest.fixture
def queue(cloud: Cloud) -> Queue:
    return cloud.queue()


@pytest.fixture
def fifo(cloud: Cloud) -> Queue:
    return cloud.queue(FifoQueue="true", ContentBasedDeduplication="true")


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that is empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/claims.db"
    server: RedisServer = request.getfixturevalue("redis")
    server.client.flushall()
    return server.url


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Hook:
    """Have a test hear the events of botocore's clients."""

    def listen(register: Callable[[Any], None]) -> None:
        made = clients.create_client  # type: ignore[attr-defined]

        def client(*arguments: Any, **options: Any) -> Any:
            client = made(*arguments, **options)
            register(client.meta.events)
            return client

        monkeypatch.setattr(clients, "create_client", client)

    return listen
