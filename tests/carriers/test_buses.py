"""Messages of a bus: CloudEvents in the bindings of NATS, Kafka and AMQP, evidence, and messages without a body."""

from typing import Any

import pytest

from oncegate import Event, keys, read
from oncegate.carriers.buses import BusMessage
from oncegate.events import Evidence


def event_of(body: bytes, headers: dict[str, Any] | None = None, **evidence: Any) -> Event:
    (event,) = read(BusMessage(body, headers or {}, Evidence(**evidence)))
    return event


@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudEvents:", "cloudEvents_", "CE-"])
@pytest.mark.parametrize("encode", [str, str.encode])
def test_a_cloud_event_in_binary_mode(prefix: str, encode: Any) -> None:
    """The attributes are in the headers, under the prefix of the binding, as text or as bytes."""
    attributes = {"specversion": "1.0", "id": "e-1", "source": "/crm", "type": "case.opened", "subject": "case-7"}
    headers = {f"{prefix}{name}": encode(value) for name, value in attributes.items()}
    event = event_of(b'{"n": 1}', {**headers, "content-type": encode("application/json")}, message_id="m-1")
    assert (event.source, event.id, event.type, event.entity) == ("cloudevents", "e-1", "case.opened", "case-7")
    assert event.evidence.message_id == "m-1"


def test_one_cloud_event_has_one_key_in_both_modes() -> None:
    """The same event in binary and in structured mode, and on another bus, is one event."""
    attributes = {"specversion": "1.0", "id": "e-1", "source": "/crm", "type": "case.opened"}
    kafka = event_of(b'{"n": 1}', {f"ce_{name}": value for name, value in attributes.items()}, message_id="a")
    structured = event_of(
        b'{"specversion":"1.0","id":"e-1","source":"/crm","type":"case.opened","data":{"n":1}}', message_id="b"
    )

    assert keys.auto(kafka) == keys.auto(structured)


def test_evidence() -> None:
    """The id of the message, the number of deliveries, the request id and the key of a publishing gate are evidence."""
    headers = {"X-Request-ID": "r-1", "Oncegate-Key": "a" * 32}
    evidence = event_of(b'{"id": "1"}', headers, message_id="m-1", receive_count=2).evidence
    assert evidence == Evidence(message_id="m-1", receive_count=2, request_id="r-1", handed_key="a" * 32)
    assert event_of(b'{"id": "1"}', {"oncegate-key": "not a key"}).evidence.handed_key is None


def test_a_carrier_in_a_message() -> None:
    """What a message contains is unwrapped like any payload."""
    events = read(BusMessage(b'[{"id": "1"}, {"id": "2"}]', {}, Evidence(message_id="m-1")))
    assert [(event.id, event.evidence.message_id) for event in events] == [("1", "m-1"), ("2", "m-1")]


@pytest.mark.parametrize(
    ("body", "problem"), [(b"", "the message has no body"), (b"\xff", "not JSON"), (b"{", "not JSON")]
)
def test_what_cannot_be_read(body: bytes, problem: str) -> None:
    """A message that cannot be read is an event with a problem, and keeps its evidence."""
    event = event_of(body, message_id="m-1")
    assert event.problem is not None
    assert problem in event.problem
    assert event.evidence.message_id == "m-1"


def test_a_message_without_a_value() -> None:
    """A Kafka message without a value is a tombstone, not an event. A CloudEvent in binary mode needs no value."""
    (tombstone,) = read(BusMessage(None, {}, Evidence(message_id="m-1")))
    assert tombstone.frame == "a Kafka record without a value, which deletes its key"
    attributes = {"specversion": "1.0", "id": "e-1", "source": "/crm", "type": "case.opened"}
    (event,) = read(BusMessage(None, {f"ce_{name}": value for name, value in attributes.items()}))
    assert (event.id, event.frame, event.problem) == ("e-1", None, None)
