"""A worker on a topic of a Kafka cluster: effects, retries, dead letters, and the command."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from oncegate import Event, Gate, keys, read
from oncegate.errors import QueueError, RetryLater, SettingError, StoreUnavailable
from oncegate.journal import open_journal
from oncegate.sinks import publish
from tests.gate.conftest import Stumbling
from tests.ingress.guide_commands import publishing
from tests.ingress.kafka_server import REAL, KafkaServer, RealKafka, Topic
from tests.ingress.sqs.queues import Handler, call, working
from tests.stores.postgres_server import PostgresServer
from tests.stores.servers import until

QUICK: dict[str, Any] = {"visibility": "2s"}  # the cluster waits for this time after a worker has left


# ── set-ups ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_store_without_an_inbox() -> None:
    """Without an inbox and without a retry topic, a failing event would hold up its partition, so the worker is
    refused, with what to do."""

    class NoInbox:
        def claim(self, requests: Any) -> Any: ...

    gate = Gate(NoInbox())  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"use a store with an inbox .* or add retry_topic=NAME to the URL"):
        gate.worker("kafka://h/events?group=crm", print)
    gate.worker("kafka://h/events?group=crm&retry_topic=again", print)
    Gate(NoInbox(), mode="mark_first").worker("kafka://h/events?group=crm", print)  # type: ignore[arg-type]


def test_no_such_topic(server: KafkaServer) -> None:
    """A topic that does not exist is an error at the start."""
    server.forget("none")
    with pytest.raises(QueueError, match="the Kafka topic none does not exist; create it first"):
        Gate("memory://").worker(f"kafka://{server.address}/none?group=crm", print).run()


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────


def test_invalid_messages_and_tombstones(topic: Topic) -> None:
    """A message that cannot be read becomes a dead letter, and a tombstone is skipped. Both are committed."""
    topic.send(b"not json", b"", None, call(1))
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(topic.source, handler)):
        topic.until_empty()
    errors = sorted(letter.record.error or "" for letter in gate.store.dead_letters())
    assert [error[:20] for error in errors] == ["the message has no b", "the text is not JSON"]
    assert handler.ran == [1]
    gate.close()


def test_entities_run_beside_each_other(topic: Topic) -> None:
    """Events of different entities in one partition run concurrently. Nothing is committed beyond the first that is
    not finished."""
    both = threading.Barrier(3)

    def handler(event: Event) -> None:
        if event.body["number"] < 2:
            both.wait(20)

    topic.send(call(0, "c-0"), call(1, "c-1"), call(2, "c-2"))
    gate = Gate("memory://")
    worker = gate.worker(topic.source, handler)
    with working(worker):
        until(lambda: worker.figures.processed == 1, "the last event")
        time.sleep(0.5)  # more than the time between two commits
        assert topic.committed() == [0]
        both.wait(20)
        topic.until_empty()
    gate.close()


def test_a_failing_event_is_run_again_here(topic: Topic) -> None:
    """An event that fails is run again without its neighbours. Its later events wait, other entities go on."""
    topic.send(call(1, "c-1", fails=2), call(2, "c-1"), call(3, "c-2"))
    handler, gate = Handler(), Gate("memory://", backoff="200ms")
    worker = gate.worker(topic.source, handler)
    with working(worker):
        topic.until_empty()
    assert [number for number in handler.ran if number != 3] == [1, 1, 1, 2]
    assert handler.ran.index(3) < 3
    assert (worker.figures.received, worker.figures.processed, worker.figures.failed) == (3, 3, 2)
    gate.close()


def test_a_poison_message(topic: Topic) -> None:
    """After three attempts the event is moved to the inbox and committed. The inbox runs it until it is a dead letter:
    the gate counts the attempts of both. The later event of its entity runs after it."""
    topic.send(call(1, "c-1", fails=99), call(2, "c-1"), call(3))
    handler, gate = Handler(), Gate("memory://", max_attempts=5, backoff="20ms")
    worker = gate.worker(topic.source, handler)
    with working(worker):
        topic.until_empty()
        until(lambda: 2 in handler.ran, "the later event")
        until(lambda: worker.figures.in_hand == 0, "the end")
    (letter,) = gate.store.dead_letters()
    assert letter.record.attempts == 5
    assert [number for number in handler.ran if number != 3] == [1, 1, 1, 1, 1, 2]
    assert (worker.figures.received, worker.figures.processed, worker.figures.failed) == (3, 2, 5)
    gate.close()


def test_a_long_delay(topic: Topic) -> None:
    """An event whose handler requests a delay of more than 30 s is moved at once, and does not hold up its
    partition."""

    async def handler(_event: Event) -> None:
        raise RetryLater("come back", after=3_600)

    topic.send(call(1))
    gate = Gate("memory://")
    with working(gate.worker(topic.source, handler)):
        topic.until_empty(20)
    assert gate.store.kept("default") == 1  # type: ignore[attr-defined]
    gate.close()


def test_a_failed_move_is_repeated_soon(topic: Topic) -> None:
    """If the inbox cannot store the event, the move is tried again after a second. The delay that the handler requested
    does not hold up the partition."""

    async def handler(_event: Event) -> None:
        raise RetryLater("come back", after=3_600)

    topic.send(call(1))
    store = Stumbling()
    store.failures = {"admit": 1}
    gate = Gate(store)
    with working(gate.worker(topic.source, handler)):
        topic.until_empty(20)
    assert (store.failures, store.kept("default")) == ({"admit": 0}, 1)
    gate.close()


def test_many_failing_events(topic: Topic) -> None:
    """When half of the events in hand wait for a retry, further failing events are moved at once, and others go on."""
    topic.send(*[call(number, fails=99) for number in range(20)], call(20))
    handler, gate = Handler(), Gate("memory://", max_attempts=100, backoff="20s")
    with working(gate.worker(topic.source, handler, in_hand=4)):
        until(lambda: 20 in handler.ran, "the last event")
    gate.close()


def test_later_events_follow_into_the_inbox(topic: Topic) -> None:
    """Events that arrive later do not overtake an event of their entity that waits in the inbox. When the inbox is
    empty, they run at once again."""
    broken = threading.Event()
    broken.set()
    ran: list[int] = []

    def handler(event: Event) -> None:
        if broken.is_set() and event.body["number"] == 1:
            raise ValueError("broken")
        ran.append(event.body["number"])

    topic.send(call(1, "c-1"))
    gate = Gate("memory://", max_attempts=1_000, backoff="20ms", backoff_limit="50ms")
    worker = gate.worker(topic.source, handler)
    with working(worker):
        topic.until_empty()
        topic.send(call(2, "c-1"), call(3, "c-1"))
        topic.until_empty()
        assert ran == []
        broken.clear()
        until(lambda: ran == [1, 2, 3], "all events")
        mover: Any = worker._mover  # type: ignore[attr-defined]
        until(lambda: not mover._lanes, "the lane to be forgotten")
        topic.send(call(4, "c-1"))
        topic.until_empty()
    assert ran == [1, 2, 3, 4]
    gate.close()


def test_retries_without_an_inbox(topic: Topic) -> None:
    """With mode="mark_first" there is nothing to retry: an event that fails is a dead letter, and is committed."""
    topic.send(call(1, fails=9), call(2))
    handler, gate = Handler(), Gate("memory://", mode="mark_first")
    with working(gate.worker(topic.source, handler)):
        topic.until_empty()
    assert sorted(handler.ran) == [1, 2]
    assert len(gate.store.dead_letters()) == 1
    gate.close()


def test_events_without_a_key(topic: Topic) -> None:
    """An event that may run without a key and fails is moved to the inbox, too. Such events do not wait for each
    other."""
    topic.send({"number": 1, "fails": 3}, {"number": 2})
    handler, gate = Handler(), Gate("memory://", key=keys.event_id, on_missing_key="unguarded", backoff="20ms")
    with working(gate.worker(topic.source, handler)):
        topic.until_empty()
        until(lambda: handler.ran.count(1) == 4, "the last attempt")
    assert handler.ran.count(2) == 1
    gate.close()


def test_an_unexpected_error(topic: Topic) -> None:
    """An error that no part of the gate expects does not lose the message: it is run again."""
    gate, handler, errors = Gate("memory://", backoff="20ms"), Handler(), [RuntimeError("unexpected")]
    claim = gate.store.claim

    def failing(requests: Any) -> Any:
        if errors:
            raise errors.pop()
        return claim(requests)

    gate.store.claim = failing  # type: ignore[method-assign]
    topic.send(call(1))
    with working(gate.worker(topic.source, handler)):
        topic.until_empty()
    assert handler.ran == [1]
    gate.close()


def test_publish_and_work_on_one_store(topic: Topic, tmp_path: Path) -> None:
    """A gate that publishes and a worker of the topic share a store. Each event has one effect, whether its copies
    arrive at the publisher or in the topic."""
    sink: Any = publish(topic.target)
    handler = Handler()
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate, closing(sink):
        with working(gate.worker(topic.source, handler)):
            outcomes = gate.run_batch([call(1), call(2), call(1)], sink)
            assert [outcome.status for outcome in outcomes] == ["processed", "processed", "duplicate"]
            topic.send(call(2), call(3))
            topic.until_empty()
            until(lambda: len(handler.ran) == 3, "three effects")
            assert gate.run(call(3), sink).status == "duplicate"
        assert sorted(handler.ran) == [1, 2, 3]


def test_a_failing_event_of_a_publisher_with_the_same_namespace(
    topic: Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The inbox of the publisher would take the event for its own. So the event stays here until it is a dead
    letter, and the worker says what to change."""
    sink: Any = publish(topic.target)
    handler = Handler()
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", max_attempts=5, backoff="20ms")) as gate, closing(sink):
        with working(gate.worker(topic.source, handler)):
            assert gate.run(call(1, fails=9), sink).status == "processed"
            topic.until_empty()
        assert handler.ran == [1] * 5
        assert len(gate.store.dead_letters()) == 1
    assert caplog.text.count("use another namespace for this worker, or add retry_topic=NAME") == 1


