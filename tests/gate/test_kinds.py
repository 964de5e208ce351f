"""Kinds: why a duplicate exists, by the evidence in the two deliveries."""

import base64
from typing import Any

import pytest

from oncegate import Event, Gate, Outcome, keys, read
from oncegate.claims import EventSummary, seed
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock


def succeed(event: Event) -> None: ...


def envelope(**changed: Any) -> dict[str, Any]:
    """An event of Genesys Cloud in the envelope of EventBridge."""
    conversation = "94b6afbb-501b-4187-93d7-ddbad9be5bd2"
    body = {
        "eventTime": 1_765_551_752_433,
        "conversationId": conversation,
        "sessionId": "f8299fe2-46a5-4741-9bcf-f38ee4e972af",
        "disconnectType": "PEER",
    }
    topic = "v2.detail.events.conversation.{id}.customer.end"
    return {
        "version": "0",
        "id": "7cf06162-a26c-4e1f-a452-67293bc49765",
        "detail-type": topic,
        "source": "aws.partner/genesys.com/cloud/org/bus",
        "time": "2025-12-12T15:02:33Z",
        "detail": {"topicName": topic.replace("{id}", conversation), "version": "2", "eventBody": body},
    } | changed


def message(body: str, message_id: str) -> dict[str, Any]:
    return {"messageId": message_id, "receiptHandle": "r", "body": body, "eventSource": "aws:sqs"}


def second(gate: Gate, *payloads: Any) -> Outcome:
    *_, last = [gate.run(payload, succeed) for payload in payloads]
    assert last.status == "duplicate"
    return last


@pytest.fixture
def gate(store: MemoryStore) -> Gate:
    return Gate(store, remember=None)


