"""A worker on a queue of RabbitMQ: effects, attempts, dead letters, evidence, outages and kills."""

import asyncio
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelNotFoundEntity

from oncegate import Event, Gate
from oncegate.errors import QueueError, RetryLater, SettingError, StoreUnavailable
from oncegate.ingress import counts_attempts, rabbitmq
from oncegate.ingress.rabbitmq import problem_of
from tests.ingress.guide_commands import publishing
from tests.ingress.rabbit_server import Rabbit, RabbitQueue, RabbitServer
from tests.ingress.sqs.queues import Handler, call, working
from tests.stores.proxy import Proxy
from tests.stores.servers import until


@pytest.fixture
def queue(rabbit: Rabbit) -> RabbitQueue:
    return rabbit.queue()


@pytest.fixture
def classic(rabbit: Rabbit) -> RabbitQueue:
    return rabbit.queue("classic")


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("amqp://h", "the URL has no name of a RabbitMQ queue; write 'amqp://HOST:PORT/QUEUE'"),
        ("amqp:///events", "has no host"),
        ("amqp://h/events?ca=/ca.pem", "the option ca of a RabbitMQ URL is for TLS; write 'amqps://"),
        ("amqp://h/events?password_file=/p", "the option password_file of a RabbitMQ URL needs a user"),
        ("amqp://ann@h/events?password_file=/no/such", "names a file that cannot be used: /no/such"),
        ("amqp://h/events?colour=red", "unknown option 'colour' in a RabbitMQ URL; use dead_letters, vhost,"),
        ("amqp://h/events?dead_letters=no", "dead_letters='no' is not a choice; it is one of gate, queue"),
    ],
)
def test_an_invalid_address(url: str, problem: str) -> None:
    """An invalid URL is rejected when the worker is created, with what to write instead."""
    with pytest.raises(SettingError) as rejected:
        Gate("memory://").worker(url, print)
    assert problem in str(rejected.value)


def test_who_counts_the_attempts() -> None:
    """The gate counts the attempts, unless the URL says that the queue does."""
    assert not counts_attempts("amqp://h/events")
    assert counts_attempts("amqp://h/events?dead_letters=queue")


# ── set-ups that would lose events ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "version", "options", "problem"),
    [
        ({"x-queue-type": "quorum"}, "3.13.7", False, None),
        ({"x-queue-type": "quorum"}, "4.1.0", False, "drops a message that is returned more than 20 times"),
        ({"x-queue-type": "quorum", "x-delivery-limit": -1}, "4.1.0", False, None),
        ({"x-queue-type": "quorum", "x-delivery-limit": -1}, "3.10.8", False, "that is returned more than 0 times"),
        ({"x-queue-type": "quorum", "x-delivery-limit": 3}, "3.10.8", False, "that is returned more than 3 times"),
        ({"x-queue-type": "quorum", "x-delivery-limit": 3, "x-dead-letter-exchange": ""}, "4.1.0", False, None),
        ({"x-queue-type": "quorum", "x-delivery-limit": 3}, "3.10.8", True, None),  # a policy may set the exchange
        ({"x-queue-type": "classic"}, "4.1.0", False, None),
        ({"x-queue-type": "classic"}, "4.1.0", True, "does not count deliveries"),
        ({"x-queue-type": "stream"}, "4.1.0", False, "is a stream, which cannot deliver a message again"),
        ({}, "", False, None),
    ],
)
def test_arguments_that_could_lose_events(
    arguments: dict[str, Any], version: str, options: bool, problem: str | None
) -> None:
    """A quorum queue drops a message after its delivery limit, if it has no dead-letter exchange. Since RabbitMQ 4 each
    quorum queue has such a limit. A classic queue has none."""
    found = problem_of(arguments, version, counts_attempts=options)
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"durable": False}, "is not durable, so it loses its messages"),
        ({"auto_delete": True}, "is deleted with its messages when the worker stops"),
        ({"arguments": {"x-queue-type": "stream"}}, "is a stream, which cannot deliver a message again"),
        (
            {
                "arguments": {
                    "x-queue-type": "quorum",
                    "x-max-length": 9,
                    "x-delivery-limit": 3,
                    "x-overflow": "drop-head",
                }
            },
            "drops a message that is returned more than 3 times, so an event could be lost; give it a dead-letter",
        ),
    ],
)
def test_a_queue_that_could_lose_events(rabbit: Rabbit, declared: dict[str, Any], problem: str) -> None:
    """RabbitMQ tells the arguments of a queue. A queue that could lose events is refused at the start."""
    name = f"unsafe-{time.monotonic_ns()}"
    rabbit.call(lambda channel: channel.declare_queue(name, **{"durable": True, **declared}))
    with pytest.raises(QueueError, match=f"the RabbitMQ queue {name} {problem}"):
        Gate("memory://").worker(f"amqp://{rabbit.address}/{name}", print).run()


