"""Messages of a topic: evidence, headers, and the offsets that may be committed."""

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from oncegate import read
from oncegate.ingress.kafka.messages import KafkaMessage, Partition


def record(offset: int, value: bytes | None = b'{"id": "1"}', **more: Any) -> Message:
    given: dict[str, Any] = {"timestamp": (TIMESTAMP_CREATE_TIME, 1_770_091_500_000), **more}
    return Message(topic="events", partition=3, offset=offset, value=value, **given)


def taken(partition: Partition, offset: int, **more: Any) -> KafkaMessage:
    message = partition.take(record(offset, **more), float)
    assert message is not None
    return message


def test_only_a_prefix_is_committed() -> None:
    """The offset to commit is that of the first message that is not finished, in whatever order they finish. Offsets
    may have gaps."""
    partition = Partition("events", 3)
    first, second, third = (taken(partition, offset) for offset in (5, 6, 9))
    assert partition.position == 5
    partition.finish(second)
    assert partition.position == 5
    partition.finish(first)
    assert partition.position == 9
    partition.finish(third)
    assert partition.position == 10
    assert Partition("events", 4).position is None


def test_a_record_is_taken_once() -> None:
    """A record that the worker holds is not taken again."""
    partition = Partition("events", 3)
    held = taken(partition, 6)
    assert partition.take(record(6), float) is None
    partition.finish(held)
    assert partition.position == 7


def test_lower_offsets_than_before() -> None:
    """If a topic is created again, or loses its last messages, new records have lower offsets. They are taken, also at
    an offset whose previous record still runs, and nothing behind them is committed."""
    partition = Partition("events", 3)
    partition.finish(taken(partition, 5))
    old = taken(partition, 6)
    first = taken(partition, 0)
    assert partition.position == 0
    partition.finish(first)
    assert partition.position == 1
    for offset in range(1, 6):
        partition.finish(taken(partition, offset))
    new = taken(partition, 6, value=b'{"id": "2"}')
    partition.finish(old)
    assert partition.position == 6
    partition.finish(new)
    assert partition.position == 7


def test_a_revoked_partition() -> None:
    """An event of a revoked partition does not start."""
    partition = Partition("events", 3)
    message = taken(partition, 5)
    assert message.may_start(0)
    partition.is_assigned = False
    assert not message.may_start(0)


def test_evidence() -> None:
    """The place of the message is its id. Its key and its time are evidence, too, and never part of the key."""
    content = taken(Partition("events", 3), 7, key=b"c-1", headers=[("a", b"1"), ("a", b"2"), ("b", None)]).content
    assert content.evidence.message_id == "events-3-7"
    assert content.evidence.group == "c-1"
    assert content.evidence.sent_at == datetime(2026, 2, 3, 4, 5, tzinfo=UTC)
    assert content.evidence.receive_count is None
    assert content.headers == {"a": b"2"}


@pytest.mark.parametrize("timestamp", [(TIMESTAMP_NOT_AVAILABLE, 5), (TIMESTAMP_CREATE_TIME, -1)])
def test_no_time(timestamp: tuple[int, int]) -> None:
    """A message without a valid time has none."""
    assert taken(Partition("events", 3), 7, timestamp=timestamp).content.evidence.sent_at is None


def test_the_headers_of_a_retry_topic() -> None:
    """A message of a retry topic has the place of the first message, a count and a time. Other values are ignored."""
    headers = [("oncegate-origin", b"calls-1-5"), ("oncegate-retries", b"2"), ("oncegate-not-before", b"1770091500000")]
    message = taken(Partition("again", 0), 7, headers=headers)
    assert (message.origin, message.retries, message.not_before) == ("calls-1-5", 2, 1_770_091_500_000)
    hostile = taken(Partition("again", 0), 7, headers=[("oncegate-retries", b"x"), ("oncegate-not-before", b"9" * 99)])
    assert (hostile.origin, hostile.retries, hostile.not_before) == ("again-0-7", 0, 0)


def test_the_binding_of_cloud_events() -> None:
    """A CloudEvent in binary mode has its attributes in headers with `ce_`, in structured mode in the value."""
    attributes = {"specversion": "1.0", "id": "e-1", "source": "/crm", "type": "case.opened"}
    headers = [*((f"ce_{name}", text.encode()) for name, text in attributes.items()), ("content-type", b"text/json")]
    (binary,) = read(taken(Partition("events", 0), 1, value=b'{"case": 1}', headers=headers).content)
    structured_value = b'{"specversion":"1.0","id":"e-1","source":"/crm","type":"case.opened","data":{"case":1}}'
    kind = [("content-type", b"application/cloudevents+json")]
    (structured,) = read(taken(Partition("events", 0), 2, value=structured_value, headers=kind).content)
    assert [(each.source, each.id, each.type) for each in (binary, structured)] == [
        ("cloudevents", "e-1", "case.opened")
    ] * 2
    assert (binary.identity, binary.body) == (structured.identity, structured.body)
