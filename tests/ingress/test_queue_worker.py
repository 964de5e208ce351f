"""What every queue worker does: one effect for each event, order, the limit, kills, and figures."""

import asyncio
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from oncegate import Event, Gate, keys
from oncegate.errors import Bury, RetryLater
from tests.gate.conftest import Stumbling
from tests.ingress.kafka_server import KafkaServer
from tests.ingress.nats_server import NatsServer
from tests.ingress.sqs.conftest import credentials
from tests.ingress.sqs.queues import Cloud, Handler, call, working
from tests.stores.servers import until

__all__ = ["credentials"]


class Source(Protocol):
    """A queue or a stream of messages."""

    source: str

    def send(self, *bodies: Any) -> None: ...

    def until_empty(self) -> None: ...


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaServer]:
    server = KafkaServer()
    yield server
    server.stop()


@pytest.fixture(params=["sqs", "nats", "kafka", "rabbitmq"])
def source(request: pytest.FixtureRequest) -> Source:
    if request.param == "nats":
        return request.getfixturevalue("nats").stream()  # type: ignore[no-any-return]
    if request.param == "kafka":
        return request.getfixturevalue("kafka").topic()  # type: ignore[no-any-return]
    if request.param == "rabbitmq":
        return request.getfixturevalue("rabbit").queue()  # type: ignore[no-any-return]
    emulator: Cloud = request.getfixturevalue("cloud")
    return emulator.queue()


def test_copies_run_once(source: Source) -> None:
    """Each event takes effect once, each message is acknowledged, and the figures count both."""
    source.send(*[call(number % 5) for number in range(15)])
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(source.source, handler, wait="1s")
    with working(worker):
        source.until_empty()
    assert sorted(handler.ran) == list(range(5))
    figures = worker.figures
    assert (figures.received, figures.processed, figures.duplicates, figures.in_hand) == (15, 5, 10, 0)
    gate.close()


def test_the_events_of_an_entity_run_in_order(source: Source) -> None:
    """Events of one entity run one after the other. An event that fails is run again before the later events."""
    source.send(*[call(number, "c-1", fails=number == 1) for number in range(4)])
    handler, gate = Handler(), Gate("memory://", backoff="10ms")
    with working(gate.worker(source.source, handler, wait="1s")):
        source.until_empty()
    assert list(dict.fromkeys(handler.ran)) == [0, 1, 2, 3]
    assert handler.ran.count(1) == 2
    gate.close()


def test_the_limit_of_events_in_hand(source: Source) -> None:
    """At most `in_hand` events wait or run at a time."""
    beside = most = 0

    async def handler(_event: Event) -> None:
        nonlocal beside, most
        beside += 1
        most = max(most, beside)
        await asyncio.sleep(0.1)
        beside -= 1

    source.send(*(call(number) for number in range(9)))
    gate = Gate("memory://")
    worker = gate.worker(source.source, handler, wait="1s", in_hand=3)
    with working(worker):
        until(lambda: worker.figures.in_hand == 3, "three events in hand")
        source.until_empty()
    assert most == 3
    gate.close()


def test_stop_finishes_what_runs(source: Source) -> None:
    """A worker that stops finishes the running handler and returns the other messages to the queue."""
    source.send(call(1, "c-1", takes=1), call(2, "c-1"))
    first, second, gate = Handler(), Handler(), Gate("memory://")
    with working(gate.worker(source.source, first, wait="1s", visibility="2s")):
        until(lambda: first.ran == [1], "the first event")
    with working(gate.worker(source.source, second, wait="1s", visibility="2s")):
        source.until_empty()
    assert (first.ran, second.ran) == ([1], [2])
    gate.close()


def test_sigterm_finishes_what_runs(source: Source, tmp_path: Path) -> None:
    """SIGTERM lets the running handler end, and its message is acknowledged. Another worker gets the other message."""
    (tmp_path / "app.py").write_text("import time\ndef handle(event): print(event.id, flush=True); time.sleep(1)\n")
    source.send(call(1, "c-1"), call(2, "c-1"))
    command = [sys.executable, "-m", "oncegate", "work", source.source, "--handler", "app:handle", "--log", "off"]
    command += ["--visibility", "2s", "--wait", "1s"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        first = process.stdout.readline().strip()
    finally:
        process.terminate()
        out, err = process.communicate(timeout=40)
    assert (process.returncode, first, out) == (0, "evt-1", ""), err
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(source.source, handler, wait="1s", visibility="2s")):
        source.until_empty()
    assert handler.ran == [2]
    gate.close()


@pytest.mark.parametrize("url", ["kafka://{}/events?group=crm", "nats://{}/events?consumer=crm", "amqp://{}/events"])
def test_a_stop_before_the_server_answers(url: str) -> None:
    """A worker whose server accepts the connection and says nothing stops at once."""
    with socket.create_server(("127.0.0.1", 0)) as silent, closing(Gate("memory://", mode="mark_first")) as gate:
        silent.settimeout(10)
        with working(gate.worker(url.format(f"127.0.0.1:{silent.getsockname()[1]}"), Handler())):
            connection, _ = silent.accept()
            began = time.monotonic()
        connection.close()
        assert time.monotonic() - began < 2


