"""Which source reads a document: the one that the document names, else the one from settings, else a guess."""

from typing import Any

import pytest

from oncegate import keys, read
from oncegate.events import Event
from oncegate.sources import Hints
from oncegate.sources.plain import paths

CASE = {"eventType": "CaseStatusChanged", "data": {"case": {"id": "4711", "status": "open"}}}
CONTACT = {"Type": "CallContactEvent", "ContactID": "1001", "Status": "Active"}
ENDED = {"conversationId": "c-1", "eventTime": 1770091506123, "sessionId": "s-1"}
THREAD = {"message": {"id": "by-1"}, "thread": {"idOnExternalPlatform": "th-1"}}
USER, QUEUE = "c1b2a3d4-e5f6-4718-8293-a4b5c6d7e8f3", "77aa66bb-55cc-44dd-93ee-22ff11aa00b4"
CALL = "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10"


def only(payload: Any, **options: Any) -> Event:
    (event,) = read(payload, **options)
    assert event.problem is None, event.problem
    return event


def envelope(detail: Any, source: str = "my.app", kind: str = "Something", **more: Any) -> dict[str, Any]:
    return {"id": "e-1", "source": source, "detail-type": kind, "detail": detail, **more}


@pytest.mark.parametrize(
    "document",
    [
        {"id": "1", "eventType": "a", "data": {"message": "hi"}},
        {"id": "1", "eventType": "a", "data": {"message": {"text": "hi"}}},
        {"id": "1", **CASE},
        {"id": "1", "eventObject": "Case", **CASE},
        {"id": "1", **CONTACT},
        {"id": "1", "Type": "x", "SessionId": "y", "FinalState": "done"},
        {"id": "1", **ENDED, "type": "x"},
        {"id": "1", **THREAD},
        {"eventId": "1", **ENDED},
        {"id": "1", "topicName": "orders", "eventBody": {"a": 1}},
    ],
)
def test_a_plain_id_is_not_guessed(document: dict[str, Any]) -> None:
    """A document with an id where plain events have theirs is plain, whatever else it looks like."""
    event = only(document)
    assert (event.source, event.id) == ("plain", "1")
    assert keys.auto(event) == keys.event_id(event)


@pytest.mark.parametrize(
    "detail",
    [
        {"id": "5", "type": "Text", "channel": {"messageId": "m", "time": "2026-02-03T04:05:06Z", "to": {}}},
        *(CASE, CONTACT, THREAD, {"Type": "a", "sessionId": "s"}, {"eventType": "a", "data": {"contact": {"x": 1}}}),
        {"eventTime": 1770091506123, "sessionId": "s"},
        {"topicName": "orders", "eventBody": {"nr": 5, "timestamp": 1770091506123}},
    ],
)
def test_an_envelope_is_not_guessed(detail: dict[str, Any]) -> None:
    """An EventBridge event is identified by source and id, although its detail looks like another format."""
    event = only(envelope(detail))
    assert (event.source, event.id, event.type, event.identity) == (
        "eventbridge",
        "e-1",
        "Something",
        ("my.app", "e-1"),
    )


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"eventType": "a", "timestamp": 1770091506123, "data": {"message": {"text": "hi"}}}, "a"),
        ({"eventType": "a", "eventTime": 1770091506123, "participantId": "p"}, "a"),
        ({"timestamp": 1770091506123, "Type": "Call", "sessionId": "s"}, "Something"),
    ],
)
@pytest.mark.parametrize("source", ["genesys.cloud", "my.app"])
def test_a_tutorial_that_names_genesys(content: dict[str, Any], kind: str, source: str) -> None:
    """A tutorial's event is identified by conversation, type, time and content, and by its own id if it has one."""
    event = only(envelope({"conversationId": "c-1", "id": "own", **content}, source))
    assert (event.source, event.id, event.type, event.entity) == ("genesys", "e-1", kind, "c-1")
    assert event.identity == ("tutorial", "c-1", kind, "2026-02-03T04:05:06.123000+00:00")
    assert keys.event_id(event).parts == ("own",)


