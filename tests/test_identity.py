"""Default keys: copies over other routes are one event, and similar but different events stay apart."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from oncegate import keys, read
from oncegate.events import Event
from oncegate.sources import Hints
from oncegate.sources.plain import paths

SAMPLES = {
    sample["name"]: sample["document"]
    for sample in json.loads((Path(__file__).parent / "data" / "events.json").read_text())
}


def only(payload: Any) -> Event:
    (event,) = read(payload)
    assert event.problem is None, event.problem
    return event


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    name, _, rest = path.partition(".")
    return {**document, name: changed(document[name], rest, value) if rest else value}


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def apart(*documents: Any) -> bool:
    return len({str(keys.auto(only(document))) for document in documents}) == len(documents)


def copies(document: dict[str, Any]) -> list[Any]:
    """The same event of a topic, over every route."""
    detail = document["detail"]
    text = json.dumps(document)
    encoded = base64.b64encode(text.encode()).decode()
    return [
        document,
        text.encode(),
        {
            **document,
            "id": "another",
            "time": "2026-06-01T00:00:00Z",
            "source": "aws.partner/genesys.com/cloud/o/other",
        },
        {**document, "replay-name": "backfill"},
        {**document, "detail": json.dumps(detail)},
        changed(document, "detail.metadata", {"CorrelationId": "another"}),
        detail,
        without(detail, "metadata"),
        dict(reversed(document.items())),
        {"Records": [{"eventSource": "aws:sqs", "messageId": "m", "body": text}]},
        [
            {
                "messageId": "m",
                "receiptHandle": "r",
                "body": json.dumps({"Type": "Notification", "TopicArn": "t", "Message": text}),
            }
        ],
        {"Records": [{"kinesis": {"data": encoded}}]},
        {"requestContext": {}, "requestPayload": document},
    ]


TOPICS = [name for name, document in SAMPLES.items() if "topicName" in document.get("detail", ())]
TIMELESS = [name for name in TOPICS if "joined" in SAMPLES[name]["detail"]["eventBody"] or "snapshot" in name]
TIMELESS += ["observations: a topic without a rule of its own", "a topic nobody has heard of"]


@pytest.mark.parametrize("name", TOPICS)
def test_one_key_and_one_content_over_every_route(name: str) -> None:
    """A copy in another envelope, a replay, or a copy over a WebSocket or in any carrier has the same key and content
    hash."""
    found = [only(copy) for copy in copies(SAMPLES[name])]
    assert {str(keys.auto(event)) for event in found} == {str(keys.auto(found[0]))}
    assert {keys.content_hash(event) for event in found} == {keys.content_hash(found[0])}
    assert {str(keys.content(event)) for event in found} == {str(keys.content(found[0]))}


@pytest.mark.parametrize("name", [name for name in TOPICS if name not in TIMELESS])
def test_a_body_with_a_time_needs_nothing_else(name: str) -> None:
    """An event with a time in its body is the same event when it is published again, with another time of sending or
    none."""
    document = SAMPLES[name]
    again = changed(document, "detail.timestamp", "2026-06-01T00:00:00Z")
    frame = without(document["detail"], "timestamp", "metadata")
    assert len({str(keys.auto(only(copy))) for copy in (document, again, frame)}) == 1


@pytest.mark.parametrize("name", TIMELESS)
def test_a_body_without_a_time_needs_the_time_of_sending(name: str) -> None:
    """The same content sent at another time is another event. Without a time of sending, the copies cannot be told
    apart."""
    document = SAMPLES[name]
    frame = without(document["detail"], "timestamp")
    assert apart(document, changed(document, "detail.timestamp", "2026-06-01T00:00:00Z"), frame)
    assert keys.auto(only(frame)) == keys.auto(only({**frame, "metadata": {}}))


def test_attribute_updates_in_one_millisecond() -> None:
    """Two updates of one conversation within one millisecond are two events."""
    document = SAMPLES["attributes: the participant is the part"]
    assert apart(document, changed(document, "detail.eventBody.attributes", {"vip": "no"}))


def test_joined_left_joined() -> None:
    """A member who joins, leaves and joins again gives two join events."""
    first = SAMPLES["queue member: no time of its own"]
    left = changed(changed(first, "detail.eventBody.joined", False), "detail.timestamp", "2026-02-03T04:06:00Z")
    assert apart(first, left, changed(first, "detail.timestamp", "2026-02-03T04:07:00Z"))


@pytest.mark.parametrize(
    "more",
    [
        {"routingStatus": {"status": "IDLE", "startTime": "2026-01-01T00:00:00Z"}},
        *({"modifiedDate": "2026-01-01T00:00:00Z"}, {"dateModified": "2026-01-01T00:00:00Z"}),
    ],
)
def test_other_times_of_a_member(more: dict[str, Any]) -> None:
    """Other times in the body of a queue member do not replace the time of sending."""
    document = SAMPLES["queue member: no time of its own"]
    first = changed(document, "detail.eventBody", {**document["detail"]["eventBody"], **more})
    assert apart(first, changed(first, "detail.timestamp", "2026-02-03T04:07:00Z"))
    assert only(first).occurred_at == only(document).occurred_at


def test_work_after_each_session() -> None:
    """The wrap-up of each session of a reopened conversation is a separate event."""
    document = SAMPLES["wrap-up has no state"]
    assert apart(document, changed(document, "detail.eventBody.sessionId", "another"))


def test_one_snapshot_under_two_topics() -> None:
    """The topic of a user and the topic of a queue give two events for one conversation."""
    document = SAMPLES["snapshot of a user's conversation"]
    assert apart(
        document, changed(document, "detail.topicName", "v2.users.00000000-0000-4000-8000-000000000001.conversations")
    )


def test_topics_with_ids() -> None:
    """Audits are identified by their id, evaluations by id and version, utterances by id and whether they are final."""
    audit, quality = SAMPLES["audit"], SAMPLES["quality evaluation: no id in the topic"]
    spoken = SAMPLES["transcription"]
    assert keys.auto(only(audit)) == keys.auto(only(SAMPLES["audit by WebSocket"]))
    assert keys.auto(only(audit)) == keys.auto(only(changed(audit, "detail.eventBody.action", "Other")))
    assert apart(audit, changed(audit, "detail.eventBody.id", "aud-2"))
    assert apart(quality, changed(quality, "detail.eventBody.version", 4))
    assert apart(spoken, changed(spoken, "detail.eventBody.transcripts", [{"utteranceId": "utt-1", "isFinal": False}]))
    assert apart(spoken, changed(spoken, "detail.eventBody.communicationId", "other"))


def test_an_audit_without_an_id() -> None:
    """An audit without an id is identified by its content."""
    audit = changed(SAMPLES["audit"], "detail.eventBody.id", None)
    assert apart(audit, changed(audit, "detail.eventBody.action", "Other"))


def test_receipts_that_reuse_an_id() -> None:
    """A message and its receipts share an id and are separate events. Case does not matter."""
    receipt = SAMPLES["Open Messaging receipt"]
    assert apart(SAMPLES["Open Messaging text"], receipt, {**receipt, "status": "Failed"})
    assert keys.auto(only(receipt)) == keys.auto(only({**receipt, "status": "READ"}))
    assert keys.auto(only(receipt)) == keys.auto(only({**receipt, "type": "RECEIPT"}))
    assert only({**receipt, "type": "RECEIPT"}).type == only(receipt).type == "openmessaging.Receipt"


def test_channels_apart() -> None:
    """A channel is identified by its id, numeric or not, even if the event has few other fields."""
    bare = {"id": "m-1", "channel": {"id": 77, "time": "2026-02-03T04:05:06Z"}, "type": "Receipt", "status": "Read"}
    assert only(bare).type == "openmessaging.Receipt"
    assert apart(bare, changed(bare, "channel.id", 78), {**bare, "status": "Delivered"})
    assert keys.auto(only(bare)) == keys.auto(only(changed(bare, "channel.id", "77")))


def test_disconnected_twice() -> None:
    """The last state of a contact can occur twice. When it is polled again, each keeps its key."""
    first, final = SAMPLES["CXone ACD contact"], SAMPLES["CXone ACD contact, for good"]
    assert apart(first, final, {**first, "LastStateChangeTimeUTC": "2026-02-03T04:05:07Z"})
    assert keys.auto(only(final)) == keys.auto(only({**final, "FinalState": True, "Skill": "more is known"}))


def test_digital_events() -> None:
    """A digital event is identified by tenant and event id, or without an id by what changed and when."""
    case = SAMPLES["CXone case"]
    assert keys.auto(only(case)) == keys.auto(only({**case, "traceId": "another"}))
    assert keys.content_hash(only(case)) == keys.content_hash(only({**case, "traceId": "another"}))
    assert apart(case, {**case, "eventId": "ne-9"}, changed(case, "data.brand.tenantId", "ten-2"))
    bare = without(case, "eventId")
    assert keys.auto(only(bare)) == keys.auto(only({**bare, "createdAtWithMilliseconds": None}))
    assert apart(bare, changed(bare, "data.case.status", "open"), changed(bare, "data.case.statusUpdatedAt", "later"))
    unknown = changed(bare, "data.case.statusUpdatedAt", None)
    assert apart(unknown, changed(unknown, "data.case.note", "x"))


MEANT = {"eventObject": "Message", "createdAt": "2026-02-03T04:05:06Z", "data": {"contact": {"id": "k"}}}
ENVELOPE = {"source": "shop", "detail-type": "Sold", "time": "2026-02-03T04:05:06Z", "detail": {"a": 1}}
NUMBERLESS = {"specversion": "1.0", "source": "shop", "type": "sold", "time": "2026-02-03T04:05:06Z", "data": {"a": 1}}


@pytest.mark.parametrize(
    ("document", "others", "same"),
    [
        (
            {"eventType": "MessageReadChanged", **MEANT},
            [
                *({"eventType": "MessageDeleted"}, {"createdAt": "2026-02-03T05:00:00Z"}, {"eventObject": "Case"}),
                *({"createdAt": None}, {"createdAt": "soon"}, {"by": "x"}, {"data": {"contact": {"id": "l"}}}),
            ],
            [{"traceId": "another"}, {"createdAt": "2026-02-03T05:05:06+01:00"}],
        ),
        (
            {"eventType": "CaseCreated", "data": {"case": {"id": "c1", "status": "open"}}},
            [{"eventType": "CaseStatusChanged"}, {"timestamp": 1770091506}],
            [{"traceId": "another"}],
        ),
        (
            ENVELOPE,
            [{"detail-type": "Bought"}, {"time": "2026-02-03T04:05:07Z"}, {"source": "desk"}, {"detail": {"a": 2}}],
            [{"replay-name": "backfill"}, {"account": "1"}],
        ),
        (
            {**ENVELOPE, "detail": {"timestamp": 1770091506}},
            [{"detail": {"timestamp": 1770091507}}],
            [{"time": "2026-02-03T04:05:07Z"}],
        ),
        (
            {**ENVELOPE, "detail": {"conversationId": "c"}},
            [{"detail-type": "Bought"}, {"time": "2026-02-03T04:05:07Z"}],
            [{"source": "genesys"}],
        ),
        (
            NUMBERLESS,
            [
                *({"type": "bought"}, {"source": "desk"}, {"time": "2026-02-03T04:05:07Z"}, {"subject": "s"}),
                {"data": {"a": 2}},
            ],
            [{"time": "2026-02-03T05:05:06+01:00"}, {"traceparent": "00-1"}],
        ),
    ],
    ids=["CXone", "CXone, by its look", "EventBridge", "EventBridge with a time within", "tutorial", "CloudEvent"],
)
def test_content_alone_is_not_enough(document: Any, others: list[Any], same: list[Any]) -> None:
    """Without an id, type and time separate events with the same content. Fields that change with each sending do
    not."""
    assert apart(document, *({**document, **other} for other in others))
    assert len({str(keys.auto(only({**document, **copy}))) for copy in ({}, *same)}) == 1


@pytest.mark.parametrize("object_", ["case", "contact"])
def test_a_status_has_its_time_however_it_is_written(object_: str) -> None:
    """The time of a status is compared as a time, whatever its format."""
    spellings = [
        *({"statusUpdatedAt": "2026-02-03T04:05:06+00:00"}, {"statusUpdatedAt": "2026-02-03T04:05:06Z"}),
        {"statusUpdatedAtWithMilliseconds": "2026-02-03T04:05:06.000+00:00", "statusUpdatedAt": "2026-02-03T04:05:06Z"},
    ]
    found = [
        only({"eventObject": "Case", "data": {object_: {"id": 1, "status": "open", **when}}}) for when in spellings
    ]
    assert len({str(keys.auto(event)) for event in found}) == 1


def test_messages_of_one_case() -> None:
    """Two messages that are read while their case keeps its status are two events, even without an id."""
    contact = {"id": "k", "status": "open", "statusUpdatedAt": "2026-02-03T04:05:06Z"}
    read_changed = {"eventObject": "Message", "eventType": "MessageReadChanged", "data": {"contact": contact}}
    first, other = (changed(read_changed, "data.message", {"ID": number}) for number in ("m-1", "m-2"))
    assert apart(read_changed, first, other)
    assert keys.auto(only(first)) == keys.auto(only({**first, "createdAt": "2026-02-03T04:05:07Z"}))


def test_source_and_id() -> None:
    """CloudEvents and EventBridge events are identified by source and id."""
    for name in ("CloudEvent", "EventBridge, of anybody"):
        document = SAMPLES[name]
        assert apart(document, {**document, "id": "other"}, {**document, "source": "other"})
        assert keys.auto(only(document)) == keys.auto(only({**document, "time": None, "replay-name": "r"}))


def test_open_messaging_by_id_and_time() -> None:
    """Id and time together are unique, as Genesys documents. Receipts with the same id and time differ in their
    status."""
    text, receipt = SAMPLES["Open Messaging text"], SAMPLES["Open Messaging receipt"]
    for document in (text, receipt):
        later = changed(document, "channel.time", "2026-02-03T04:05:07.000Z")
        assert apart(document, later)
        spelt = changed(document, "channel.time", "2026-02-03T05:05:06.123+01:00")
        assert not apart(document, spelt)
    assert apart(
        text, *({**receipt, "status": status} for status in ("Published", "Sent", "Delivered", "Read", "Failed"))
    )


CLOUD = {"specversion": "1.0", "id": "ce-1", "source": "/desk", "type": "call.ended", "subject": "c-1"}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("application/json", b'{"call": 7, "text": "caf\xc3\xa9"}'),
        ("application/vnd.desk+json; charset=utf-8", b'[1, {"a": null}]'),
        ("application/json", b'"text"'),
        ("text/plain", b'{"no": "json"}'),
        ("text/plain", "café".encode()),
        ("application/octet-stream", b"\xff\x00\xfe"),
    ],
)
def test_cloudevents_in_base64(kind: str, data: bytes) -> None:
    """An event in binary mode and the same event in structured mode with base64 data are one event with one body."""
    headers = {f"ce-{name}": value for name, value in CLOUD.items()} | {"content-type": kind}
    (binary,) = read(data, headers)
    encoded = base64.b64encode(data).decode()
    lines = f"{encoded[:4]}\n{encoded[4:]}"
    for text in (encoded, lines):
        structured = only({**CLOUD, "datacontenttype": kind, "data_base64": text})
        assert structured.body == binary.body
        assert keys.auto(structured) == keys.auto(binary)
        assert keys.content_hash(structured) == keys.content_hash(binary)


def test_cloudevents_with_invalid_base64() -> None:
    """Invalid base64, or invalid JSON where JSON is announced, cannot be read. `data` takes precedence over
    `data_base64`."""
    read_events = [
        read({**CLOUD, "data_base64": "?"}),
        read({**CLOUD, "data_base64": 7}),
        read({**CLOUD, "datacontenttype": "application/json", "data_base64": "eA=="}),
    ]
    assert all(event.problem for (event,) in read_events)
    assert only({**CLOUD, "data_base64": "eA=="}).body == "x"
    assert only({**CLOUD, "data": {"a": 1}, "data_base64": "eA=="}).body == {"a": 1}


TUTORIAL_KEYS = [
    keys.auto,
    keys.content,
    keys.fields("conversationId", "eventType", "timestamp"),
    keys.fields("detail.conversationId", "detail.eventType", "detail.timestamp"),
    keys.fields("entity", "type", "occurred_at", round="1m"),
    keys.state_change(),
    keys.state_change(entity="detail.conversationId", state="detail.eventType"),
]


@pytest.mark.parametrize("key", TUTORIAL_KEYS)
@pytest.mark.parametrize("left_out", [(), ("id",), ("status",), ("id", "state"), ("state", "status")])
def test_a_tutorials_detail_alone(key: keys.Strategy, left_out: tuple[str, ...]) -> None:
    """The detail alone, as the input path `$.detail` passes it on, has the same key as in its envelope."""
    whole = {"conversationId": "c-1", "timestamp": "2026-02-03T04:05:06.123Z", "eventType": "conversation.ended"}
    detail = without({**whole, "state": "ended", "status": "closed", "id": "x-1"}, *left_out)
    envelopes = [
        {"id": "e-1", "source": "genesys.cloud", "detail-type": "Conversation"},
        {"id": "e-2", "source": "aws.partner/genesys.com/a/b", "detail-type": "v2.x", "time": "2026-03-01T00:00:00Z"},
        {"source": "genesys"},
    ]
    arrived = [detail, json.dumps(detail), *({**envelope, "detail": detail} for envelope in envelopes)]
    assert len({str(key(only(each))) for each in arrived}) == 1


@pytest.mark.parametrize("member", ["conversationId", "eventType", "timestamp"])
def test_less_than_a_tutorials_detail(member: str) -> None:
    """A document that lacks a member of the detail, or has an id at a configured path, is a plain event."""
    detail = {"id": "x", "conversationId": "c-1", "timestamp": "2026-02-03T04:05:06Z", "eventType": "ended", "nr": 7}
    assert only(detail).source == "genesys"
    assert only(without(detail, member)).source == "plain"
    assert only({**detail, "eventId": "y"}).source == "plain"
    (event,) = read(detail, hints=Hints(paths=paths(id="nr")))
    assert (event.source, event.id) == ("plain", "7")


def test_tutorials() -> None:
    """A tutorial event is identified by its detail. The envelope is used only if the detail has no time."""
    document = SAMPLES["tutorial Genesys"]
    assert keys.auto(only(document)) == keys.auto(only({**document, "id": "other"}))
    assert apart(
        document, changed(document, "detail.state", "open"), changed(document, "detail.timestamp", 1770091507000)
    )
    timeless = changed(document, "detail.timestamp", None)
    assert apart(timeless, {**timeless, "id": "other"})
    webhook = SAMPLES["tutorial CXone"]
    assert apart(webhook, {**webhook, "eventId": "tc-2"})


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("audit", ("aud-1",)),
        ("quality evaluation: no id in the topic", ("ev-1", "3")),
        ("transcription", ("utt-1",)),
        ("chat message by WebSocket", ("msg-1",)),
        ("customer end", (SAMPLES["customer end"]["id"],)),
        ("transcription that ended", (SAMPLES["transcription that ended"]["id"],)),
        ("CXone case", ("ne-1",)),
        ("CXone message to a channel of one's own", ("by-1",)),
        ("Open Messaging receipt", ("om-1",)),
        ("CloudEvent", ("//example/desk", "ce-1")),
        ("tutorial webhook", ("wh-1",)),
    ],
)
def test_event_id_is_the_bodys_own_first(name: str, parts: tuple[str, ...]) -> None:
    """The id strategy uses the id in the body, else the id of the envelope."""
    assert keys.event_id(only(SAMPLES[name])).parts == parts


def test_transport_ids_are_in_no_key() -> None:
    """Message ids, receipt handles and request ids of a transport never change a key, even if there is no other id."""
    body = json.dumps({"a": 1})
    found = [
        only([{"messageId": number, "receiptHandle": number, "body": body, "eventSource": "aws:sqs"}])
        for number in "12"
    ]
    assert keys.auto(found[0]) == keys.auto(found[1])
    assert found[0].id is None
