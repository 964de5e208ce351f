"""SQS and Redis: the program of a tutorial and the worker that replaces it, on an emulator and a Redis server."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncegate import Gate, keys
from tests.ingress.sqs.queues import Cloud, Queue
from tests.stores.redis_server import RedisServer
from tests.stores.servers import until
from tests.tutorials.page import SQS, event, failing_once, file_of, loaded, program_of

pytestmark = pytest.mark.usefixtures("cloud", "redis")


@pytest.fixture
def queue(cloud: Cloud) -> Iterator[Queue]:
    queue = cloud.queue(receives=2, VisibilityTimeout="1")
    yield queue
    queue.delete()


@contextmanager
def the_program(process: Any) -> Iterator[Any]:
    program = loaded(program_of(SQS), process=process)
    yield program
    program["sqs"].close()
    program["cache"].close()


class TestTheProgram:
    def test_it_loses_an_event_that_failed(self, queue: Queue) -> None:
        """The mark stays, so the next delivery is a duplicate and is deleted, also after a restart."""
        effects: list[Any] = []
        process = failing_once(effects)
        queue.send(event())
        with the_program(process) as program, pytest.raises(ValueError, match="boom"):
            program["poll"](queue.url)
        until(lambda: queue.visible() == 1, "the message to be visible again")
        with the_program(process) as program:
            program["poll"](queue.url)
        assert (effects, queue.left()) == ([], 0)

    def test_it_drops_events_without_an_id(self, queue: Queue) -> None:
        """Of two events without an id, one runs and both messages are deleted."""
        effects: list[Any] = []
        queue.send({"conversationId": "c-1"}, {"conversationId": "c-2"})
        with the_program(effects.append) as program:
            program["poll"](queue.url)
        assert (len(effects), queue.left()) == (1, 0)

    def test_an_unreadable_message_stops_it(self, queue: Queue) -> None:
        """A message that is not JSON ends the loop, and stays in the queue."""
        queue.send("no JSON")
        with the_program(print) as program, pytest.raises(json.JSONDecodeError):
            program["poll"](queue.url)
        assert queue.left() == 1

    def test_a_receipt_has_the_id_of_its_message(self) -> None:
        """The program drops the second receipt; a gate runs both."""
        receipts = [event("Open Messaging receipt", status=status) for status in ("Delivered", "Read")]
        with the_program(print) as program:
            assert [program["is_duplicate"](each["id"]) for each in receipts] == [False, True]
        outcomes = Gate("memory://").run_batch(receipts, lambda event: None)
        assert [outcome.status for outcome in outcomes] == ["processed"] * 2


def test_seen() -> None:
    """`gate.seen` returns whether the event was marked before, as `is_duplicate` does."""
    gate = Gate("memory://", key=keys.event_id)
    assert [gate.seen({"id": "evt-1"}) for _ in range(2)] == [False, True]


def test_the_file(queue: Queue, redis: RedisServer, tmp_path: Path) -> None:
    """Two workers: each event has one effect, all copies are deleted, and an unreadable message is in the dead-letter
    queue."""
    (tmp_path / "worker.py").write_text(file_of(SQS))
    environment = {**os.environ, "ONCEGATE_STORE": redis.url, "QUEUE": queue.source}
    events = [{**event(id=f"c-{copy}"), "detail": detail(number)} for number in range(5) for copy in range(4)]
    queue.send_all([*events, "no JSON"])
    workers = [
        subprocess.Popen([sys.executable, "worker.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        queue.until_empty()
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        printed = "".join(worker.communicate(timeout=40)[0].decode() for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    # Threads print, so a line of one thread may be within a line of another.
    assert sorted(re.findall(r"opening a case for (conversation-\d)", printed)) == [
        f"conversation-{number}" for number in range(5)
    ]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert [json.loads(each["Body"]) for each in queue.dead.receive()] == ["no JSON"]


def detail(number: int) -> dict[str, Any]:
    sample: dict[str, Any] = event()["detail"]
    sample["eventBody"]["conversationId"] = f"conversation-{number}"
    return sample