def test_a_publisher_with_the_same_namespace_is_known_at_the_start(
    server: KafkaServer, topic: Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the store has records of events that were published to the topic, the worker warns when it starts. Records
    of another topic mean nothing."""
    sink: Any = publish(topic.target)
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate, closing(sink):
        assert gate.run(call(1), sink).status == "processed"
        with working(gate.worker(server.topic().source, Handler())):
            time.sleep(0.5)
        assert "the publisher of this topic also uses the namespace" not in caplog.text
        with working(gate.worker(topic.source, Handler())):
            until(lambda: "the publisher of this topic also uses the namespace default" in caplog.text, "the warning")


def test_a_moved_event_that_another_gate_has_published(topic: Topic, tmp_path: Path) -> None:
    """An event with the key of another store is moved to the inbox under its own key, and has one effect."""
    sink: Any = publish(topic.target)
    publisher, handler = Gate("memory://"), Handler()
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", backoff="20ms")) as gate, closing(sink):
        with working(gate.worker(topic.source, handler)):
            publisher.run(call(1, fails=3), sink)
            topic.until_empty()
            until(lambda: handler.ran == [1] * 4, "the last attempt")
        assert gate.run(call(1), Handler()).status in ("duplicate", "conflict")
    publisher.close()


# ── stopping and faults ───────────────────────────────────────────────────────────────────────────────────


def test_stop_keeps_what_has_not_run(topic: Topic) -> None:
    """A worker that stops commits what is finished. The next worker gets the rest."""
    topic.send(*[call(number, "c-1", takes=0.3) for number in range(4)])
    gate, ran, rest = Gate("memory://"), Handler(), Handler()
    with working(gate.worker(topic.source, ran, **QUICK)):
        until(lambda: bool(ran.ran), "the first event")
    assert topic.committed() == [len(ran.ran)]
    with working(gate.worker(topic.source, rest, **QUICK)):
        topic.until_empty()
    assert ran.ran + rest.ran == [0, 1, 2, 3]
    gate.close()


def test_the_store_is_away(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    """While the store does not answer, messages are held and no more are received. Nothing is committed or lost."""
    gate, handler = Gate("memory://"), Handler()
    claim, is_away = gate.store.claim, threading.Event()
    is_away.set()

    def failing(requests: Any) -> Any:
        if is_away.is_set():
            raise StoreUnavailable("away")
        return claim(requests)

    gate.store.claim = failing  # type: ignore[method-assign]
    topic.send(*[call(number) for number in range(5)])
    worker = gate.worker(topic.source, handler, batch=1)
    with working(worker):
        until(lambda: "events cannot be claimed" in caplog.text, "the outage")
        assert topic.committed() == [0]
        is_away.clear()
        topic.until_empty()
    assert sorted(handler.ran) == list(range(5))
    gate.close()


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────


def run_command(words: list[str], topic: Topic, folder: Path) -> str:
    """Run `oncegate` until the topic is worked off, stop it by SIGTERM, and return its output."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        topic.until_empty()
    finally:
        process.terminate()
        out, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    return out


def test_the_command(topic: Topic, tmp_path: Path) -> None:
    """`oncegate work kafka://…` runs the messages, logs each outcome, and drains on SIGTERM. The row of an invalid
    message in the journal names its dead letter."""
    (tmp_path / "app.py").write_text("def handle(event): pass\n")
    topic.send({"id": "evt-1"}, {"id": "evt-1"}, b"not json")
    out = run_command(["oncegate", "work", topic.source, "--handler", "app:handle"], topic, tmp_path)
    assert sorted(json.loads(line)["status"] for line in out.splitlines()) == ["duplicate", "invalid", "processed"]
    with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db", create=False)) as journal:
        (row,) = [row for row in journal.rows() if row.status == "invalid"]
    assert (bool(row.kept), row.place) == (True, topic.target)


GUIDE_FOLDER = Path(__file__).parents[3] / "docs" / "guide"
GUIDE = (GUIDE_FOLDER / "kafka.md").read_text()


def test_the_guide(server: KafkaServer, tmp_path: Path) -> None:
    """The handler and the commands of the guide run the messages of a topic."""
    (handler,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    commands = re.findall(r"^    (oncegate work .*)$", GUIDE, re.MULTILINE)
    assert len(commands) == 2
    (tmp_path / "app.py").write_text(handler)
    server.create("events-retry")
    for command in commands:
        topic = server.topic()
        topic.send({"id": "evt-1"})
        words = command.replace("127.0.0.1:9092", server.address).replace("/events?", f"/{topic.name}?")
        words = words.replace("group=crm", f"group={topic.name}").replace("oncegate.db", f"{topic.name}.db")
        out = run_command(shlex.split(words), topic, tmp_path)
        assert json.loads(out)["status"] == "processed"


def test_the_guide_publishes(topic: Topic, tmp_path: Path) -> None:
    """The command of the guide sends a webhook to the topic."""
    with publishing(GUIDE, tmp_path, {"127.0.0.1:9092/events": topic.target.removeprefix("kafka://")}):
        until(lambda: topic.ends() == [1], "the message")
    (message,) = topic.stored()
    assert json.loads(message.value())["id"] == "evt-1"


EXACTLY_ONCE = GUIDE_FOLDER.joinpath("exactly-once.md").read_text()


def test_the_guide_on_exactly_once(
    topic: Topic, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the example bring a webhook through the topic into a table. A second run of the handler changes
    nothing."""
    (handler,) = re.findall(r"```python\n(.*?)```", EXACTLY_ONCE, re.DOTALL)
    (command,) = re.findall(r"^    (oncegate work .*)$", EXACTLY_ONCE, re.MULTILINE)
    with postgres.connect() as db:
        db.execute("CREATE DATABASE crm")
    store = postgres.url("crm")
    places = {"kafka://127.0.0.1:9092/events": topic.target, "postgresql://127.0.0.1/crm": store}
    with publishing(EXACTLY_ONCE, tmp_path, places):
        until(lambda: topic.ends() == [1], "the message")
    (tmp_path / "app.py").write_text(handler)
    monkeypatch.setenv("DATABASE_URL", store)
    for written, real in {**places, "group=crm": f"group={topic.name}"}.items():
        assert written in command
        command = command.replace(written, real)
    out = run_command(shlex.split(command), topic, tmp_path)
    assert json.loads(out)["status"] == "processed"
    key = json.loads(out)["key"]
    (event,) = read({"id": "evt-1", "type": "call.ended"})
    runpy.run_path(str(tmp_path / "app.py"))["open_case"](replace(event, key=key))
    with postgres.connect("crm") as db:
        assert db.execute("SELECT key, event_id FROM cases").fetchall() == [(key, "evt-1")]


# ── a real broker ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def real() -> Iterator[RealKafka]:
    if REAL not in os.environ:
        pytest.skip(f"no broker to test with: set {REAL}=kafka://127.0.0.1:9092")
    kafka = RealKafka(os.environ[REAL])
    yield kafka
    kafka.stop()


@pytest.mark.long
def test_a_real_broker(real: RealKafka, tmp_path: Path) -> None:
    """Against the broker that the environment names: publish, work off with two workers, a poison message, a retry
    topic."""
    topic, again = real.topic(4), real.topic(1)
    sink: Any = publish(topic.target)
    handler = Handler()
    events = [call(number, f"c-{number % 7}", fails=99 if number == 5 else 0) for number in range(50)]
    with closing(Gate(f"sqlite:///{tmp_path}/a.db")) as publisher, closing(sink):
        publisher.run_batch([*events, *events], sink)
    with closing(Gate(f"sqlite:///{tmp_path}/b.db", max_attempts=5, backoff="20ms")) as gate:
        source = f"{topic.source}&retry_topic={again.name}"
        with working(gate.worker(source, handler)), working(gate.worker(source, handler)):
            topic.until_empty()
            until(lambda: len(gate.store.dead_letters()) == 1, "the dead letter")
    assert sorted(set(handler.ran)) == list(range(50))
    assert len(handler.ran) == 49 + 5
