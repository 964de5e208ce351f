"""Less common formats: nested members, JSON as text, and details that are not objects."""

import json
from typing import Any

import pytest

from oncegate import Gate, keys, read
from oncegate.events import Event

USER, QUEUE = "c1b2a3d4-e5f6-4718-8293-a4b5c6d7e8f3", "77aa66bb-55cc-44dd-93ee-22ff11aa00b4"
CALL = "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10"
TIMES = ("timestamp", "eventTime", "time", "createdTime", "occurredAt", "createdAt")
AT = "2026-02-03T04:05:06.123000+00:00"
RINGING = {"id": CALL, "participants": [{"calls": [{"state": "ringing"}]}], "modifiedDate": "2026-02-03T04:05:06.123Z"}


def only(payload: Any) -> Event:
    (event,) = read(payload)
    assert event.problem is None, event.problem
    (again,) = read(event.raw)
    assert (keys.auto(again), again.type, again.entity) == (keys.auto(event), event.type, event.entity)
    return event


def envelope(detail: Any, source: str = "genesys.cloud", kind: str = "Something", **more: Any) -> dict[str, Any]:
    sent = {"id": "e-1", "source": source, "detail-type": kind, "time": "2026-04-30T00:00:00Z"}
    return {**sent, "detail": detail, **more}


def topic(name: str, body: Any, **more: Any) -> dict[str, Any]:
    return envelope({"topicName": name, "eventBody": body}, "aws.partner/genesys.com/x", name, **more)


@pytest.mark.parametrize("member", TIMES)
@pytest.mark.parametrize("around", ["Genesys", "EventBridge", "payload", "flat"])
def test_nested_times(member: str, around: str) -> None:
    """The time in the data of a tutorial's event is that of the event, under every name. The time of the envelope is
    not."""
    data = {"interactionId": "i", member: 1770091506123}
    documents = {
        "Genesys": envelope({"data": data}),
        "EventBridge": envelope({"data": data}, "my.app"),
        "payload": envelope({"payload": data}),
        "flat": {"id": "1", "type": "t", "data": data},
    }
    event = only(documents[around])
    assert event.occurred_at is not None
    assert event.occurred_at.isoformat() == AT


def test_state_changes_by_nested_times() -> None:
    """Two emissions within the window are one change, although the times of their envelopes differ more."""
    gate = Gate("memory://", key=keys.state_change("500ms"))
    changes = [{"conversationId": "c", "status": "held", "eventTime": 1770091506123 + late} for late in (0, 100)]
    sent = [envelope({"data": each}, time=f"2026-04-30T00:0{n}:00Z", id=str(n)) for n, each in enumerate(changes)]
    assert [gate.run(each, lambda _: None).status for each in sent] == ["processed", "duplicate"]


ENDED = f"v2.detail.events.conversation.{CALL}.customer.end"
TEMPLATE = "v2.detail.events.conversation.{id}.customer.end"


@pytest.mark.parametrize(
    ("document", "kind", "entity"),
    [
        (envelope({"conversationId": CALL, "status": "ended"}, "my.app", ENDED), TEMPLATE, CALL),
        (envelope({"conversationId": CALL, "eventType": ENDED}), TEMPLATE, CALL),
        (topic(f"v2.users.{USER}.presence", None), "v2.users.{id}.presence", USER),
        (envelope({"eventBody": None, "n": 0}, kind=f"v2.users.{USER}.presence"), "v2.users.{id}.presence", USER),
        (envelope({"a": 1}, "my.app", "v2.order-created"), "v2.order-created", None),
    ],
)
def test_the_type_of_a_topic_is_its_template(document: Any, kind: str, entity: str | None) -> None:
    """The type of a topic has no ids, whichever member names it. A type of another sender that begins with v2. is
    unchanged."""
    event = only(document)
    assert (event.type, event.entity) == (kind, entity)


@pytest.mark.parametrize(
    "name",
    [
        *(f"v2.groups.{USER}.conversations", f"v2.groups.{USER}.conversations.calls", f"v2.conversations.{CALL}"),
        *(
            f"v2.conversations.calls.{CALL}",
            f"v2.routing.queues.{QUEUE}.conversations",
            f"V2.Users.{USER}.Conversations",
        ),
    ],
)
def test_every_snapshot(name: str) -> None:
    """Every snapshot topic of a conversation is recognised. The time of a change inside the snapshot is not the event
    time."""
    event = only(topic(name, RINGING, time="2026-02-03T04:05:07Z"))
    assert (event.entity, event.state, str(event.occurred_at)) == (CALL, "ringing", "2026-02-03 04:05:07+00:00")


def test_a_snapshot_without_participants() -> None:
    """The state of a conversation without participants is its own."""
    assert only(topic(f"v2.conversations.calls.{CALL}", {"id": CALL, "state": "held"})).state == "held"


