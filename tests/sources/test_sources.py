"""Sources: the members of each format are found, and all paths of `read` agree."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from oncegate import keys, read
from oncegate.carriers import deliveries
from oncegate.errors import SettingError
from oncegate.events import Delivery
from oncegate.sources import (
    Hints,
    cloudevents,
    cxone,
    eventbridge,
    genesys,
    openmessaging,
    tutorials,
    understood,
)
from oncegate.sources.plain import paths

SAMPLES: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data" / "events.json").read_text())
NAMES = [sample["name"] for sample in SAMPLES]


def document(name: str) -> Any:
    return SAMPLES[NAMES.index(name)]["document"]


def only(payload: Any, **options: Any) -> Any:
    (event,) = read(payload, **options)
    assert event.problem is None, event.problem
    return event


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_samples(sample: dict[str, Any]) -> None:
    """Id, type, entity, part, state and time of each sample are read from the right members."""
    event = only(sample["document"])
    expected = sample["read"] | {"occurred_at": sample["read"]["occurred_at"] and _time(sample["read"]["occurred_at"])}
    assert {name: getattr(event, name) for name in expected} == expected


@pytest.mark.parametrize("source", [genesys, openmessaging, cloudevents, tutorials, cxone, eventbridge])
def test_markers(source: Any) -> None:
    """Without an envelope and without its MARKERS, no source reads or guesses a document."""
    for sample in SAMPLES:
        for body in (sample["document"], *(delivery.body for delivery in deliveries(sample["document"]))):
            rest = {member: value for member, value in body.items() if member not in source.MARKERS}
            assert source.read(Delivery(rest, b"")) is None
            assert not hasattr(source, "guess") or source.guess(Delivery(rest, b"")) is None


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_bytes_text_and_values_agree(sample: dict[str, Any]) -> None:
    """Bytes, indented text and a parsed value give the same key and content."""
    spellings = [sample["document"], json.dumps(sample["document"], indent=1), json.dumps(sample["document"]).encode()]
    found = {(str(keys.auto(event)), keys.content_hash(event), event.type) for event in map(only, spellings)}
    assert len(found) == 1


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_the_fast_path_equals_the_full_path(sample: dict[str, Any]) -> None:
    """An envelope gives the same event on the fast path and through the carriers."""
    raw = json.dumps(sample["document"]).encode()
    assert read(raw) == [understood(delivery) for delivery in deliveries(raw)]


@pytest.mark.parametrize("spelt", ["1000", "1000.0", "1e3", "1.0E+3", " 1000"])
def test_spellings_of_numbers(spelt: str) -> None:
    """A number gives the same key in every spelling, although only some spellings take the fast path."""
    text = json.dumps(document("customer end"))
    found = [only(text.replace('"MESSAGE"', number).encode()) for number in ("1000", spelt)]
    assert keys.auto(found[0]) == keys.auto(found[1])


@pytest.mark.parametrize("number", ["9" * 1_001, "-" + "1" * 4_000, "0." + "3" * 2_000, "1e" + "0" * 1_500 + "1"])
@pytest.mark.parametrize("short", [True, False])
def test_numbers_of_thousands_of_digits(number: str, short: bool) -> None:
    """A number with too many digits is rejected with the limit, on both paths. A string may have any length."""
    whole = document("customer end") if short else {"id": 1, "n": "MESSAGE"}
    text = json.dumps(whole).replace('"MESSAGE"', "%s")
    (event,) = read((text % number).encode())
    assert event.problem == "a number in it has more than 1000 digits; the maximum is 1000"
    only((text % ("9" * 1_000)).encode())
    only((text % f'"\\\\ \\"{number}"').encode())


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_raw_bytes(sample: dict[str, Any]) -> None:
    """The raw bytes of an event, as a dead letter keeps them, give the same event again."""
    event = only({"Records": [{"eventSource": "aws:sqs", "body": json.dumps(sample["document"])}]})
    again = only(event.raw)
    assert (keys.auto(again), again.id, again.type) == (keys.auto(event), event.id, event.type)


@pytest.mark.parametrize(
    ("frame", "description"),
    [
        (
            {"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}},
            "itself (channel.metadata)",
        ),
        ({"topicName": "v2.system.socket_closing", "eventBody": {}}, "v2.system.socket_closing"),
        ({"topicName": "v2.system.token_revoked", "eventBody": None}, "v2.system.token_revoked"),
        ({"topicName": "channel.metadata"}, "channel.metadata"),
        ({"result": "200", "status": "subscribed"}, "notification channel itself (subscribed)"),
        ({"result": 200, "status": "subscribed"}, "notification channel itself (subscribed)"),
        ({"topicName": "channel.metadata", "eventBody": "x"}, "channel.metadata"),
        ({"Type": "SubscriptionConfirmation", "TopicArn": "arn:x", "MessageId": "1", "Token": "t"}, "for confirmation"),
        ({"Type": "UnsubscribeConfirmation", "TopicArn": "arn:x", "Message": "bye"}, "end of an SNS subscription"),
    ],
)
def test_frames(frame: dict[str, Any], description: str) -> None:
    """A message of the transport itself is recognised and described."""
    event = only(frame)
    assert description in event.frame


@pytest.mark.parametrize("user", ["u-1", "user_7", "00c0ffee00c0ffee", "c1b2a3d4-e5f6-4718-8293-a4b5c6d7e8f3"])
def test_ids_in_topics_need_not_be_uuids(user: str) -> None:
    """A step of a topic that does not look like a word is an id, and so is a step at `{id}` in the template."""
    frame = {"topicName": f"v2.users.{user}.presence", "eventBody": {}}
    envelope = {"id": "e", "source": "aws.partner/genesys.com/x", "detail-type": "v2.users.{id}.presence"}
    named = {"topicName": "v2.users.bob.presence", "eventBody": {}}
    for event, entity in ((only(frame), user), (only({**envelope, "detail": named}), "bob")):
        assert (event.type, event.entity) == ("v2.users.{id}.presence", entity)


def test_an_evaluation_without_a_version() -> None:
    """Without an envelope, the id in the body is the id of the event, although its key needs a version."""
    event = only({"topicName": "v2.quality.evaluations", "eventBody": {"id": "ev-1", "status": "FINISHED"}})
    assert (event.id, event.own_id, event.identity) == ("ev-1", (), ("v2.quality.evaluations",))


def test_events_that_look_like_frames() -> None:
    """A message of another topic, with or without a body, is an event."""
    for message in (
        {"topicName": "channel.opened", "eventBody": {"id": 1}},
        {"topicName": "v2.users.u-1.presence"},
        {"result": "200", "status": "subscribed", "id": 1},
        {"result": "404", "status": "subscribed"},
    ):
        assert only(message).frame is None


def test_enum_case_and_versions_make_no_difference() -> None:
    """The versions of the envelope and of the detail are not part of the event, and the id of an envelope need not be a
    UUID."""
    event = only({**document("customer end"), "id": "not-even-a-uuid", "version": "9"})
    assert (event.id, event.state) == ("not-even-a-uuid", "SYSTEM")


def test_a_bare_body_with_its_topic_from_settings() -> None:
    """With the topic from settings, a bare body gives the same event as the full envelope."""
    whole = document("customer end")
    bare = whole["detail"]["eventBody"]
    hints = Hints(topic="v2.detail.events.conversation.{id}.customer.end")
    event = only(bare, hints=hints)
    assert (event.type, keys.auto(event)) == (hints.topic, keys.auto(only(whole)))
    assert keys.auto(only(bare)) != keys.auto(only(whole))


def test_plain_paths() -> None:
    """The paths of plain events are configured as strings. The first path with a value counts."""
    given = paths(source="desk", id="meta.nr meta.id", entity="call.0.id", part="leg", state="s", time="meta.at")
    body = {"meta": {"id": 5, "at": "1770091506123"}, "call": [{"id": "c"}], "leg": "l", "s": "on", "type": "t"}
    event = only(body, hints=Hints(paths=given))
    assert (event.source, event.id, event.type, event.entity) == ("desk", "5", "t", "c")
    assert (event.part, event.state, event.occurred_at) == ("l", "on", _time("2026-02-03T04:05:06.123+00:00"))


def test_a_detail_in_a_plain_event() -> None:
    """A detail without a type and without a known sender is part of a plain event, and its members are found."""
    data = {"conversationId": "c", "status": "ended", "timestamp": "2026-02-03T04:05:06.123Z"}
    document = {"id": "1", "source": "my.app", "detail": {"data": data}}
    event = only(document)
    assert (event.source, event.id, event.entity, event.state, event.body) == ("plain", "1", "c", "ended", document)
    assert event.occurred_at == _time("2026-02-03T04:05:06.123+00:00")


@pytest.mark.parametrize("wrong", [{"id": ""}, {"id": "a..b"}, {"time": 5}, {"source": ""}])
def test_invalid_paths(wrong: dict[str, Any]) -> None:
    """An invalid path is rejected when it is set, not when an event arrives."""
    with pytest.raises(SettingError):
        paths(**wrong)


@pytest.mark.parametrize("member", ["id", "eventId"])
@pytest.mark.parametrize("hostile", [[], {}, True, 1.5, "x" * 257, "a\0b"])
def test_hostile_ids(member: str, hostile: Any) -> None:
    """An id that could be confused with another is a problem of the event, also in an envelope."""
    name = "customer end" if member == "id" else "CXone case"
    (event,) = read({**document(name), member: hostile})
    assert event.problem is not None
    assert event.raw


def test_cloudevents_in_binary_mode() -> None:
    """A CloudEvent in binary mode has the same key and content as in structured mode."""
    structured = only(document("CloudEvent"))
    headers = {
        "Content-Type": "application/json",
        "CE-SpecVersion": "1.0",
        "ce-type": "com.example.call.ended",
        "ce-source": "//example/desk",
        "ce-id": "ce-1",
        "ce-subject": "call%2D1",
    }
    binary = only(b'{"a": 1.0}', headers=headers)
    assert (binary.id, binary.entity, binary.body) == ("ce-1", "call-1", {"a": 1})
    assert keys.auto(binary) == keys.auto(structured)
    assert keys.content_hash(binary) == keys.content_hash(structured)
    assert keys.auto(only(binary.raw)) == keys.auto(binary)


@pytest.mark.parametrize(("data", "body"), [(b"plain words", "plain words"), (b"\xff\xfe", "//4="), (b"", {})])
def test_cloudevents_with_other_data(data: bytes, body: Any) -> None:
    """Data that is not JSON is kept as text, or as base64 as in the JSON format."""
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "content-type": "text/plain"}
    assert only(data, headers=headers).body == body


def test_cloudevents_with_broken_data() -> None:
    """A CloudEvent with invalid JSON keeps its bytes."""
    (event,) = read(b"{", headers={"ce-specversion": "1.0", "ce-id": "1"})
    assert event.raw == b"{"
    assert event.problem is not None
    assert "data of the CloudEvent" in event.problem


@pytest.mark.parametrize("name", ["ce-id", "ce-source", "ce-type", "ce-subject", "ce-time"])
@pytest.mark.parametrize("value", ["%FF%FE", "a%C3", "%ED%A0%80", "\udcff"])
def test_cloudevents_with_invalid_headers(name: str, value: str) -> None:
    """A header that is not UTF-8 is rejected with its name. With replacement characters, different ids could become
    equal."""
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", name: value}
    (event,) = read(b"{}", headers=headers)
    assert event.problem == f"the header {name} is not UTF-8; send UTF-8 with % escapes"


def test_cloudevents_with_unicode_headers() -> None:
    """UTF-8 with and without percent escapes is the same. A percent sign without an escape stays."""
    headers = {"ce-specversion": "1.0", "ce-source": "s", "ce-type": "t"}
    found = [only(b"{}", headers={**headers, "ce-id": each}).id for each in ("%C3%BC%20", "ü ", "50%", "%zz")]
    assert found == ["ü ", "ü ", "50%", "%zz"]


def test_a_cloudevent_batch() -> None:
    """A batch gives one event for each CloudEvent."""
    one = document("CloudEvent")
    assert [event.id for event in read([one, {**one, "id": "ce-2"}])] == ["ce-1", "ce-2"]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
