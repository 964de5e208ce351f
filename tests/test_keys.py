"""Key strategies: which deliveries are one event, and which never are."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate import Gate, keys, read
from oncegate.errors import MissingKey, SettingError
from oncegate.events import Event, Key

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(st.characters(exclude_categories=["Cs"]))
PARTS = st.lists(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6), max_size=4)


def event(body: Any) -> Event:
    (found,) = read(body)
    assert found.problem is None, found.problem
    return found


@pytest.mark.parametrize("maker", [keys.fields, keys.once_per, keys.first, keys.state_change])
def test_a_strategy_without_its_arguments(maker: Any) -> None:
    """A function that returns a strategy is not a strategy, and is rejected before the first event."""
    with pytest.raises(SettingError, match=rf"key=keys.{maker.__name__} needs its arguments"):
        Gate("memory://", key=maker)


def test_an_invalid_path() -> None:
    """An invalid path is reported as invalid and not as missing."""
    with pytest.raises(SettingError, match=r"fields\(\): 'a..b' is not a path"):
        keys.fields("a..b")


def test_text_of_a_key_is_stable() -> None:
    """Keys are stable between versions: these texts never change."""
    assert str(keys.event_id(event({"id": "evt-1"}))) == "1167701c9060313049c77c4c6d470800"
    assert str(keys.content(event({"a": 1, "b": [True, None]}))) == "0e167f8551e0daacb86cfb990a1b590c"
    assert str(keys.auto(event({"type": "call.ended", "conversationId": "c"}))) == "4a6b7dbbb0ab5ce28c3d888dda06443e"
    assert str(keys.fields("a", "b.0")(event({"a": 1, "b": ["x"]}))) == "ab13b2bb92a0c7aa7e6006905a097fd9"
    assert str(keys.strategy(lambda found: found.body["a"])(event({"a": 1}))) == "f8a5ed3d31d37a7f2c63dfdff7af0776"


@given(PARTS, PARTS)
def test_joining_is_injective(one: list[Any], other: list[Any]) -> None:
    """Different lists of parts never give the same key."""
    anything = event({"id": "x"})
    same_key = keys.make("fields", anything, one) == keys.make("fields", anything, other)
    assert same_key is (repr(one) == repr(other))


def test_strategies_and_sources_share_no_key() -> None:
    """The same parts under another strategy or source give another key."""
    plain = event({"id": "x"})
    other = Event(source="other", body={"id": "x"}, id="x")
    assert len({str(key) for key in (keys.event_id(plain), keys.event_id(other), keys.fields("id")(plain))}) == 3


def test_event_id() -> None:
    """Only the id counts, not the rest of the event."""
    assert keys.event_id(event({"id": "a", "n": 1})) == keys.event_id(event({"n": 2, "id": "a"}))
    assert keys.event_id(event({"id": "a"})) != keys.event_id(event({"id": "b"}))


def test_event_id_missing() -> None:
    """Without an id there is no key, and the error names the path."""
    for body in ({"n": 1}, {"id": None}, {"id": ""}):
        with pytest.raises(MissingKey, match="event_id key needs id"):
            keys.event_id(event(body))


def test_content() -> None:
    """The whole content counts, independent of its encoding."""
    assert keys.content(event('{"a":1,"b":2}')) == keys.content(event({"b": 2.0, "a": 1}))
    assert keys.content(event({"a": 1})) != keys.content(event({"a": 2}))


BUSY = {"presenceDefinition": {"systemPresence": "BUSY"}, "modifiedDate": "2026-02-03T04:05:06Z"}
SOLD = {"id": "1", "source": "shop", "detail-type": "Sold", "detail": {"callId": "c"}}
ENDED = {"specversion": "1.0", "id": "1", "source": "/a", "type": "call.ended", "subject": "c-1"}
CLOSED = {"eventId": "1", "eventType": "CaseClosed", "eventObject": "Case", "data": {"case": {"id": "c"}}}


def presence(user: str) -> dict[str, Any]:
    return {"topicName": f"v2.users.{user}.presence", "eventBody": BUSY}


@pytest.mark.parametrize(
    ("document", "other", "again"),
    [
        (SOLD, {"detail-type": "Bought"}, {"id": "2", "time": "2026-02-03T04:05:06Z"}),
        (ENDED, {"type": "call.started"}, {"id": "2", "time": "2026-02-03T04:05:06Z"}),
        (ENDED, {"subject": "c-2"}, {"id": "2", "source": "/b"}),
        (CLOSED, {"eventType": "CaseCreated"}, {"eventId": "2"}),
        (presence("u-1"), presence("u-2"), {"metadata": {}}),
        (presence("u-1"), {"topicName": "v2.users.u-1.activity"}, {"timestamp": "2026-02-03T04:05:06Z"}),
    ],
)
def test_content_is_more_than_the_body(document: Any, other: Any, again: Any) -> None:
    """Events with equal bodies and different types or entities are different, with and without exclusions. A
    re-emission is the same event. The key binds only the body."""
    one, another, copy = event(document), event({**document, **other}), event({**document, **again})
    for by in (keys.content, keys.content(exclude="nr"), keys.first(keys.fields("none"), keys.content)):
        assert by(one) == by(copy)
        assert by(one) != by(another)
    assert keys.content_hash(one) == keys.content_hash(another)


def test_content_of_an_event_made_by_a_program() -> None:
    """Type and entity count even if the body does not contain them."""
    one = Event(source="plain", type="ended", body={})
    assert len({str(keys.auto(each)) for each in (one, Event(source="plain", entity="ended", body={}))}) == 2


def test_auto_is_the_id_else_the_content() -> None:
    """The default key of a plain event is that of `event_id`, else of `content`."""
    with_id, without = event({"id": "a"}), event({"a": 1})
    assert keys.auto(with_id) == keys.event_id(with_id)
    assert keys.auto(without) == keys.content(without)


def test_fields() -> None:
    """The values at the paths count, in objects and lists. The order of paths and values matters."""
    by = keys.fields("data.case.id", "data.states.1")
    one = event({"data": {"case": {"id": 7}, "states": ["a", "b"]}, "noise": 1})
    same = event({"data": {"case": {"id": 7}, "states": ["z", "b"]}, "noise": 2})
    other = event({"data": {"case": {"id": 7}, "states": ["a", "c"]}})
    assert by(one) == by(same)
    assert by(one) != by(other)
    assert keys.fields("a", "b")(event({"a": 1, "b": 2})) != keys.fields("b", "a")(event({"a": 1, "b": 2}))
    assert keys.fields("a")(event({"a": False})) != keys.fields("a")(event({"a": 0}))


@pytest.mark.parametrize(
    "body", [{"b": 1}, {"a": None, "b": 1}, {"a": "", "b": 1}, {"a": 1, "b": {}}, {"a": 1, "b": [1]}]
)
def test_fields_missing(body: dict[str, Any]) -> None:
    """One missing part is enough for no key, and the error names the paths."""
    with pytest.raises(MissingKey, match=r"needs .*(a|b\.5)"):
        keys.fields("a", "b.5")(event(body))


@pytest.mark.parametrize("paths", [(), ("",), (".",), (1,)])
def test_fields_without_a_path(paths: Any) -> None:
    """A strategy without paths is rejected: it would give all events one key."""
    with pytest.raises(SettingError, match=r"at least one path|is not a path"):
        keys.fields(*paths)


def test_paths_into_the_document() -> None:
    """A path is looked up in the body, then in the document, then among the fields that the source read."""
    envelope = {"id": "e-1", "source": "shop", "detail-type": "Sold", "detail": {"id": "own", "state": "Open"}}
    found = event(envelope)
    assert keys.fields("id", "detail.id", "detail-type", "type")(found).parts[1:] == ("own", "own", "Sold", "Sold")
    case = {"eventObject": "Case", "eventType": "X", "data": {"case": {"id": 1, "status": "OPEN"}}}
    assert keys.fields("data.case.id")(event(case)).parts[1:] == keys.fields("case.id")(event(case)).parts[1:] == (1,)
    assert keys.fields("entity", "state")(event(case)).parts[1:] == ("1", "open")
    with pytest.raises(MissingKey, match="occurred_at"):
        keys.fields("occurred_at")(event(case))


@pytest.mark.parametrize("path", ["detail.conversationId", "detail.data.nr", "detail.data.list.-1"])
def test_paths_into_text(path: str) -> None:
    """A path leads into an object that is encoded as JSON text."""
    detail = {"conversationId": "c", "data": {"nr": 1, "list": [1, 2]}}
    whole = {"id": "1", "source": "shop", "detail-type": "x"}
    texts = [detail, json.dumps(detail), json.dumps({**detail, "data": json.dumps(detail["data"])})]
    assert len({str(keys.fields(path)(event({**whole, "detail": said}))) for said in texts}) == 1
    assert keys.fields("data.nr")(event({"id": "1", "data": '{"nr": 1}'})).parts[1:] == (1,)


def test_fields_rounded() -> None:
    """Times in one bucket are equal, in any format. Ids that consist of digits are not rounded."""
    by = keys.fields("call", "at", round="1m")
    first = by(event({"call": "1770091506123", "at": "2026-02-03T04:05:06Z"}))
    same = by(event({"call": "1770091506123", "at": 1770091559999, "noise": 1}))
    assert first == same
    assert first != by(event({"call": "1770091506124", "at": "2026-02-03T04:05:06Z"}))
    assert first != by(event({"call": "1770091506123", "at": "2026-02-03T04:06:00Z"}))
    assert first != keys.fields("call", "at", round="2m")(
        event({"call": "1770091506123", "at": "2026-02-03T04:05:06Z"})
    )
    assert not first.binds


@pytest.mark.parametrize(("one", "other"), [("1770091506.17", "1770091507.18"), ("20260203T0405", "20260203T0406")])
def test_ids_that_look_like_times(one: str, other: str) -> None:
    """Text is rounded if it is an ISO time, or if the name of its member says that it is a time."""
    at = "2026-02-03T04:05:06Z"
    by_call, by_time = keys.fields("call", "at", round="1h"), keys.fields("startTime", round="1h")
    assert by_call(event({"call": one, "at": at})) != by_call(event({"call": other, "at": at}))
    assert by_time(event({"startTime": one})) == by_time(event({"startTime": other}))
    spoken = keys.fields("said", round="1h")
    assert spoken(event({"said": at})) == spoken(event({"said": " 2026-02-03 04:05"}))


def test_the_edge_of_a_bucket() -> None:
    """Two copies one millisecond apart fall into different buckets if a boundary lies between them."""
    by = keys.fields("at", round="500ms")
    assert by(event({"at": 1770091506499})) != by(event({"at": 1770091506500}))
    assert by(event({"at": 1770091506500})) == by(event({"at": 1770091506999}))


@pytest.mark.parametrize("body", [{"at": "soon"}, {"at": True}, {"call": 1770091506123}])
def test_fields_with_nothing_to_round(body: dict[str, Any]) -> None:
    """If no value is a time, there is no key, rather than a key that was not rounded."""
    with pytest.raises(MissingKey):
        keys.fields(*body, round="1m")(event(body))


def test_round_is_a_duration() -> None:
    """A bucket without a unit is rejected when the strategy is made."""
    with pytest.raises(SettingError, match="round="):
        keys.fields("at", round="60")


def test_content_without_some_members() -> None:
    """Excluded members do not count, the others do. Such a key does not bind content."""
    by = keys.content(exclude=["meta.sentAt", "nr"])
    first = by(event({"a": 1, "meta": {"sentAt": 1, "x": 1}, "nr": 1}))
    assert first == by(event({"a": 1, "meta": {"sentAt": 2, "x": 1}}))
    assert first != by(event({"a": 1, "meta": {"sentAt": 1, "x": 2}, "nr": 1}))
    assert first != by(event({"a": 1, "meta": {"x": 1, "sentAt": 1}, "nr": 1, "b": 1}))
    assert not first.binds
    assert by(event({"a": 1, "meta": "text"})) != by(event({"a": 1, "meta": {}}))
    with pytest.raises(SettingError, match="exclude"):
        keys.content(exclude=[])
    with pytest.raises(SettingError, match=r'^exclude=5 must be a path such as "meta\.sentAt", or a list of them$'):
        keys.content(exclude=5)  # type: ignore[call-overload]


TOLD = {"topicName": "v2.users.u-1.presence", "eventBody": {**BUSY, "sentAt": 1}}


@pytest.mark.parametrize(
    ("document", "path", "other"),
    [
        (CLOSED, "data.case.url", {"data": {"case": {"id": "c", "url": "x"}}}),
        (CLOSED, "case.url", {"data": '{"case": {"id": "c", "url": "x"}}'}),
        (SOLD, "detail.sentAt", {"detail": {"callId": "c", "sentAt": 1}}),
        ({**SOLD, "detail": TOLD}, "detail.eventBody.sentAt", {"detail": {**TOLD, "eventBody": {**BUSY, "sentAt": 2}}}),
        ({"items": [{"at": 1, "x": 1}, 2]}, "items.0.at", {"items": [{"at": 2, "x": 1}, 2]}),
        ({"items": [{"at": 1, "x": 1}, 2]}, "items.-1", {"items": [{"at": 1, "x": 1}, 3]}),
        ({"type": "a", "n": 1}, "type", {"type": "b"}),
        (SOLD, "detail-type", {"detail-type": "Bought"}),
        (ENDED, "subject", {"subject": "c-2"}),
    ],
)
def test_content_with_excluded_paths(document: Any, path: str, other: Any) -> None:
    """Excluded paths lead into lists, and from the document into the body. Fields that the source read from there are
    excluded, too."""
    one, another = event(document), event({**document, **other})
    assert keys.content(exclude=path)(one) == keys.content(exclude=path)(another)
    assert keys.content(one) != keys.content(another)
    assert keys.content(exclude="none.at.all")(one) != keys.content(exclude="none.at.all")(another)


def test_once_per() -> None:
    """One effect for each conversation, whatever else the events contain. Another effect has another key."""
    survey = keys.once_per("survey", "conversation")
    first = survey(event({"id": "1", "conversation": "c", "type": "ended"}))
    assert first == survey(event({"id": "2", "conversation": "c", "type": "closed"}))
    assert first != survey(event({"conversation": "d"}))
    assert first != keys.once_per("letter", "conversation")(event({"conversation": "c"}))
    assert not first.binds
    with pytest.raises(MissingKey, match="once_per key needs conversation"):
        survey(event({"id": "1"}))


@pytest.mark.parametrize("wrong", [("", "a"), ("survey",), (5, "a")])
def test_once_per_without_a_name_or_a_path(wrong: Any) -> None:
    """`once_per` needs a name and at least one path."""
    with pytest.raises(SettingError):
        keys.once_per(*wrong)


def test_first() -> None:
    """The first strategy whose parts the event has decides, and the key is its key."""
    by = keys.first(keys.fields("call", "leg"), lambda found: found.body.get("nr"), keys.event_id)
    both = event({"call": 1, "leg": 2, "id": "x"})
    assert by(both) == keys.fields("call", "leg")(both)
    assert by(event({"call": 1, "nr": 5})).parts == (5,)
    assert by(event({"call": 1, "id": "x"})) == keys.event_id(event({"id": "x"}))
    with pytest.raises(MissingKey, match=r"call, leg, .*, id"):
        by(event({"a": 1}))
    with pytest.raises(SettingError):
        keys.first()


def test_aliases_of_aliases() -> None:
    """An alias of an alias is followed to its end, and a circle is rejected."""
    by = keys.state_change(aliases={"Talking": "answered", "ANSWERED": "connected", "connected": "Connected"})
    found = [
        by(event({"conversationId": "c", "state": state, "timestamp": 1770091506}))
        for state in ("talking", "Answered", "connected")
    ]
    assert len({str(key) for key in found}) == 1
    with pytest.raises(SettingError, match="aliases form a circle"):
        keys.state_change(aliases={"a": "b", "b": "C", "c": "b"})


def test_any_callable() -> None:
    """A function from event to parts is a strategy. It may return a list of parts, one part or a Key."""
    found = event({"id": "x", "a": "1", "b": 2})
    by_list = keys.strategy(lambda e: [e.body["a"], e.body["b"]])
    by_value = keys.strategy(lambda e: e.body["a"])
    assert by_list(found).parts == ("1", 2)
    assert by_value(found).parts == ("1",)
    assert by_list(found) != by_value(found)
    assert keys.strategy(keys.event_id)(found) == keys.event_id(found)


@pytest.mark.parametrize("answer", [None, "", [], [None], ["a", ""], ()])
def test_a_callable_that_finds_nothing(answer: Any) -> None:
    """A function that returns nothing gives no key, rather than one key for all such events."""
    with pytest.raises(MissingKey):
        keys.strategy(lambda _: answer)(event({"id": "x"}))


def test_not_a_strategy() -> None:
    """A string is not a strategy."""
    with pytest.raises(SettingError, match=r"use keys\.auto"):
        keys.strategy("event_id")  # type: ignore[arg-type]


def test_keys_bind_content() -> None:
    """Keys of these strategies bind content: other content under them is a conflict."""
    found = event({"id": "x"})
    made: list[Key] = [keys.auto(found), keys.event_id(found), keys.content(found), keys.fields("id")(found)]
    assert all(key.binds for key in made)


def test_no_strategy_shares_a_key_with_another() -> None:
    """One event has different keys under all strategies."""
    found = event({"id": "x", "at": "2026-02-03T04:05:06Z"})
    strategies = [
        *(keys.event_id, keys.content, keys.content(exclude="id"), keys.fields("id"), keys.once_per("id", "id")),
        *(keys.fields("at"), keys.fields("at", round="1m"), keys.strategy(lambda each: each.id)),
    ]
    assert len({str(by(found)) for by in strategies}) == len(strategies)
