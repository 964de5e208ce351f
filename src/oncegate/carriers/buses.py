"""Read a message of a bus: NATS, RabbitMQ or Kafka.

A worker makes a BusMessage of what its client library delivers. The headers of a CloudEvent in binary mode differ by
the binding: `ce-` in NATS and HTTP, `ce_` in Kafka, `cloudEvents:` or `cloudEvents_` in AMQP.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from oncegate.carriers.brokers import TOMBSTONE
from oncegate.carriers.pieces import HANDED_KEY, Piece, handed_key, merged
from oncegate.carriers.web import request
from oncegate.events import NO_EVIDENCE, Evidence

_CE_PREFIXES = ("ce_", "cloudevents:", "cloudevents_")


class BusMessage(Struct, frozen=True):
    """One message of a bus. `headers` has text or bytes. `evidence` has the id of the message, and how often the bus
    has delivered it. A Kafka message without a value has the body None."""

    body: bytes | None
    headers: Mapping[str, Any] = {}
    evidence: Evidence = NO_EVIDENCE


def piece(message: BusMessage) -> Piece:
    """Return the content of a message. The key that a publishing gate has added to the headers becomes evidence."""
    headers = {_name(name): _text(value) for name, value in message.headers.items()}
    evidence = message.evidence
    if (key := handed_key(headers.get(HANDED_KEY))) is not None:
        evidence = merged(evidence, Evidence(handed_key=key))
    if not message.body and "ce-specversion" not in headers:
        if message.body is None:
            return Piece(b"", evidence, frame=TOMBSTONE)
        return Piece(b"", evidence, "the message has no body")
    return request(message.body or b"", headers, evidence)


def _name(name: str) -> str:
    lowered = name.lower()
    for prefix in _CE_PREFIXES:
        if lowered.startswith(prefix):
            return f"ce-{lowered.removeprefix(prefix)}"
    return lowered


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