class TestKinds:
    def test_redelivery(self, gate: Gate) -> None:
        """The same envelope id again is a redelivery."""
        assert second(gate, envelope(), envelope()).kind == "redelivery"

    def test_redelivery_of_a_message(self, gate: Gate) -> None:
        """An event without an id is recognised by the message that it came in."""
        body = '{"conversationId":"c-1","status":"open"}'
        assert second(gate, message(body, "m-1"), message(body, "m-1")).kind == "redelivery"
        assert second(gate, message(body, "m-2")).kind == "re-emission"

    def test_kafka_record(self, gate: Gate) -> None:
        """The same partition and offset again is a redelivery; the same content at another offset is a re-emission."""

        def record(offset: int, headers: Any = None) -> dict[str, Any]:
            value = base64.b64encode(b'{"conversationId":"c-1","status":"open"}').decode()
            fields = {"topic": "calls", "partition": 0, "offset": offset, "value": value, "headers": headers}
            return {"eventSource": "aws:kafka", "records": {"calls-0": [fields]}}

        assert second(gate, record(1), record(1, [{"trace": [1]}])).kind == "redelivery"
        assert second(gate, record(2)).kind == "re-emission"

    @pytest.mark.parametrize(("source", "container"), [("aws:mq", "messages"), ("aws:rmq", "rmqMessagesByQueue")])
    def test_message_without_an_id(self, gate: Gate, source: str, container: str) -> None:
        """Only the broker's flag tells a redelivery from a second message with the same content."""

        def batch(*, redelivered: bool) -> dict[str, Any]:
            sent = {"data": base64.b64encode(b'{"status":"open"}').decode(), "redelivered": redelivered}
            return {"eventSource": source, container: [sent] if source == "aws:mq" else {"calls::/": [sent]}}

        assert second(gate, batch(redelivered=False), batch(redelivered=True)).kind == "redelivery"
        assert second(gate, batch(redelivered=False)).kind == "re-emission"

    def test_re_emission(self, gate: Gate) -> None:
        """The same content with another envelope id is a re-emission."""
        outcome = second(gate, envelope(), envelope(id="11111111-a26c-4e1f-a452-67293bc49765"))
        assert outcome.kind == "re-emission"
        assert "Duplicate of 7cf06162-a26c-4e1f-a452-67293bc49765, processed 0 ms ago" in outcome.reason

    def test_replay_by_name(self, gate: Gate) -> None:
        """An event with a replay name is a replay, whatever its id is."""
        assert second(gate, envelope(), envelope(**{"replay-name": "monday"})).kind == "replay"

    def test_replay_by_lag(self, gate: Gate, clock: ManualClock) -> None:
        """A copy that arrives after all retries of senders and buses is a replay, even without a replay name."""
        gate.run(envelope(), succeed)
        clock.advance("5d")
        assert second(gate, envelope()).kind == "redelivery"
        clock.advance(1)
        assert second(gate, envelope()).kind == "replay"

    def test_state_echo(self, store: MemoryStore) -> None:
        """Other content for the same change is an echo; the same content again is not."""
        gate = Gate(store, key=keys.state_change(), remember=None)
        change = {"id": "a", "conversationId": "c-1", "type": "call", "state": "held", "timestamp": 1_765_551_600_000}
        assert second(gate, change, change | {"id": "b", "n": 2}).kind == "state-echo"
        assert second(gate, change).kind == "redelivery"

    @pytest.mark.parametrize(
        ("key", "one", "other"),
        [
            (keys.once_per("survey", "conversationId"), {}, {"z": 3}),
            (keys.fields("conversationId", "timestamp", round="1m"), {"timestamp": 1_765_551_600_000}, {"n": 2}),
            (keys.content(exclude="sentAt"), {"sentAt": 1}, {"sentAt": 2}),
        ],
    )
    @pytest.mark.parametrize("at_once", [True, False])
    def test_other_content(self, key: keys.Strategy, one: Any, other: Any, *, at_once: bool) -> None:
        """Without an id, only a copy with the same content is a redelivery."""
        gate = Gate("memory://", key=key, remember=None)
        first = {"conversationId": "c", **one}
        payloads = [first, {**first, **other}, first]
        outcomes = gate.run_batch(payloads, succeed) if at_once else [gate.run(each, succeed) for each in payloads]
        assert [outcome.kind for outcome in outcomes] == [None, "re-emission", "redelivery"]

    def test_other_content_under_one_id(self) -> None:
        """A copy with the same id is a redelivery, whatever its content is, if the key does not bind content."""
        gate = Gate("memory://", key=keys.content(exclude="sentAt"), remember=None)
        outcomes = [gate.run({"id": "a", "sentAt": at}, succeed) for at in (1, 2)]
        assert [outcome.kind for outcome in outcomes] == [None, "redelivery"]

    def test_seeded(self, store: MemoryStore, gate: Gate, clock: ManualClock) -> None:
        """A duplicate of a seeded event has its delivery id as the only evidence, because its content is unknown. The
        reason says that the event was seeded."""
        by_id = [keys.event_id(event) for event in read([{"id": "evt-1"}, {"id": "evt-2"}])]
        for key, delivery_id in zip(by_id, ("evt-1", None), strict=True):
            about = EventSummary("plain", delivery_id=delivery_id)
            store.claim([seed("default", key.digest, owner=b"o" * 16, retention=60_000_000, about=about)])
        clock.advance(3_000_000)
        gate = Gate(store, key=keys.event_id)
        outcomes = gate.run_batch([{"id": "evt-1", "any": 1}, {"id": "evt-2"}], succeed)
        assert [(outcome.status, outcome.kind) for outcome in outcomes] == [
            ("duplicate", "redelivery"),
            ("duplicate", "re-emission"),
        ]
        assert (
            outcomes[0].reason
            == "Duplicate of evt-1, processed by earlier code (seeded 3 s ago); the handler was not run again."
        )

    def test_concurrent(self, gate: Gate) -> None:
        """A copy that arrives while the first one runs is concurrent."""
        kinds = []

        def handler(event: Event) -> None:
            kinds.append(gate.run(envelope(), succeed).kind)

        gate.run(envelope(), handler)
        assert kinds == ["concurrent"]

    def test_within_a_batch(self, gate: Gate) -> None:
        """Copies in one batch have their kinds, too."""
        copies = [envelope(), envelope(), envelope(id="2"), envelope(**{"replay-name": "monday"})]
        kinds = [outcome.kind for outcome in gate.run_batch(copies, succeed)]
        assert kinds == [None, "redelivery", "re-emission", "replay"]


def test_frames_are_skipped(gate: Gate) -> None:
    """A message that is not an event does not run, and is acknowledged."""
    heartbeat = {"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}}
    outcome = gate.run(heartbeat, succeed)
    assert (outcome.status, outcome.acked) == ("skipped", True)
    assert "a message of the notification channel itself (channel.metadata)" in outcome.reason
    assert gate.store.browse() == []


def test_event_of_read(gate: Gate) -> None:
    """An event of `read` can be taken through the gate."""
    (event,) = read(envelope())
    assert [gate.run(event, succeed).status for _ in range(2)] == ["processed", "duplicate"]
    assert gate.run(envelope(), succeed).status == "duplicate"
