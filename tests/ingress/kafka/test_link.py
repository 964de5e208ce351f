"""The member of a consumer group: rebalance, lost partitions, commits, pauses and outages."""

import threading
import time
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.errors import QueueError
from oncegate.gate import Notice
from oncegate.gate.observers import outcome_of
from oncegate.ingress import queue_worker
from oncegate.ingress.kafka import link
from oncegate.ingress.kafka.address import read_group
from oncegate.ingress.kafka.link import consumer_config
from oncegate.ingress.options import KAFKA_LIMITS, validate
from tests.ingress.kafka_server import OFFSET_COMMIT, KafkaServer, Topic
from tests.ingress.sqs.queues import Handler, call, working
from tests.ingress.test_options import DEFAULTS
from tests.stores.servers import until

QUICK: dict[str, Any] = {"visibility": "2s"}
# On a busy machine, the mock cluster may refuse commits during the whole rebalance. Then there are duplicates.
REFUSED = "offsets of revoked partitions were not committed"
HEARTBEAT, JOIN_GROUP = 12, 11  # requests
UNKNOWN_MEMBER, METADATA_TOO_LARGE, INVALID_SESSION, NOT_ALLOWED = 25, 12, 26, 30  # error codes


def test_the_configuration() -> None:
    """Nothing is committed but by the worker. A new group begins with the first message. `visibility` is the session
    timeout."""
    options = validate(KAFKA_LIMITS, **DEFAULTS | {"visibility": "20s"})
    config = consumer_config(read_group("kafka://h/events?group=crm"), options)
    assert (config["session.timeout.ms"], config["heartbeat.interval.ms"]) == (20_000, 2_000)
    assert config["auto.offset.reset"] == "earliest"
    assert (config["enable.auto.commit"], config["enable.auto.offset.store"]) == (False, False)
    assert config["partition.assignment.strategy"] == "cooperative-sticky"


# ── rebalance ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_worker_takes_partitions_over(server: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    """When a worker joins, the partitions that it gets are handed over without an event lost or received twice."""
    topic = server.topic(4)
    gate, first, second = Gate("memory://"), Handler(), Handler()
    one = gate.worker(topic.source, first, **QUICK)
    other = gate.worker(topic.source, second, **QUICK)

    def send(numbers: range) -> None:
        for number in numbers:
            topic.send(call(number, f"c-{number % 20}", takes=0.01), partition=number % 4)

    with working(one):
        send(range(10))
        topic.until_empty()
        with working(other):
            send(range(10, 30))
            until(lambda: len(partitions_of(other)) == 2, "the second worker")
            send(range(30, 50))
            topic.until_empty()
    assert len(second.ran) >= 10
    assert sorted(first.ran + second.ran) == list(range(50))
    assert REFUSED in caplog.text or one.figures.received + other.figures.received == 50
    gate.close()