def test_topics_in_another_case() -> None:
    """The rule of a topic applies in upper and lower case."""
    joined = {"id": USER, "queueId": QUEUE, "joined": True, "modifiedDate": "2026-01-01T00:00:00Z"}
    event = only(topic(f"V2.Routing.Queues.{QUEUE}.Users", joined))
    assert (event.source, event.entity, event.part, event.state) == ("genesys", QUEUE, USER, "true")
    assert only(topic(f"v2.Audits.entitytype.X.entityid.{USER}", {"id": "a-1"})).own_id == ("a-1",)


def test_a_detail_without_an_envelope() -> None:
    """The members of a detail are found in a document that is not an envelope, also if the detail is JSON text."""
    detail = {"status": "ended", "timestamp": 1770091506123, "eventType": "t", "data": {"conversationId": "c"}}
    for form in (detail, json.dumps(detail)):
        event = only({"id": "1", "detail": form})
        assert (event.source, event.type, event.entity, event.state) == ("plain", "t", "c", "ended")
        assert event.occurred_at is not None


def test_around_a_payload() -> None:
    """Members beside the payload of a NICE tutorial are used if the payload does not have them."""
    event = only({"id": "1", "status": "ended", "payload": {"interactionId": "i", "eventType": "x"}})
    assert (event.source, event.type, event.state) == ("cxone", "x", "ended")


@pytest.mark.parametrize("detail", ["hello", ["a"], 5, 0, False])
def test_a_detail_that_is_not_an_object(detail: Any) -> None:
    """An EventBridge event is identified by source and id, whatever its detail is; without an id, also by its time."""
    document = envelope(detail, "desk")
    event = only(document)
    assert (event.source, event.id, event.type, event.identity) == ("eventbridge", "e-1", "Something", ("desk", "e-1"))
    assert only({**document, "replay-name": "backfill"}).evidence.replay == "backfill"
    flattened = only({**document, "detail": detail, "conversationId": "c"})
    assert (flattened.source, flattened.entity) == ("plain", "c")
    nameless = [{**document, "id": None, "time": f"2026-04-30T00:00:0{n}Z"} for n in (1, 1, 2)]
    assert len({str(keys.auto(only(each))) for each in nameless}) == 2


EMPTY: list[Any] = [None, {}, "", [], "{}", {"a": None}, {"a": "", "b": {}, "c": [], "d": None}, '{"a": null}']


@pytest.mark.parametrize("detail", [*EMPTY, "missing"])
@pytest.mark.parametrize("source", ["desk", "genesys.cloud", "aws.partner/genesys.com/x"])
@pytest.mark.parametrize("kind", ["Something", "v2.users.{id}.presence", None])
def test_an_empty_detail(detail: Any, source: str, kind: str | None) -> None:
    """An envelope whose detail has no value is not an event."""
    document = envelope(detail, source, kind or "x")
    if detail == "missing":
        del document["detail"]
    elif kind is None and source != "desk":
        del document["detail-type"]
    (event,) = read(document)
    assert event.problem == "the detail of the envelope is empty: it has no member with a value"


@pytest.mark.parametrize("document", [{"id": 1, "detail": None}, {"a": 1}, {"a": None}, {"detail": {}, "id": 1}])
def test_documents_with_an_empty_member(document: Any) -> None:
    """A document of a user with an empty member is an event, with a key from its id or its content."""
    assert only(document).source == "plain"


def test_a_version_that_is_a_number() -> None:
    """A CloudEvent is recognised even if its version is a number."""
    event = only({"specversion": 1.0, "id": "1", "source": "/a", "type": "t"})
    assert (event.source, event.identity) == ("cloudevents", ("/a", "1"))


CHANNEL = {"id": "ch-1", "platform": "Open", "time": "2026-02-03T04:05:06.123Z"}
MESSAGE = {"brand": {"id": 9}, "message": {"id": "by-1"}, "thread": {"idOnExternalPlatform": "th-1"}}


@pytest.mark.parametrize(
    ("detail", "own"), [({"id": "om-1", "type": "Text", "channel": CHANNEL}, "om-1"), (MESSAGE, "by-1")]
)
def test_messages_within_an_envelope(detail: dict[str, Any], own: str) -> None:
    """The id of the event is that of the envelope. The id in the body, if there is one, makes the key."""
    alone, within = only(detail), only(envelope(detail, "my.app"))
    assert (alone.id, within.id, within.own_id) == (own, "e-1", (own,))
    assert keys.auto(alone) == keys.auto(within)
    assert keys.event_id(alone) == keys.event_id(within)


def test_a_trace_id_is_not_part_of_the_key() -> None:
    """Copies of a tutorial's event with different correlation ids are duplicates. Other metadata count."""
    detail = {"conversationId": "c", "eventType": "e", "timestamp": 1770091506}
    traced = [{"CorrelationId": "a", "n": 1}, {"CorrelationId": "b", "n": 1}, {"n": 1}, {"n": 2}]
    one, copy, bare, other = (only(envelope({**detail, "metadata": metadata})) for metadata in traced)
    assert keys.auto(one) == keys.auto(copy) == keys.auto(bare)
    assert keys.content_hash(one) == keys.content_hash(copy)
    assert keys.auto(one) != keys.auto(other)
