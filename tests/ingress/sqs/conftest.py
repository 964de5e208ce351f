"""A Redis server, started once for each test file, and a new queue for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.ingress.sqs import client as clients
from tests.ingress.sqs.queues import Cloud, Queue
from tests.stores.dynamo_server import CREDENTIALS
from tests.stores.redis_server import RedisServer

Hook = Callable[[Callable[[Any], None]], None]


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
def short_last_poll(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops waits a moment for open polls. That matters only to tests that release messages."""
    if "full_last_poll" not in request.fixturenames:
        monkeypatch.setattr("oncegate.ingress.sqs.link._LAST_POLL", 0.05)


@pytest.fixture
def full_last_poll() -> None:
    """For tests in which the wait for open polls matters."""


@pytest.fixture
def queue(cloud: Cloud) -> Queue:
    return cloud.queue()


@pytest.fixture
def fifo(cloud: Cloud) -> Queue:
    return cloud.queue(FifoQueue="true", ContentBasedDeduplication="true")


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/claims.db"
    server: RedisServer = request.getfixturevalue("redis")
    server.client.flushall()
    return server.url


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Hook:
    """Registers listeners for the events of botocore's clients."""

    def listen(register: Callable[[Any], None]) -> None:
        made = clients.create_client  # type: ignore[attr-defined]

        def client(*arguments: Any, **options: Any) -> Any:
            client = made(*arguments, **options)
            register(client.meta.events)
            return client

        monkeypatch.setattr(clients, "create_client", client)

    return listen
