"""Unwrap Kafka records and Amazon MQ messages: batches from Lambda, and single records from EventBridge Pipes.

The member that contains the records, and the encoding of a record:

    Kafka      records               lists by topic and partition; value and key are base64, a header is a list of bytes
    ActiveMQ   messages              a list; data is base64
    RabbitMQ   rmqMessagesByQueue    lists by queue and virtual host; data is base64, a header may be {"bytes": […]}

Kafka keys, headers and properties become evidence. Evidence is not part of the key of an event.
"""

from collections.abc import Callable, Iterable
from typing import Any

from oncegate.carriers.pieces import Piece, from_base64, text, within
from oncegate.events import Evidence
from oncegate.times import moment

KAFKA = ("aws:kafka", "SelfManagedKafka")
MARKERS = {"eventSource"}
# The header of a dead letter that contains the reason of the failure: of Spring, Kafka Connect, RabbitMQ and ActiveMQ.
_FAILURES = (
    "kafka_dlt-exception-message",
    "__connect.errors.exception.message",
    "x-first-death-reason",
    "dlqDeliveryFailureCause",
)
TOMBSTONE = "a Kafka record without a value, which deletes its key"


def pieces(body: dict[str, Any]) -> Iterable[Piece] | None:
    source = body.get("eventSource")
    for sources, container, member, read in _BROKERS:
        if source in sources:
            batch = body.get(container)
            if isinstance(batch, dict):
                return (read(record) for records in batch.values() for record in listed(records))
            if isinstance(batch, list):
                return map(read, batch)
            return [read(body)] if member in body else None
    return None


def listed(records: Any) -> list[Any]:
    """Return the records of one partition or queue as a list. A value that is not a list becomes one unreadable
    record."""
    return records if isinstance(records, list) else [records]


def partition(record: Any) -> str | None:
    """Return the topic and partition of a Kafka record as Lambda writes them, such as `calls-0`."""
    topic, number = text(within(record, "topic")), within(record, "partition")
    return None if topic is None or type(number) is not int else f"{topic}-{number}"


def _kafka(record: Any) -> Piece:
    place, offset, headers = partition(record), within(record, "offset"), _headers(within(record, "headers"))
    evidence = Evidence(
        message_id=None if place is None or type(offset) is not int else f"{place}-{offset}",
        sent_at=moment(within(record, "timestamp")),
        failure=_failure(headers),
        group=_key(within(record, "key")),
    )
    if isinstance(record, dict) and record.get("value") is None and place is not None:
        return Piece(record, evidence, frame=TOMBSTONE)
    return _opened(record, "value", "value of a Kafka record", evidence)


def _active(message: Any) -> Piece:
    evidence = Evidence(
        message_id=text(within(message, "messageID")),
        receive_count=_receives(message, None),
        sent_at=moment(within(message, "timestamp")),
        failure=_failure(within(message, "properties")),
    )
    return _opened(message, "data", "data of an ActiveMQ message", evidence)


def _rabbit(message: Any) -> Piece:
    properties = within(message, "basicProperties")
    headers = within(properties, "headers")
    evidence = Evidence(
        message_id=text(within(properties, "messageId")),
        receive_count=_receives(message, within(headers, "x-delivery-count")),
        sent_at=moment(within(properties, "timestamp")),
        failure=_failure(headers),
    )
    return _opened(message, "data", "data of a RabbitMQ message", evidence)


_BROKERS: tuple[tuple[tuple[str, ...], str, str, Callable[[Any], Piece]], ...] = (
    (KAFKA, "records", "topic", _kafka),
    (("aws:mq", "aws:amq"), "messages", "data", _active),
    (("aws:rmq",), "rmqMessagesByQueue", "data", _rabbit),
)


def _opened(record: Any, member: str, what: str, evidence: Evidence) -> Piece:
    try:
        return Piece(from_base64(within(record, member), what), evidence)
    except ValueError as error:
        return Piece(record, evidence, str(error))


def _receives(message: Any, returned: Any) -> int | None:
    """Return how often the broker has delivered the message. `returned` is how often the message went back to the
    queue. If `returned` is not known, the result is 2 for a message that is marked as redelivered, and 1 for a message
    that is marked as not redelivered."""
    if type(returned) is int and returned >= 0:
        return returned + 1
    redelivered = within(message, "redelivered")
    return (2 if redelivered else 1) if type(redelivered) is bool else None


def _headers(headers: Any) -> dict[str, Any]:
    """Convert Kafka's list of headers to a dict. If several headers have the same name, the last header counts."""
    named = [header for header in headers if isinstance(header, dict)] if isinstance(headers, list) else []
    return {name: value for header in named for name, value in header.items()}


def _failure(headers: Any) -> str | None:
    found = (within(headers, name) for name in _FAILURES)
    return next((reason for value in found if (reason := _header_text(value))), None)


def _header_text(value: Any) -> str | None:
    """Return a header as text. The header is a string or a list of bytes. Java writes bytes as -128 to 127."""
    numbers = within(value, "bytes") or value
    if isinstance(numbers, list) and all(type(each) is int for each in numbers):
        return bytes(each & 0xFF for each in numbers).decode("utf-8", "replace") or None
    return text(value)


def _key(key: Any) -> str | None:
    """Return the key of a Kafka record as text. A key that is not UTF-8 stays in base64."""
    try:
        return from_base64(key, "key").decode() or None
    except ValueError:
        return text(key)