def test_an_exclusive_queue(rabbit: Rabbit) -> None:
    """A queue that belongs to another connection is refused."""

    async def declare_and_work(channel: AbstractChannel) -> None:
        await channel.declare_queue("exclusive", exclusive=True)
        await asyncio.to_thread(Gate("memory://").worker(f"amqp://{rabbit.address}/exclusive", print).run)

    with pytest.raises(QueueError, match="the RabbitMQ queue exclusive is exclusive to another connection"):
        rabbit.call(declare_and_work)


def test_no_such_queue(rabbit: Rabbit) -> None:
    """A queue that does not exist is an error at the start, and is not created."""
    for _ in range(2):
        with pytest.raises(
            QueueError, match="none does not exist in the virtual host /; create a durable quorum queue"
        ):
            Gate("memory://").worker(f"amqp://{rabbit.address}/none", print).run()


def test_no_server() -> None:
    """A server that does not answer at the start is an error, within seconds."""
    with pytest.raises(QueueError, match=r"cannot be used at 127\.0\.0\.1:1"):
        Gate("memory://").worker("amqp://127.0.0.1:1/events", print).run()


def test_a_user_who_may_only_read(
    rabbit: Rabbit, queue: RabbitQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A user without the right to configure the queue can work. A warning says what could not be checked. The password
    is in a file, and the queue in a virtual host of its own."""
    user = f"ann-{time.monotonic_ns()}"
    rabbit.evaluate(f'rabbit_auth_backend_internal:add_user(<<"{user}">>, <<"p@ss">>, <<"me">>)')
    rabbit.evaluate(
        f'rabbit_auth_backend_internal:set_permissions(<<"{user}">>, <<"/">>, <<"">>, <<"">>, <<".*">>, <<"me">>)'
    )
    (tmp_path / "password").write_text("p@ss\n")
    queue.send(call(1))
    handler, gate = Handler(), Gate("memory://")
    url = f"amqp://{user}@{rabbit.address}/{queue.name}?vhost=/&password_file={tmp_path}/password"
    with working(gate.worker(url, handler)):
        queue.until_empty()
    assert handler.ran == [1]
    assert "cannot be read (the user may have no right to configure it)" in caplog.text
    gate.close()


def test_a_queue_whose_node_is_down(queue: RabbitQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ says NOT_FOUND for a queue on a node that is down. The message does not say to create this queue."""

    async def refused(_connection: Any, _name: str) -> None:
        raise ChannelNotFoundEntity("NOT_FOUND - home node 'b' of durable queue 'q' is down or inaccessible")

    monkeypatch.setattr(rabbitmq, "read_arguments", refused)
    with pytest.raises(QueueError, match=r"cannot be used at .* is down or inaccessible; check that the server runs"):
        Gate("memory://").worker(queue.source, print).run()


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_that_counts_attempts(rabbit: Rabbit) -> None:
    """A quorum queue with a delivery limit and a dead-letter exchange counts the attempts: a failing event and an
    invalid message end in its dead-letter queue, and the gate buries nothing."""
    dead = rabbit.queue()
    queue = rabbit.queue(x_delivery_limit=1, x_dead_letter_exchange="", x_dead_letter_routing_key=dead.name)
    queue.send(call(1, fails=9), b"not json", call(2), call(3, fails=1))
    handler, gate = Handler(), Gate("memory://", max_attempts=1, backoff="10ms")
    with working(gate.worker(f"{queue.source}?dead_letters=queue", handler)):
        queue.until_empty()
        until(lambda: dead.left() == 2, "two dead letters")
    assert sorted(handler.ran) == [1, 1, 2, 3, 3]
    assert list(gate.store.dead_letters()) == []
    assert sorted(message.body == b"not json" for message in dead.received()) == [False, True]
    gate.close()


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_waiting_messages_leave_room(rabbit: Rabbit, kind: Any) -> None:
    """Messages that wait for their next delivery do not take the places of others, up to ten times the limit of events
    in hand. Then nothing is received until a pause ends."""
    queue = rabbit.queue(kind)
    busy = 21
    ran: list[int] = []

    async def handler(event: Event) -> None:
        ran.append(event.body["number"])
        if event.body["number"] < busy:
            raise RetryLater("busy", after=300)

    queue.send(*(call(number) for number in range(busy)), call(busy))
    gate = Gate("memory://")
    with working(gate.worker(queue.source, handler, in_hand=2)):
        until(lambda: busy in ran, "the event behind the waiting messages")
        queue.send(*(call(number) for number in range(50, 60)))
        until(lambda: 59 in ran, "later events")
        assert queue.left() == busy
    assert sorted(ran) == [*range(busy + 1), *range(50, 60)]
    until(lambda: len(queue.received()) == busy, "the return of what waits")
    gate.close()


def test_the_bound_of_waiting_messages(queue: RabbitQueue) -> None:
    """If more messages wait than ten times the limit of events in hand, nothing more is received."""
    ran: list[int] = []

    async def handler(event: Event) -> None:
        ran.append(event.body["number"])
        raise RetryLater("busy", after=300)

    queue.send(*(call(number) for number in range(40)))
    gate = Gate("memory://")
    with working(gate.worker(queue.source, handler, in_hand=1)):
        until(lambda: len(ran) >= 11, "the bound")
        time.sleep(0.3)
        assert len(ran) <= 12
    assert queue.left() == 40
    gate.close()


def test_the_evidence_of_a_message(queue: RabbitQueue, classic: RabbitQueue) -> None:
    """The id of the publisher, the number of deliveries and the key of a publishing gate are evidence."""
    found: list[Event] = []

    def handler(event: Event) -> None:
        found.append(event)
        if len(found) == 1:
            raise RetryLater("again", after=0.1)

    queue.send({"id": "evt-1"}, message_id="m-7", headers={"oncegate-key": "0" * 32}, timestamp=1_700_000_000)
    classic.send({"id": "evt-2"})
    gate = Gate("memory://")
    with working(gate.worker(queue.source, handler)):
        queue.until_empty()
    with working(gate.worker(classic.source, handler)):
        classic.until_empty()
    first, second, third = (event.evidence for event in found)
    assert (first.message_id, first.receive_count, second.receive_count) == ("m-7", 1, 2)
    assert (first.handed_key, first.sent_at and first.sent_at.timestamp()) == ("0" * 32, 1_700_000_000)
    assert (third.receive_count, third.sent_at) == (1, None)
    gate.close()


def test_a_cloud_event(queue: RabbitQueue) -> None:
    """A CloudEvent in binary mode has its attributes in the headers, in structured mode in the body."""
    found: list[Event] = []
    attributes = {"specversion": "1.0", "source": "/crm", "type": "case.opened"}
    for number, prefix in enumerate(("cloudEvents:", "cloudEvents_")):
        headers: Any = {f"{prefix}{name}": value for name, value in {**attributes, "id": str(number)}.items()}
        queue.send({"case": 1}, headers=headers, content_type="application/json")
    queue.send({**attributes, "id": "2", "data": {"case": 1}}, content_type="application/cloudevents+json")
    gate = Gate("memory://")
    with working(gate.worker(queue.source, found.append)):
        queue.until_empty()
    events = sorted(found, key=lambda event: event.id or "")
    assert [(event.source, event.id, event.type) for event in events] == [
        ("cloudevents", str(number), "case.opened") for number in range(3)
    ]
    gate.close()


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_messages_that_wait_at_the_stop(rabbit: Rabbit, kind: Any) -> None:
    """A worker that stops returns messages that wait or have not started, each once. Another worker gets them at once;
    a classic queue keeps their order."""
    queue = rabbit.queue(kind)
    queue.send(*[call(number, "c-1", takes=0.5) for number in range(6)])
    gate, first = Gate("memory://"), Handler()
    with working(gate.worker(queue.source, first, in_hand=3)):
        until(lambda: first.ran == [0], "the first event")
    found: list[Event] = []
    with working(gate.worker(queue.source, found.append)):
        queue.until_empty()
    rest = {event.body["number"]: event.evidence.receive_count for event in found}
    assert (list(rest) if kind == "classic" else sorted(rest)) == [1, 2, 3, 4, 5]
    assert set(rest.values()) <= {1, 2}
    gate.close()


def test_a_long_handler_and_the_heartbeat(queue: RabbitQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain handler blocks its thread for longer than RabbitMQ waits for a heartbeat. The connection stays."""
    monkeypatch.setattr("oncegate.buses.rabbitmq._HEARTBEAT", 1)
    queue.send(call(1, takes=4))
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(queue.source, handler)
    with working(worker):
        queue.until_empty()
    assert (handler.ran, worker.figures.received) == ([1], 1)
    gate.close()


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def proxied(queue: RabbitQueue) -> Iterator[tuple[Proxy, str]]:
    with closing(Proxy(queue.rabbit.port)) as proxy:
        yield proxy, f"amqp://127.0.0.1:{proxy.port}/{queue.name}"


def test_a_file_that_is_missing_for_a_while(
    queue: RabbitQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A password file that is missing when the worker connects again is an outage, and does not end the worker."""
    (tmp_path / "password").write_text("guest")
    handler, gate = Handler(), Gate("memory://")
    with proxied(queue) as (proxy, url):
        source = f"{url.replace('://', '://guest@')}?password_file={tmp_path}/password"
        with working(gate.worker(source, handler)):
            queue.send(call(1))
            queue.until_empty()
            (tmp_path / "password").rename(tmp_path / "away")
            proxy.cut()
            until(lambda: "is lost; nothing is received until this ends" in caplog.text, "the beginning")
            proxy.mend()
            time.sleep(1)
            (tmp_path / "away").rename(tmp_path / "password")
            until(lambda: "answers again, after" in caplog.text, "the end", 40)
            queue.send(call(2))
            queue.until_empty()
    assert handler.ran == [1, 2]
    gate.close()


def test_the_server_is_away(queue: RabbitQueue, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that is lost is told once, and once when it is back. A message of the lost channel is delivered
    again, and its handler has run once."""
    queue.send(call(1, takes=1))
    handler, gate = Handler(), Gate("memory://")
    with proxied(queue) as (proxy, url):
        worker = gate.worker(url, handler)
        with working(worker):
            until(lambda: handler.ran == [1], "the first event")
            proxy.cut()
            until(lambda: "is lost; nothing is received until this ends" in caplog.text, "the beginning")
            time.sleep(1)
            proxy.mend()
            until(lambda: "answers again, after" in caplog.text, "the end", 40)
            queue.send(call(2))
            queue.until_empty()
    assert sorted(handler.ran) == [1, 2]
    assert worker.figures.duplicates == 1
    assert caplog.text.count("nothing is received") == caplog.text.count("answers again") == 1
    gate.close()


def test_a_stop_while_the_server_is_away(queue: RabbitQueue, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that has lost its server stops within seconds."""
    gate = Gate("memory://")
    queue.send(call(1))
    with proxied(queue) as (proxy, url):
        with working(gate.worker(url, Handler())):
            queue.until_empty()
            proxy.cut()
            until(lambda: "nothing is received" in caplog.text, "the loss")
            began = time.monotonic()
        assert time.monotonic() - began < 10
    gate.close()


def test_the_store_is_away(queue: RabbitQueue, caplog: pytest.LogCaptureFixture) -> None:
    """While the store does not answer, messages are held: they are not returned, so no delivery is counted."""
    found: list[Event] = []
    gate = Gate("memory://")
    claim, away = gate.store.claim, threading.Event()

    def failing(*arguments: Any, **options: Any) -> Any:
        if away.is_set():
            raise StoreUnavailable("no store")
        return claim(*arguments, **options)

    gate.store.claim = failing  # type: ignore[method-assign]
    away.set()
    queue.send(call(1), call(2))
    worker = gate.worker(queue.source, found.append)
    with working(worker):
        until(lambda: "events cannot be claimed" in caplog.text, "the outage")
        away.clear()
        queue.until_empty()
    assert sorted((event.id, event.evidence.receive_count) for event in found) == [("evt-1", 1), ("evt-2", 1)]
    assert worker.figures.received == 2
    gate.close()


def test_a_deleted_queue_ends_the_worker(queue: RabbitQueue) -> None:
    """A worker whose queue was deleted ends with an error, and does not wait for ever."""

    async def delete(_event: Event) -> None:
        await asyncio.to_thread(queue.delete)

    queue.send(call(1))
    with pytest.raises(QueueError, match="was deleted"):
        Gate("memory://").worker(queue.source, delete).run()


@pytest.mark.long
def test_a_killed_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """RabbitMQ is killed and started again. No message is lost, and each takes effect once. A quorum queue with one
    member that is a few seconds old has no leader after this, so the queue is classic."""
    server = RabbitServer(tmp_path / "rabbitmq")
    try:
        queue = Rabbit(**server.described).queue("classic")
        handler, gate = Handler(), Gate("memory://")
        queue.send(*(call(number, takes=0.1) for number in range(50)))
        with working(gate.worker(queue.source, handler, in_hand=5)):
            until(lambda: len(handler.ran) > 10, "some events")
            server.kill()
            until(lambda: "nothing is received" in caplog.text, "the loss")
            server.start()
            queue.until_empty()
        assert sorted(handler.ran) == list(range(50))
        gate.close()
    finally:
        server.stop()


def test_the_command(queue: RabbitQueue, tmp_path: Path) -> None:
    """`oncegate work amqp://…` runs the messages, logs each outcome, and drains on SIGTERM. While the server is away,
    it logs one line."""
    (tmp_path / "app.py").write_text("def handle(event): pass\n")
    queue.send({"id": "evt-1"}, {"id": "evt-1"})
    with proxied(queue) as (proxy, url):
        command = [sys.executable, "-m", "oncegate", "work", url, "--handler", "app:handle"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            queue.until_empty()
            proxy.cut()
            time.sleep(1)
        finally:
            process.terminate()
            out, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    assert sorted(json.loads(line)["status"] for line in out.splitlines()) == ["duplicate", "processed"]
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning"], err
    assert "nothing is received until this ends" in lines[1]["message"]


GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "rabbitmq.md").read_text()


def test_the_guide(rabbit: Rabbit, tmp_path: Path) -> None:
    """The program of the guide creates a queue, and its commands run the messages of the queue."""
    handler, program = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (setup,) = re.findall(r"^    python (.*)$", GUIDE, re.MULTILINE)
    commands = re.findall(r"^    (oncegate work .*)$", GUIDE, re.MULTILINE)
    assert len(commands) == 2
    (tmp_path / "app.py").write_text(handler)
    (tmp_path / setup).write_text(program.replace("127.0.0.1:5672", rabbit.address))
    done = subprocess.run([sys.executable, setup], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    queue = RabbitQueue(rabbit, "events")
    for number, command in enumerate(commands):
        queue.send({"id": f"evt-{number}"})
        words = shlex.split(command.replace("127.0.0.1:5672", rabbit.address))
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            queue.until_empty()
        finally:
            process.terminate()
            out, err = process.communicate(timeout=40)
        assert (process.returncode, json.loads(out)["status"]) == (0, "processed"), err


def test_the_guide_publishes(queue: RabbitQueue, tmp_path: Path) -> None:
    """The command of the guide sends a webhook to the queue."""
    with publishing(GUIDE, tmp_path, {"127.0.0.1:5672/events": queue.target.removeprefix("amqp://")}):
        until(lambda: queue.left() == 1, "the message")
    (message,) = queue.received()
    assert json.loads(message.body)["id"] == "evt-1"
