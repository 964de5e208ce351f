"""Sources: what each kind of sender says, found where it says it."""

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
def test_each_shape(sample: dict[str, Any]) -> None:
    """Id, type, entity, part, state and time are read from where this shape has them, and from nowhere else."""
    event = only(sample["document"])
    expected = sample["read"] | {"occurred_at": sample["read"]["occurred_at"] and _time(sample["read"]["occurred_at"])}
    assert {name: getattr(event, name) for name in expected} == expected


@pytest.mark.parametrize("source", [genesys, openmessaging, cloudevents, tutorials, cxone, eventbridge])
def test_what_is_telling(source: Any) -> None:
    """No source knows a document, or guesses it to be its own, without an envelope and all that is telling of it."""
    for sample in SAMPLES:
        for body in (sample["document"], *(delivery.body for delivery in deliveries(sample["document"]))):
            rest = {member: value for member, value in body.items() if member not in source.MARKERS}
            assert source.read(Delivery(rest, b"")) is None
            assert not hasattr(source, "guess") or source.guess(Delivery(rest, b"")) is None


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_bytes_text_and_values_agree(sample: dict[str, Any]) -> None:
    """The same event, key and content whether it came as bytes, as text with blanks or as a parsed value."""
    spellings = [sample["document"], json.dumps(sample["document"], indent=1), json.dumps(sample["document"]).encode()]
    found = {(str(keys.auto(event)), keys.content_hash(event), event.type) for event in map(only, spellings)}
    assert len(found) == 1


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_the_short_way_reads_as_the_long_one(sample: dict[str, Any]) -> None:
    """An envelope read without the carriers is the event that it would be with them."""
    raw = json.dumps(sample["document"]).encode()
    assert read(raw) == [understood(delivery) for delivery in deliveries(raw)]


@pytest.mark.parametrize("spelt", ["1000", "1000.0", "1e3", "1.0E+3", " 1000"])
def test_numbers_have_one_spelling_on_both_ways(spelt: str) -> None:
    """A number is the same however it is written, though only some spellings go the short way."""
    text = json.dumps(document("customer end"))
    found = [only(text.replace('"MESSAGE"', number).encode()) for number in ("1000", spelt)]
    assert keys.auto(found[0]) == keys.auto(found[1])


@pytest.mark.parametrize("number", ["9" * 1_001, "-" + "1" * 4_000, "0." + "3" * 2_000, "1e" + "0" * 1_500 + "1"])
@pytest.mark.parametrize("short", [True, False])
def test_numbers_of_thousands_of_digits(number: str, short: bool) -> None:
    """They are refused with the limit, on both ways; a string may be as long as it likes."""
    whole = document("customer end") if short else {"id": 1, "n": "MESSAGE"}
    text = json.dumps(whole).replace('"MESSAGE"', "%s")
    (event,) = read((text % number).encode())
    assert event.problem == "a number in it has more than 1000 digits; the maximum is 1000"
    only((text % ("9" * 1_000)).encode())
    only((text % f'"\\\\ \\"{number}"').encode())


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_what_is_kept_reads_alike(sample: dict[str, Any]) -> None:
    """The raw bytes that a dead letter keeps are read as the same event again, whatever it came in."""
    event = only({"Records": [{"eventSource": "aws:sqs", "body": json.dumps(sample["document"])}]})
    again = only(event.raw)
    assert (keys.auto(again), again.id, again.type) == (keys.auto(event), event.id, event.type)