def test_a_revoked_partition(server: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    """When partitions are revoked, the running handler ends and is committed. What waits is not run here: the new owner
    runs it."""
    topic = server.topic(2)
    gate, entered, leave = Gate("memory://"), threading.Semaphore(0), threading.Event()
    first: list[int] = []
    second = Handler()

    def slow(event: Event) -> None:
        first.append(event.body["number"])
        entered.release()
        assert leave.wait(20)

    for partition in (0, 1):
        for number in range(3):
            topic.send(call(10 * partition + number, f"c-{partition}"), partition=partition)
    one = gate.worker(topic.source, slow, visibility="6s")
    other = gate.worker(topic.source, second, visibility="6s")
    with working(one):
        assert entered.acquire(timeout=20)
        assert entered.acquire(timeout=20)
        with working(other):
            until(lambda: len(partitions_of(one)) == 1, "the revocation")
            assert second.ran == []  # the running handler has not ended yet
            leave.set()
            topic.until_empty()
    assert sorted(first + second.ran) == [0, 1, 2, 10, 11, 12]
    assert second.ran in ([1, 2], [11, 12])
    assert REFUSED in caplog.text or one.figures.received + other.figures.received == 8
    gate.close()


def partitions_of(worker: Any) -> dict[Any, Any]:
    session = worker._session
    return {} if session is None else dict(session._link._partitions)


def test_a_lost_partition(server: KafkaServer, topic: Topic) -> None:
    """If the group has given the partition away, nothing is committed for it, whatever ends afterwards. The message is
    delivered again, and its second delivery is a duplicate of the kind redelivery."""
    entered, leave = threading.Event(), threading.Event()
    kinds: list[str | None] = []

    def slow(_event: Event) -> None:
        entered.set()
        assert leave.wait(20)

    def observe(notice: Notice) -> None:
        if (outcome := outcome_of(notice)) is not None and outcome.status == "duplicate":
            kinds.append(outcome.kind)

    topic.send({"type": "call.ended", "n": 1})
    gate = Gate("memory://", observers=[observe])
    worker = gate.worker(topic.source, slow, **QUICK)
    with working(worker):
        assert entered.wait(20)
        (before,) = partitions_of(worker).values()
        server.fail(HEARTBEAT, UNKNOWN_MEMBER)
        until(lambda: worker.figures.received == 2, "the second delivery")
        assert not before.is_assigned
        leave.set()
        topic.until_empty()
        topic.send({"type": "call.ended", "n": 1})
        topic.until_empty()
    assert kinds == ["redelivery", "re-emission"]
    assert worker.figures.processed == 1
    assert before.committed in (None, 0)
    gate.close()


def test_a_handler_that_takes_longer_than_the_poll_interval(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker polls while its handlers run and no more messages are received, so it keeps its partitions."""
    monkeypatch.setattr(link, "_LONGEST_POLL_PAUSE", 1)
    topic.send(call(1, takes=2.5), call(2))
    handler, gate = Handler(), Gate("memory://")
    worker = gate.worker(topic.source, handler, in_hand=1, drain="500ms", visibility="1s")
    with working(worker):
        until(lambda: handler.ran == [1], "the handler")
        time.sleep(1)
        assert worker.figures.received == 1
        topic.until_empty()
    assert handler.ran == [1, 2]
    assert worker.figures.received == 2
    gate.close()


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_commit_is_sent_again(server: KafkaServer, topic: Topic) -> None:
    """A commit that Kafka refuses is repeated, though no further message arrives."""
    server.fail(OFFSET_COMMIT, METADATA_TOO_LARGE)
    topic.send(call(1))
    gate = Gate("memory://")
    with working(gate.worker(topic.source, Handler())):
        topic.until_empty(10)
    gate.close()


def test_the_brokers_are_away(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers that are away are told once when this begins and once when it ends, and no message is lost."""
    server = KafkaServer()
    try:
        topic, handler, gate = server.topic(), Handler(), Gate("memory://")
        with working(gate.worker(topic.source, handler)):
            topic.send(call(1))
            topic.until_empty()
            server.down()
            until(lambda: "do not answer; nothing is received until this ends" in caplog.text, "the beginning")
            time.sleep(1)
            server.up()
            until(lambda: "answers again, after" in caplog.text, "the end", 40)
            topic.send(call(2))
            topic.until_empty()
        gate.close()
    finally:
        server.stop()
    assert handler.ran == [1, 2]
    assert caplog.text.count("do not answer") == caplog.text.count("answers again") == 1


def test_stop_while_the_brokers_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker can be stopped while the brokers are away. It tries to commit and to leave for a limited time."""
    monkeypatch.setattr(queue_worker, "_FLUSH_WITHIN", 0.5)
    monkeypatch.setattr(link, "_CLOSE_WITHIN", 0.5)
    server = KafkaServer()
    try:
        topic, handler, gate = server.topic(), Handler(), Gate("memory://")
        topic.send(call(1, takes=0.5))
        with working(gate.worker(topic.source, handler)):
            until(lambda: handler.ran == [1], "the handler")
            server.down()
            began = time.monotonic()
        assert time.monotonic() - began < 10
        gate.close()
    finally:
        server.stop()


def test_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that do not answer at the start are an error, with the reason."""
    monkeypatch.setattr(link, "_OPEN_WITHIN", 1.0)
    with pytest.raises(QueueError, match=r"cannot be used at 127\.0\.0\.1:1: .*Connection refused"):
        Gate("memory://").worker("kafka://127.0.0.1:1/events?group=crm", print).run()


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (INVALID_SESSION, "change the option visibility; brokers allow 6s to 30m by default"),
        (NOT_ALLOWED, "allow its user to read the group"),
    ],
)
def test_a_group_that_refuses_the_worker(server: KafkaServer, topic: Topic, code: int, problem: str) -> None:
    """A group that the worker may not join ends the worker with an error that says what to change."""
    server.fail(JOIN_GROUP, code)
    gate = Gate("memory://")
    with pytest.raises(QueueError, match=problem):
        gate.worker(topic.source, print).run()
    gate.close()


def test_a_deleted_topic_ends_the_worker(server: KafkaServer, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose topic was deleted ends with an error, and does not wait for ever."""
    monkeypatch.setattr(link, "_METADATA_EVERY", 1)
    gate = Gate("memory://")
    topic.send(call(1))
    with pytest.raises(QueueError, match="does not exist"):
        gate.worker(topic.source, lambda _event: server.forget(topic.name)).run()
    gate.close()
