"""Keyed hashes of the leaves of a body show where two bodies differ."""

from typing import Any

import msgspec
import pytest

from oncegate import keys
from oncegate.events import Event
from oncegate.gate.job import CALL
from oncegate.journal.leaves import (
    DIGEST_SIZE,
    HASH_SIZE,
    REST,
    LeafHasher,
    body_of,
    differing,
    digests_of,
    has_details,
    packed_shape,
    shape_id,
    unpacked_shape,
)
from oncegate.sources import NO_HINTS, Hints, plain, read

HASHER = LeafHasher(b"s" * 32)


def test_leaves_and_paths() -> None:
    """Each leaf has a path and four bytes. A list and an empty object are leaves."""
    body = {"b": {"c": 1, "d": {}}, "a": [1, {"x": 2}], "": None}
    paths, hashes = HASHER.leaves(body)
    assert paths == ('""', "a", "b.c", "b.d")
    assert len(hashes) == HASH_SIZE * len(paths)
    assert HASHER.leaves("text")[0] == ("",)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a"]),
        ({"a": 1}, {"a": "1"}, ["a"]),
        ({"a": None}, {}, ["a", ""]),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, ["a.c"]),
        ({"a": {"b": 1}}, {"a": 1}, ["a", "a.b"]),
        ({"a": [1, 2]}, {"a": [2, 1]}, ["a"]),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"y": 2, "x": 1}]}, []),
        ([1], [2], [""]),
    ],
)
def test_differing(one: Any, other: Any, expected: list[str]) -> None:
    """Paths with other values, and paths that only one body has, differ; the order of members does not matter."""
    assert differing(HASHER.leaves(one), HASHER.leaves(other)) == sorted(expected)


def test_the_secret_matters() -> None:
    """Without the secret, the hash of a value cannot be computed."""
    assert HASHER.leaves({"a": 1})[1] != LeafHasher(b"t" * 32).leaves({"a": 1})[1]
    assert HASHER.leaves({"a": 1})[1] == LeafHasher(b"s" * 32).leaves({"a": 1})[1]


def test_many_leaves_are_bounded() -> None:
    """A body with many leaves has 64 hashes and one for the rest, so every difference shows."""
    body = {f"m{number:04}": number for number in range(1_000)}
    paths, hashes = HASHER.leaves(body)
    assert (len(paths), paths[-1], len(hashes)) == (65, REST, 65 * HASH_SIZE)
    assert differing(HASHER.leaves(body), HASHER.leaves({**body, "m0900": -1})) == [REST]
    assert differing(HASHER.leaves(body), HASHER.leaves(dict(reversed(body.items())))) == []


def test_deep_bodies_and_long_names_are_bounded() -> None:
    """Below eight levels, and behind 60 characters of a name, a body is not taken apart; the values still count."""
    deep: Any = 1
    for _ in range(500):
        deep = {"x": deep}
    (path,), _ = HASHER.leaves(deep)
    assert path == ".".join("x" * 8)
    (name,), _ = HASHER.leaves({"y" * 10_000: 1})
    assert len(name) == 61
    assert differing(HASHER.leaves({"y" * 10_000: 1}), HASHER.leaves({"y" * 10_000: 2})) == [name]


def test_shapes() -> None:
    """A stored shape is read as it was, also with names that hold any character."""
    for body in ({"a": 1, "b": {"c": 2}}, {"\0": 1, "\n": 2, "\U0001f4a5": 3}, 5):
        paths, _ = HASHER.leaves(body)
        assert unpacked_shape(packed_shape(paths)) == paths
        assert len(shape_id(paths)) == 8
    assert shape_id(("a", "b")) != shape_id(("ab",))


def test_digests() -> None:
    """The keys under each strategy stand one after the other; a strategy without a key has zeros."""
    (event,) = read({"id": "evt-1", "x": 1})
    digests = digests_of(event, None)
    expected = [keys.auto(event), keys.event_id(event), keys.content(event)]
    assert digests == b"".join(key.digest[:DIGEST_SIZE] for key in expected)
    (event,) = read({"x": 1})
    assert digests_of(event, keys.auto(event))[DIGEST_SIZE : 2 * DIGEST_SIZE] == bytes(DIGEST_SIZE)


def test_events_without_details() -> None:
    """An event without a raw document, with a problem or of a huge size has no details."""
    assert has_details(Event(source="plain", body={}, raw=b"{}"))
    assert not has_details(Event(source="plain", body={}))
    assert not has_details(Event(source="plain", body={}, raw=b"{}", problem="unreadable"))
    assert not has_details(Event(source="plain", body={}, raw=b"x" * 300_000))


_TOPIC = "v2.detail.events.conversation.{id}.customer.end"
_CALL = {"conversationId": "c-1", "eventTime": 1770091506123, "sessionId": "s-1"}
_DETAIL = {"topicName": _TOPIC.format(id="c-1"), "eventBody": _CALL}
_ENVELOPE = {"id": "e-1", "source": "aws.partner/genesys.com/x", "detail-type": _TOPIC, "detail": _DETAIL}
_CLOUD = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {"a": 1}}
_DIGITAL = {"eventId": "1", "eventType": "CaseCreated", "eventObject": "Case", "data": {"case": {"id": "7"}}}


@pytest.mark.parametrize(
    ("payload", "hints"),
    [
        ({"id": "1", "data": {"a": [1, 2.5, None]}}, NO_HINTS),
        ({"ref": "1", "data": {"a": 1}}, Hints(paths=plain.paths(id="ref", source="acme"))),
        (_ENVELOPE, NO_HINTS),
        (_DETAIL, NO_HINTS),
        (_CALL, NO_HINTS),
        (_CALL, Hints(topic=_TOPIC)),
        ({"eventBody": _CALL}, Hints(topic=_TOPIC)),
        (_CLOUD, NO_HINTS),
        (_DIGITAL, NO_HINTS),
        ({"id": "e-1", "source": "my.app", "detail-type": "t", "detail": {"a": 1}}, NO_HINTS),
    ],
)
@pytest.mark.parametrize("carrier", ["none", "sqs"])
def test_the_body_of_a_document(payload: dict[str, Any], hints: Hints, carrier: str) -> None:
    """The body is read again from the document of the event, without the carrier and without the settings."""
    if carrier == "sqs":
        text = msgspec.json.encode(payload).decode()
        message = {"messageId": "m-1", "body": text, "eventSource": "aws:sqs", "attributes": {}}
        payload = {"Records": [message]}
    (event,) = read(payload, hints=hints)
    assert event.problem is None
    assert body_of(event) == event.body


def test_documents_without_a_known_body() -> None:
    """A document with several events or none has no body, and neither has one that only settings made plain."""
    for raw in (b'[{"id": 1}, {"id": 2}]', b"not json", b"1"):
        with pytest.raises(ValueError, match="the document does not show"):
            body_of(Event(source="plain", body={}, raw=raw))
    with pytest.raises(ValueError, match="the document does not show"):
        body_of(Event(source="acme", body=_CALL, raw=msgspec.json.encode(_CALL)))
    arguments = b'{"Records": [{"body": "{}"}]}'
    assert body_of(Event(source=CALL, body={}, raw=arguments)) == {"Records": [{"body": "{}"}]}
