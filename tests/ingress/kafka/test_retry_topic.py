"""Events that fail are moved to a retry topic, which the same worker reads."""

import threading
import time
from typing import Any

import pytest

from oncegate import Event, Gate, keys
from oncegate.errors import RetryLater
from tests.ingress.kafka_server import PRODUCE, KafkaServer, Topic
from tests.ingress.sqs.queues import Handler, call, working
from tests.stores.servers import until

NOT_ALLOWED = 29  # the error code of Kafka


@pytest.fixture
def again(server: KafkaServer) -> Topic:
    return server.topic()


def source(topic: Topic, again: Topic) -> str:
    return f"{topic.source}&retry_topic={again.name}"


def test_a_poison_message(topic: Topic, again: Topic) -> None:
    """After three attempts the event is sent to the retry topic and committed. The gate goes on counting its attempts,
    and buries it. Other events go on."""
    topic.send(call(1, "c-1", fails=99), call(2), key=b"c-1")
    handler, gate = Handler(), Gate("memory://", max_attempts=5, backoff="20ms")
    with working(gate.worker(source(topic, again), handler)):
        topic.until_empty()
        until(lambda: len(gate.store.dead_letters()) == 1, "the dead letter")
        until(lambda: again.left(topic.name) == 0, "the retry topic")
    assert (handler.ran.count(1), handler.ran.count(2)) == (5, 1)
    assert gate.store.dead_letters()[0].record.attempts == 5
    (moved,) = again.stored()
    headers = dict(moved.headers())
    assert moved.key() == b"c-1"
    assert (headers["oncegate-origin"], headers["oncegate-retries"]) == (f"{topic.name}-0-0".encode(), b"1")
    assert len(headers["oncegate-key"]) == 32
    gate.close()


def test_a_poison_message_without_a_key(topic: Topic, again: Topic) -> None:
    """An event without a key gets one with its first move. So the gate counts its attempts, and it does not go round
    without an end."""
    ran: list[int] = []

    def handler(event: Event) -> None:
        ran.append(event.attempt)
        raise ValueError("never")

    topic.send({"queue": "sales"})
    gate = Gate("memory://", key=keys.event_id, on_missing_key="unguarded", max_attempts=4, backoff="20ms")
    with working(gate.worker(source(topic, again), handler)):
        until(lambda: len(gate.store.dead_letters()) == 1, "the dead letter")
        until(lambda: again.left(topic.name) == 0, "the retry topic")
    assert ran == [0, 0, 0, 1, 2, 3, 4]
    gate.close()


def test_the_event_is_the_same_for_the_gate(topic: Topic, again: Topic) -> None:
    """The event of a message with several events is moved alone. It keeps its message id, and has one effect."""
    found: list[Event] = []
    lock = threading.Lock()

    def handler(event: Event) -> None:
        with lock:
            found.append(event)
            if event.id == "evt-2" and len([each for each in found if each.id == "evt-2"]) <= 4:
                raise ValueError("not yet")

    topic.send([call(1), call(2)])
    gate = Gate("memory://", max_attempts=100, backoff="20ms")
    worker = gate.worker(source(topic, again), handler)
    with working(worker):
        topic.until_empty()
        until(lambda: again.left(topic.name) == 0, "the retry topic")
    assert [event.id for event in found].count("evt-1") == 1
    attempts = [event for event in found if event.id == "evt-2"]
    assert [event.attempt for event in attempts] == [1, 2, 3, 4, 5]
    assert {event.evidence.message_id for event in attempts} == {f"{topic.name}-0-0"}
    assert len(again.stored()) == 1
    gate.close()


def test_not_before_its_time(topic: Topic, again: Topic) -> None:
    """A message of the retry topic waits for its time. The worker goes on with other messages."""
    waits: dict[str, Any] = {"oncegate__not__before": "9999999999999"}
    again.send(call(1), **waits)
    topic.send(call(2), **waits)  # the header means nothing in another topic
    handler, gate = Handler(), Gate("memory://")
    with working(gate.worker(source(topic, again), handler)):
        topic.until_empty()
    assert handler.ran == [2]
    gate.close()


def test_a_retry_topic_that_fails(
    server: KafkaServer, topic: Topic, again: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """If the retry topic does not take the event, the event stays in the worker, and nothing is lost."""
    topic.send(call(1, fails=3))
    handler, gate = Handler(), Gate("memory://", max_attempts=100, backoff="20ms")
    server.fail(PRODUCE, NOT_ALLOWED)
    with working(gate.worker(source(topic, again), handler)):
        topic.until_empty()
        until(lambda: again.left(topic.name) == 0, "the retry topic")
    assert handler.ran == [1] * 4
    assert f"was not sent to the retry topic {again.name}" in caplog.text
    gate.close()


def test_a_failed_move_is_repeated_soon(server: KafkaServer, topic: Topic, again: Topic) -> None:
    """A move that fails is tried again after a second, without the handler. The delay that the handler requested does
    not hold up the partition, and is kept for the next attempt."""
    ran: list[int] = []

    async def handler(event: Event) -> None:
        ran.append(event.body["number"])
        raise RetryLater("come back", after=3_600)

    topic.send(call(1))
    gate = Gate("memory://")
    server.fail(PRODUCE, NOT_ALLOWED)
    with working(gate.worker(source(topic, again), handler)):
        topic.until_empty(20)
    assert ran == [1]
    (moved,) = again.stored()
    waits = int(dict(moved.headers())["oncegate-not-before"]) / 1e3 - time.time()
    assert 3_500 < waits <= 3_600
    gate.close()