@pytest.mark.parametrize(
    ("frame", "said"),
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
def test_frames_are_no_events(frame: dict[str, Any], said: str) -> None:
    """What a transport says for itself is recognised, and says what it is."""
    event = only(frame)
    assert said in event.frame


@pytest.mark.parametrize("user", ["u-1", "user_7", "00c0ffee00c0ffee", "c1b2a3d4-e5f6-4718-8293-a4b5c6d7e8f3"])
def test_ids_in_topics_need_not_be_uuids(user: str) -> None:
    """Whatever looks unlike a word is an id, and whatever stands where the template has one."""
    frame = {"topicName": f"v2.users.{user}.presence", "eventBody": {}}
    envelope = {"id": "e", "source": "aws.partner/genesys.com/x", "detail-type": "v2.users.{id}.presence"}
    named = {"topicName": "v2.users.bob.presence", "eventBody": {}}
    for event, entity in ((only(frame), user), (only({**envelope, "detail": named}), "bob")):
        assert (event.type, event.entity) == ("v2.users.{id}.presence", entity)


def test_an_evaluation_without_a_version() -> None:
    """The id that a body carries is the event's where there is no envelope, though it takes a version to know it by."""
    event = only({"topicName": "v2.quality.evaluations", "eventBody": {"id": "ev-1", "status": "FINISHED"}})
    assert (event.id, event.own_id, event.identity) == ("ev-1", (), ("v2.quality.evaluations",))


def test_only_a_channels_own_messages_are_frames() -> None:
    """What another topic says, with or without a body, is an event."""
    for said in (
        {"topicName": "channel.opened", "eventBody": {"id": 1}},
        {"topicName": "v2.users.u-1.presence"},
        {"result": "200", "status": "subscribed", "id": 1},
        {"result": "404", "status": "subscribed"},
    ):
        assert only(said).frame is None


def test_enum_case_and_versions_make_no_difference() -> None:
    """`version` inside and outside are not the event's, and an envelope id need not be a version-4 UUID."""
    event = only({**document("customer end"), "id": "not-even-a-uuid", "version": "9"})
    assert (event.id, event.state) == ("not-even-a-uuid", "SYSTEM")


def test_a_bare_body_with_its_topic_from_settings() -> None:
    """With the topic given, a bare body is the same event as the one in the full envelope."""
    whole = document("customer end")
    bare = whole["detail"]["eventBody"]
    hints = Hints(topic="v2.detail.events.conversation.{id}.customer.end")
    event = only(bare, hints=hints)
    assert (event.type, keys.auto(event)) == (hints.topic, keys.auto(only(whole)))
    assert keys.auto(only(bare)) != keys.auto(only(whole))


def test_plain_paths() -> None:
    """Where a shape of one's own has what can be given as plain strings; the first path that leads somewhere counts."""
    given = paths(source="desk", id="meta.nr meta.id", entity="call.0.id", part="leg", state="s", time="meta.at")
    body = {"meta": {"id": 5, "at": "1770091506123"}, "call": [{"id": "c"}], "leg": "l", "s": "on", "type": "t"}
    event = only(body, hints=Hints(paths=given))
    assert (event.source, event.id, event.type, event.entity) == ("desk", "5", "t", "c")
    assert (event.part, event.state, event.occurred_at) == ("l", "on", _time("2026-02-03T04:05:06.123+00:00"))


def test_a_detail_that_nothing_makes_an_envelope() -> None:
    """A detail with neither a type nor a name that is known is part of a plain event, and tells of it all the same."""
    said = {"conversationId": "c", "status": "ended", "timestamp": "2026-02-03T04:05:06.123Z"}
    document = {"id": "1", "source": "my.app", "detail": {"data": said}}
    event = only(document)
    assert (event.source, event.id, event.entity, event.state, event.body) == ("plain", "1", "c", "ended", document)
    assert event.occurred_at == _time("2026-02-03T04:05:06.123+00:00")


@pytest.mark.parametrize("wrong", [{"id": ""}, {"id": "a..b"}, {"time": 5}, {"source": ""}])
def test_paths_that_lead_nowhere(wrong: dict[str, Any]) -> None:
    """A path that cannot be meant is refused when it is set, not when an event comes."""
    with pytest.raises(SettingError):
        paths(**wrong)


@pytest.mark.parametrize("member", ["id", "eventId"])
@pytest.mark.parametrize("hostile", [[], {}, True, 1.5, "x" * 257, "a\0b"])
def test_hostile_ids_are_refused_wherever_they_are(member: str, hostile: Any) -> None:
    """An id that could be mistaken for another makes the event a problem, also in an envelope."""
    name = "customer end" if member == "id" else "CXone case"
    (event,) = read({**document(name), member: hostile})
    assert event.problem is not None
    assert event.raw


def test_cloudevents_over_headers() -> None:
    """A CloudEvent spread over HTTP headers is the same event as in one piece, content and all."""
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
    """Data that is no JSON is kept as text, or as base64 like in the JSON form."""
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "content-type": "text/plain"}
    assert only(data, headers=headers).body == body


def test_cloudevents_with_broken_data() -> None:
    """A CloudEvent whose JSON is none keeps the bytes that came."""
    (event,) = read(b"{", headers={"ce-specversion": "1.0", "ce-id": "1"})
    assert event.raw == b"{"
    assert event.problem is not None
    assert "data of the CloudEvent" in event.problem


@pytest.mark.parametrize("name", ["ce-id", "ce-source", "ce-type", "ce-subject", "ce-time"])
@pytest.mark.parametrize("value", ["%FF%FE", "a%C3", "%ED%A0%80", "\udcff"])
def test_cloudevents_whose_headers_are_no_text(name: str, value: str) -> None:
    """What is not UTF-8 is refused by its name: with other characters in its place, different ids would be one."""
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", name: value}
    (event,) = read(b"{}", headers=headers)
    assert event.problem == f"the header {name} is not UTF-8; send UTF-8 with % escapes"


def test_cloudevents_with_other_letters() -> None:
    """What is UTF-8 is the same with and without escapes; a percent sign that begins none stays."""
    headers = {"ce-specversion": "1.0", "ce-source": "s", "ce-type": "t"}
    found = [only(b"{}", headers={**headers, "ce-id": each}).id for each in ("%C3%BC%20", "ü ", "50%", "%zz")]
    assert found == ["ü ", "ü ", "50%", "%zz"]


def test_a_cloudevent_batch() -> None:
    """A batch is its events."""
    one = document("CloudEvent")
    assert [event.id for event in read([one, {**one, "id": "ce-2"}])] == ["ce-1", "ce-2"]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