def test_tutorials_come_before_nice() -> None:
    """A document that names Genesys, or has a payload with an interaction, is a tutorial's event before it is a guess
    for NICE."""
    event = only({"source": "genesys.cloud", "conversationId": "c-1", **CASE})
    assert (event.source, event.entity) == ("genesys", "c-1")
    event = only({"eventObject": "Case", "eventId": "tc-1", "payload": {"interactionId": "ia-2", "status": "Closed"}})
    assert (event.source, event.entity, event.state) == ("cxone", "ia-2", "Closed")


@pytest.mark.parametrize(
    ("document", "entity"),
    [
        (CASE, "4711"),
        ({"eventId": "ne-1", **CASE}, "4711"),
        ({"eventType": "X", "data": {"interactionId": "ia-1"}}, "ia-1"),
        ({"eventType": "X", "data": '{"case": {"id": "4711"}}'}, "4711"),
        ({"eventObject": "Case", "eventType": "X", "interactionId": "ia-2", "data": None}, "ia-2"),
        ({"eventObject": "Case", "eventType": "X", "data": "no JSON"}, None),
        ({"eventObject": "Case", "eventId": "ne-1"}, None),
        (CONTACT, "1001"),
        (THREAD, "th-1"),
    ],
)
def test_guesses_for_nice(document: dict[str, Any], entity: str | None) -> None:
    """A document that no other source recognises is read as the format that it looks like."""
    event = only(document)
    assert (event.source, event.entity) == ("cxone", entity)


def test_a_contact_with_an_id() -> None:
    """An ACD contact with an added id is still an ACD contact, with this id."""
    contact = {**CONTACT, "LastStateChangeTimeUTC": "2026-02-03T04:05:06Z"}
    event = only({"id": "1", **contact})
    assert (event.source, event.id, event.entity) == ("cxone", "1", "1001")
    assert keys.auto(event) == keys.auto(only(contact))


@pytest.mark.parametrize(
    "detail",
    [
        {"eventId": "ne-1", **CASE},
        {"eventObject": "Case", **CASE},
        {**CONTACT, "FinalState": "False"},
        {**CONTACT, "LastStateChangeTimeUTC": "2026-02-03T04:05:06Z"},
        {"Type": "AgentSessionStart", "BusNo": "77", "AgentId": "5005"},
        {**THREAD, "brand": {"id": 9}},
    ],
)
def test_nice_within_an_envelope(detail: dict[str, Any]) -> None:
    """Formats that only NICE has are recognised in an envelope, too."""
    event = only(envelope(detail))
    assert event.source == "cxone"
    assert event.id is not None


def test_the_id_of_the_envelope_in_the_key() -> None:
    """A detail without an id and a time is distinguished by the id of its envelope."""
    bare = {"eventObject": "Case", "eventType": "X", "data": {}}
    channel = {"type": "Text", "channel": {"platform": "Open"}}
    for timeless in (channel, bare, {"Type": "X", "FinalState": True}, {**THREAD, "message": {}, "brand": {}}):
        first, again, other = (only(envelope(timeless, id=number)) for number in ("1", "1", "2"))
        assert keys.auto(first) == keys.auto(again) != keys.auto(other)


BODIES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "v2.users.{id}.routingStatus",
        USER,
        {"id": USER, "routingStatus": {"status": "IDLE", "startTime": "2026-02-03T04:05:06.123Z"}},
    ),
    ("v2.audits.entitytype.{id}.entityid.{id}", USER, {"id": "aud-1", "action": "Update", "entity": {"id": USER}}),
    ("v2.quality.evaluations", "ev-1", {"id": "ev-1", "version": 3, "status": "FINISHED"}),
    ("v2.routing.queues.{id}.users", QUEUE, {"id": USER, "queueId": QUEUE, "joined": True}),
    ("v2.detail.events.outbound.contact", CALL, {"eventTime": 1770091506123, "conversationId": CALL}),
    ("v2.detail.events.conversation.{id}.attributes", CALL, {"eventTime": 1770091506123, "conversationId": CALL}),
    ("v2.conversations.chats.{id}.messages", CALL, {"id": "msg-1", "conversation": {"id": CALL}, "body": "hello"}),
]


