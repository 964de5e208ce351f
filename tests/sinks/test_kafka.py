"""Publishing to a topic of a Kafka cluster."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncegate import Event, Gate
from oncegate.errors import Bury, RetryLater, SettingError
from oncegate.sinks import publish
from oncegate.sinks.kafka import read_destination
from tests.ingress.kafka.conftest import server
from tests.ingress.kafka_server import PRODUCE, KafkaServer, Topic
from tests.ingress.sqs.queues import call
from tests.sinks.conftest import To, succeeds_in_child
from tests.stores.servers import until

__all__ = ["server"]
EVENT = Event(source="plain", body={"id": "1"}, raw=b'{"id": "1"}')
TOO_LARGE, OUT_OF_ORDER = 10, 45  # error codes of Kafka


@pytest.fixture
def topic(server: KafkaServer) -> Topic:
    return server.topic(4)


def test_sent_once(topic: Topic, to: To) -> None:
    """The message is the JSON of the event. Its key is the entity. Its headers have the key, the source, the type and
    the attempt. A copy of the event sends no message."""
    body = b'{ "id": "evt-1", "type": "call.ended", "conversationId": "c-1" }'
    outcomes = Gate("memory://").run_batch([body, body], to(topic.target))
    assert [outcome.status for outcome in outcomes] == ["processed", "duplicate"]
    (message,) = topic.stored()
    assert (message.value(), message.key()) == (body, b"c-1")
    assert dict(message.headers()) == {
        "oncegate-key": str(outcomes[0].key).encode(),
        "oncegate-source": b"plain",
        "oncegate-type": b"call.ended",
        "oncegate-attempt": b"1",
    }


def test_an_entity_has_one_partition(topic: Topic, to: To) -> None:
    """The events of an entity are in one partition, in the order in which they were sent."""
    handler, gate = to(topic.target), Gate("memory://")
    for number in range(8):
        for entity in ("c-1", "c-2", "c-3"):
            event = call(number, entity) | {"id": f"{entity}-{number}"}
            assert gate.run(event, handler).status == "processed"
    places: dict[bytes, set[int]] = {}
    for message in topic.stored():
        places.setdefault(message.key(), set()).add(message.partition())
    assert all(len(partitions) == 1 for partitions in places.values())
    assert [
        b'"id":"c-1-%d"' % number in message.value().replace(b" ", b"")
        for number, message in enumerate(message for message in topic.stored() if message.key() == b"c-1")
    ] == [True] * 8


def test_no_such_topic(server: KafkaServer, to: To) -> None:
    """A topic that the brokers do not know is a failure, and the message says what to do. The event is not buried."""
    server.forget("nowhere")
    with pytest.raises(RetryLater, match="the topic does not exist; create it"):
        to(f"kafka://{server.address}/nowhere")(EVENT)


def test_too_large(server: KafkaServer, topic: Topic, to: To) -> None:
    """An event that is too large for the client or the brokers is buried at once."""
    handler = to(topic.target)
    with pytest.raises(Bury, match=r"rejects this event \(it is too large\)"):
        handler(Event(source="plain", body=None, raw=b"1" * 65 * 1024 * 1024))
    server.fail(PRODUCE, TOO_LARGE)
    with pytest.raises(Bury, match=r"rejects this event \(it is too large\)"):
        handler(EVENT)
    handler(EVENT)
    assert len(topic.stored()) == 1


def test_the_brokers_are_away(server: KafkaServer, topic: Topic, to: To) -> None:
    """While the brokers are away, an event fails after the timeout. It is not sent later, when they are back."""
    handler, gate = to(f"{topic.target}?timeout=1s"), Gate("memory://", max_attempts=1_000)
    until(lambda: gate.run(call(1), handler).status == "processed", "the first event")  # a second may be too short
    server.down()
    try:
        began = time.monotonic()
        outcome = gate.run(call(2), handler)
        assert outcome.status == "failed"
        assert "did not confirm the message (" in outcome.reason
        assert time.monotonic() - began < 8
    finally:
        server.up()
    until(lambda: gate.run(call(3), handler).status == "processed", "the brokers")
    assert [b"evt-2" in message.value() for message in topic.stored()].count(True) == 0


def test_no_broker(to: To) -> None:
    """Brokers that were never there are a failure of the event, told within the timeout."""
    with pytest.raises(RetryLater, match="did not confirm the message"):
        to("kafka://127.0.0.1:1/events?timeout=1s")(EVENT)


def test_a_broken_client(server: KafkaServer, to: To) -> None:
    """After an error that ends the client, the event fails, and the next event is sent by a new client."""
    topic = server.topic()
    handler = to(topic.target)
    handler(EVENT)
    server.fail(PRODUCE, OUT_OF_ORDER)
    with pytest.raises(RetryLater, match="did not confirm the message"):
        handler(EVENT)
    handler(EVENT)
    assert len(topic.stored()) == 2


def test_many_threads(topic: Topic, to: To) -> None:
    """Threads share one client, and each gets the answer to its own message."""
    handler = to(topic.target)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(handler, [EVENT] * 160))
    assert len(topic.stored()) == 160


def test_after_a_fork(topic: Topic, to: To) -> None:
    """A forked child uses a client of its own."""
    handler = to(topic.target)
    handler(EVENT)
    assert succeeds_in_child(lambda: handler(EVENT))
    handler(EVENT)
    assert len(topic.stored()) == 3


FORKS = """
import os, sys
from oncegate import Event
from oncegate.sinks.kafka import KafkaPublisher

handler = KafkaPublisher(sys.argv[1])
handler(Event(source="plain", body={"id": "1"}))
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
handler(Event(source="plain", body={"id": "2"}))
handler.close()
"""


def test_a_forked_child_ends(topic: Topic) -> None:
    """A forked child ends in the usual way. It does not wait for the client of its parent."""
    subprocess.run([sys.executable, "-c", FORKS, topic.target], check=True, timeout=20)
    assert len(topic.stored()) == 2


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://h", "the URL has no name of a Kafka topic; write 'kafka://HOST:PORT/TOPIC'"),
        ("kafka://h/events?group=crm", "unknown option 'group' in a Kafka URL; use timeout, mechanism"),
        ("kafka://h/events?timeout=no", "timeout"),
        ("kafka://ann@h/events?password_file=/no/such", "names a file that cannot be used"),
    ],
)
def test_an_invalid_destination(url: str, problem: str) -> None:
    """An invalid URL is rejected when the handler is created."""
    with pytest.raises(SettingError, match=problem):
        publish(url)


def test_one_spelling_of_a_destination() -> None:
    """A destination has one spelling in records, without secrets and brokers."""
    place = read_destination("kafka://ann:secret@h:5/events?timeout=2s")
    assert place.at.canonical == "kafka://events"
    assert "secret" not in place.spoken