# ── queues without a dead-letter queue ────────────────────────────────────────────────────────────────────


class Bus(Source, Protocol):
    """A source that does not count attempts."""


@pytest.fixture(params=["nats", "rabbitmq"])
def bus(request: pytest.FixtureRequest) -> Bus:
    if request.param == "nats":
        return request.getfixturevalue("nats").stream()  # type: ignore[no-any-return]
    return request.getfixturevalue("rabbit").queue("classic")  # type: ignore[no-any-return]


def test_a_failing_event_becomes_a_dead_letter(bus: Bus) -> None:
    """The bus does not count attempts: after max_attempts the event is a dead letter of the gate, and other events go
    on."""
    bus.send(call(1, fails=9), call(2))
    handler, gate = Handler(), Gate("memory://", max_attempts=2, backoff="10ms")
    with working(gate.worker(bus.source, handler)):
        bus.until_empty()
    (letter,) = gate.store.dead_letters()
    assert letter.record.attempts == 2
    assert handler.ran.count(2) == 1
    gate.close()


def test_an_unavailable_service_uses_up_no_attempt(bus: Bus, tmp_path: Path) -> None:
    """While a service that the handler calls is unavailable, the event is delivered again and does not become a dead
    letter. A failure of the handler itself still counts."""
    attempts: list[int] = []

    async def handler(event: Event) -> None:
        attempts.append(event.attempt)
        if len(attempts) == 1:
            raise RetryLater("the CRM is down", after=0)
        if len(attempts) == 2:
            raise ValueError("a failure of the handler")

    bus.send(call(1))
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", max_attempts=2, backoff="10ms")) as gate:
        with working(gate.worker(bus.source, handler)):
            bus.until_empty()
        assert attempts == [1, 1, 2]
        assert gate.store.dead_letters() == []


class KeylessHandler:
    """Records the attempts of events without a key. `failures` has the exception of each attempt."""

    def __init__(self, *failures: Exception) -> None:
        self.attempts = 0
        self._failures = failures

    async def __call__(self, _event: Event) -> None:
        self.attempts += 1
        if self.attempts <= len(self._failures):
            raise self._failures[self.attempts - 1]


def keyless(url: str = "memory://", **options: Any) -> Gate:
    return Gate(url, key=keys.event_id, on_missing_key="unguarded", max_attempts=2, **options)


FAILURE = ValueError("a failure of the handler")
AWAY = RetryLater("the CRM is down", after=0)


@pytest.mark.parametrize(
    ("failures", "attempts", "error"),
    [
        ([FAILURE] * 9, 2, "a failure of the handler"),
        ([Bury("not wanted")] * 9, 1, "not wanted"),
        ([AWAY, AWAY, FAILURE, AWAY], 5, None),
    ],
)
def test_the_attempts_of_an_event_without_a_key(
    bus: Bus, failures: list[Exception], attempts: int, error: str | None
) -> None:
    """No record counts the attempts of an event without a key. The worker counts them, so the event becomes a dead
    letter like any other event."""
    bus.send({"number": 1})
    handler, gate = KeylessHandler(*failures), keyless()
    worker = gate.worker(bus.source, handler)
    with working(worker):
        bus.until_empty()
    letters = [letter.record.error or "" for letter in gate.store.dead_letters()]
    assert handler.attempts == attempts
    assert [error in letter for letter in letters if error] == ([True] if error else [])
    assert worker.figures.failed == attempts - (error is None)
    gate.close()


def test_events_without_a_key_that_wait_do_not_block_others(bus: Bus) -> None:
    """At most half of the events in hand wait for a retry. The bus delivers the others again."""
    ran: list[str | None] = []

    async def handler(event: Event) -> None:
        ran.append(event.id)
        if event.id is None:
            raise RetryLater("the CRM is down", after=60)

    gate = keyless()
    with working(gate.worker(bus.source, handler, in_hand=3)):
        bus.send(*[{"number": number} for number in range(3)])
        until(lambda: len(ran) == 3, "three failures")
        bus.send({"id": "evt-1"})
        until(lambda: "evt-1" in ran, "the event with a key")
    gate.close()


def test_the_attempts_are_counted_across_deliveries(bus: Bus) -> None:
    """If the worker returns an event without a key to the bus, it keeps the count of its attempts."""
    bus.send({"number": 1})
    handler, gate = KeylessHandler(*[FAILURE] * 9), keyless()
    worker = gate.worker(bus.source, handler, in_hand=1)  # nothing may wait for a retry
    with working(worker):
        bus.until_empty()
    assert (handler.attempts, worker.figures.received) == (2, 2)
    assert len(gate.store.dead_letters()) == 1
    gate.close()