@pytest.mark.parametrize(("topic", "entity", "body"), BODIES, ids=[case[0] for case in BODIES])
def test_any_bare_body_with_its_topic_from_settings(topic: str, entity: str, body: dict[str, Any]) -> None:
    """A bare body is an event of the topic from settings, with the same key as in its frame."""
    name = topic.replace("entitytype.{id}", "entitytype.Queue").replace("{id}", entity)
    frame = only({"topicName": name, "eventBody": body})
    for bare in (body, {"eventBody": body}, {"detail-type": topic, "source": "x", "detail": {"eventBody": body}}):
        event = only(bare, hints=Hints(topic=topic))
        assert (event.source, event.type, event.entity) == ("genesys", topic, entity)
        assert keys.auto(event) == keys.auto(frame)


@pytest.mark.parametrize("topic", ["v2.users.{id}.presence", "v2.users.{id}.conversations"])
def test_a_bare_body_without_the_id_of_its_topic(topic: str) -> None:
    """A body without the id of its topic is an event of the topic, and its changes are different events."""
    hints = Hints(topic=topic)
    first, next_ = ({"id": CALL, "modifiedDate": f"2026-02-03T04:05:0{second}Z"} for second in (6, 7))
    assert (only(first, hints=hints).source, only(first, hints=hints).type) == ("genesys", topic)
    assert keys.auto(only(first, hints=hints)) != keys.auto(only(next_, hints=hints))


@pytest.mark.parametrize(
    ("document", "source"),
    [
        ({"specversion": "1.0", "type": "t", "source": "s", "id": "1"}, "cloudevents"),
        (envelope({"a": 1}), "eventbridge"),
        ({"eventId": "ne-1", **CASE}, "cxone"),
        ({"events": [{"Type": "X"}]}, "cxone"),
        ({"source": "genesys.cloud", "conversationId": "c", "status": "ended"}, "genesys"),
        ({"topicName": "v2.users.u-1.presence", "eventBody": {}}, "genesys"),
        ({"nr": 5, "conversationId": "c"}, "plain"),
    ],
)
def test_named_sources_come_before_the_topic_of_settings(document: dict[str, Any], source: str) -> None:
    """The topic from settings applies to bare bodies only: not to documents that name their sender, nor to those with
    the configured id."""
    event = only(document, hints=Hints(topic="v2.users.{id}.activity", paths=paths(id="nr")))
    assert (event.source, event.type == "v2.users.{id}.activity") == (source, False)


@pytest.mark.parametrize("detail", [{"eventBody": ENDED, "timestamp": "2026-02-03T04:05:07Z"}, ENDED])
def test_a_topic_that_only_the_envelope_names(detail: dict[str, Any]) -> None:
    """A detail without a topic name has the topic of the envelope's type."""
    topic = "v2.detail.events.conversation.{id}.customer.end"
    event = only(envelope(detail, "aws.partner/genesys.com/x", topic))
    assert (event.type, event.entity, event.part, event.body) == (topic, "c-1", "s-1", ENDED)
    assert keys.auto(event) == keys.auto(only({"topicName": topic.replace("{id}", "c-1"), "eventBody": ENDED}))


def test_a_body_without_a_topic() -> None:
    """A detail from Genesys with an eventBody is read by this body, with the type of the envelope."""
    event = only(envelope({"eventBody": {**ENDED, "disconnectType": "PEER"}}, "aws.partner/genesys.com/x"))
    assert (event.source, event.type, event.entity, event.state) == ("genesys", "Something", "c-1", "PEER")
    assert event.occurred_at is not None
    assert only(envelope({"eventBody": ENDED})).source == "eventbridge"
