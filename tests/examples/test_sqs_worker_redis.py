"""The example of workers: the commands of its README, against the emulator and a Redis server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.readme import Readme
from tests.examples.test_lambda_dynamodb import answers
from tests.stores.dynamo_server import executable
from tests.stores.redis_server import RedisServer
from tests.stores.servers import until

REDIS, AWS = 6379, 4566


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def readme(tmp_path: Path, redis: RedisServer) -> Iterator[Readme]:
    executable()
    readme = Readme("sqs_worker_redis", tmp_path, (REDIS, AWS))
    readme.ports[REDIS] = redis.port
    yield readme
    readme.close()


def test_it_does_what_it_says(readme: Readme) -> None:
    """100 events with their duplicates open 100 cases, with two workers."""
    _redis, emulator, up, *workers, simulate, verify = readme.commands("Try it without AWS")
    readme.start(emulator)
    until(lambda: answers(readme.ports[AWS], "/_ministack/health"), "the emulator", 30)
    assert "5 parts created or changed." in readme.done(up)
    for worker in workers:
        readme.start(worker)
    assert "Sent " in readme.done(simulate)
    until(lambda: readme.effects() >= 100, "all events to take effect", 60)
    assert readme.done(verify).startswith("Exactly once: 100 events, 100 effects; ")
    readme.close()
    logs = "".join((readme.folder / f"worker-{number}.jsonl").read_text() for number in (1, 2))
    assert logs.count('"status":"processed"') == 100