def test_a_dead_letter_that_the_store_does_not_take(nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """If the store does not answer, an event without a key that has no attempts left waits for it. It does not run
    again, and no failure of such an event ends the outage."""
    stream, store = nats.stream(), Stumbling()
    store.failures = {"claim": 3}
    stream.send({"number": 1})
    handler = KeylessHandler(*[FAILURE] * 9)
    gate = Gate(store, key=keys.event_id, on_missing_key="unguarded", max_attempts=1)
    with caplog.at_level("INFO"), working(gate.worker(stream.source, handler)):
        stream.until_empty()
    assert (handler.attempts, len(store.dead_letters())) == (1, 1)
    said = [record.getMessage() for record in caplog.records if record.name == "oncegate.work"]
    assert next(line for line in said if "claimed" in line).startswith("events cannot be claimed")
    assert sum("events can be claimed" in line for line in said) == 1
    gate.close()


def test_an_unavailable_service_for_longer_than_max_hold(nats: NatsServer) -> None:
    """NATS delivers a message again that was held for `max_hold`. `retry_for` still ends the retries."""
    stream = nats.stream()
    stream.send({"number": 1})
    handler = KeylessHandler(*[RetryLater("the CRM is down", after=0.4)] * 99)
    gate = keyless(retry_for="2s", max_hold="1s", lease="1s")
    with working(gate.worker(stream.source, handler, visibility="1s")):
        until(lambda: len(gate.store.dead_letters()) == 1, "the dead letter")
        stream.until_empty()
    gate.close()


def test_a_kafka_worker_that_marks_first(kafka: KafkaServer) -> None:
    """An event without a key that always fails is a dead letter after `max_attempts`. It does not block its
    partition."""
    topic = kafka.topic()
    topic.send({"number": 1})
    handler, gate = KeylessHandler(*[FAILURE] * 9), keyless(mode="mark_first")
    with working(gate.worker(topic.source, handler)):
        topic.until_empty()
    assert handler.attempts == 2
    assert len(gate.store.dead_letters()) == 1
    gate.close()


def test_an_invalid_message_becomes_a_dead_letter(bus: Bus) -> None:
    """A message that cannot be read would be delivered without end, so it is stored and acknowledged."""
    bus.send(b"not json", b"")
    gate = Gate("memory://")
    with working(gate.worker(bus.source, Handler())):
        bus.until_empty()
    errors = sorted(letter.record.error or "" for letter in gate.store.dead_letters())
    assert errors[0].startswith("the message has no body")
    assert errors[1].startswith("the text is not JSON")
    gate.close()


def test_retry_later(bus: Bus) -> None:
    """A handler can choose when the event is delivered again. Another event of the entity waits for it."""
    attempts: list[tuple[str | None, float]] = []

    async def handler(event: Event) -> None:
        attempts.append((event.id, time.monotonic()))
        if len(attempts) == 1:
            raise RetryLater("busy", after=1.0)

    bus.send(call(1, "c-1"), call(2, "c-1"))
    gate = Gate("memory://")
    with working(gate.worker(bus.source, handler)):
        bus.until_empty()
    assert [each for each, _ in attempts] == ["evt-1", "evt-1", "evt-2"]
    assert attempts[1][1] - attempts[0][1] >= 1
    gate.close()


PROGRAM = """
import os, signal, sqlite3, sys
from oncegate import Gate

kill_at, ran = int(sys.argv[2]), 0

def handle(event):
    global ran
    with sqlite3.connect("effects.db") as effects:
        effects.execute("CREATE TABLE IF NOT EXISTS effects (key TEXT PRIMARY KEY, id TEXT)")
        effects.execute("INSERT OR IGNORE INTO effects VALUES (?, ?)", (str(event.key), event.id))
    ran += 1
    if ran == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

Gate("sqlite:///claims.db", lease="2s", threads=1).worker(sys.argv[1], handle, visibility="2s").run()
"""


def test_killed_workers(source: Source, tmp_path: Path) -> None:
    """Three workers are killed after an effect and before its completion. No event is lost, and each takes effect
    once, because the effect is idempotent on the key."""
    (tmp_path / "program.py").write_text(PROGRAM)
    source.send(*[{"id": f"evt-{number % 40}", "type": "call.ended"} for number in range(80)])
    command = [sys.executable, "program.py", source.source]
    for kill_at in (1, 7, 12):
        done = subprocess.run([*command, str(kill_at)], cwd=tmp_path, capture_output=True, timeout=60)
        assert done.returncode == -signal.SIGKILL, done.stderr
    with subprocess.Popen([*command, "0"], cwd=tmp_path, stderr=subprocess.PIPE) as last:
        try:
            source.until_empty()
        finally:
            last.terminate()
            last.communicate(timeout=40)
    with closing(sqlite3.connect(tmp_path / "effects.db")) as db:
        effects = sorted(each for (each,) in db.execute("SELECT id FROM effects"))
    assert effects == sorted(f"evt-{number}" for number in range(40))
