"""Similar events: the members in which they differ, and states with two names."""

import pytest

from oncegate import read
from oncegate.inspection import similar_events
from oncegate.inspection.similar_events import SimilarEvents, TwoNames, alias_setting

CALL = {"id": "1", "type": "call", "conversationId": "c", "timestamp": "2026-02-03T04:05:06Z", "agent": "a"}


def similar(*documents: object) -> SimilarEvents:
    found = SimilarEvents()
    for document in documents:
        (event,) = read(document)
        found.add(event)
    return found


def never(one: int, other: int) -> bool:
    return False


def test_differing() -> None:
    """The members of all other events are named, the first five of them."""
    found = similar({"a": 1, "b": {"c": 1}}, {"a": 2, "b": {"c": 1}}, {"a": 1, "b": {"c": 2}})
    assert found.differing(1, 2, 3) == ["a", "b.c"]
    assert found.differing(1) == []
    many = similar(*(dict.fromkeys("abcdefg", value) for value in (1, 2)))
    assert many.differing(1, 2) == ["a", "b", "c", "d", "e", "…"]


def test_most_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The members of events beyond the limit of memory are not named."""
    monkeypatch.setattr(similar_events, "_MOST_HELD", 20)
    assert similar({"a": 1}, {"a": 2}, {"a": 3, "b": "x" * 20}).differing(1, 3) == []
    assert similar({"a": 1}, {"a": 2}).differing(1, 2) == ["a"]


@pytest.mark.parametrize(
    ("one", "other", "is_suggested"),
    [
        ({"state": "answered"}, {"state": "Connected"}, True),
        ({"type": "call.answered"}, {"type": "call.connected"}, True),
        ({"state": "answered"}, {"state": "connected", "timestamp": "2026-02-03T04:05:06.5Z"}, True),
        ({"state": "answered"}, {"state": "connected", "timestamp": "2026-02-03T04:05:06.6Z"}, False),
        ({"state": "answered"}, {"state": "connected", "conversationId": "d"}, False),
        ({"state": "success"}, {"state": "failure"}, False),
        ({"state": "ringing"}, {"state": "connected"}, False),
        ({"state": "picked up"}, {"state": "connected", "id": "2"}, True),
        ({"state": "picked up"}, {"state": "connected", "agent": "b"}, False),
        ({"state": "connected"}, {"state": "connected", "agent": "b"}, False),
    ],
)
def test_two_names(one: dict[str, str], other: dict[str, str], is_suggested: bool) -> None:
    """Two states at one moment may be one state if their names are known to mean one state. An unknown name may be one
    if nothing but the state, the id, the type and the time differs."""
    assert bool(similar(CALL | one, CALL | other).two_names(never)) is is_suggested


def test_alias_setting() -> None:
    """Each name that means another state has one alias, without chains."""
    pairs = [("b", "a"), ("c", "b"), ("x", "y")]
    names = [TwoNames((1, 2), states, 0) for states in pairs]
    assert alias_setting(names) == 'first(state_change("500ms", aliases={"a": "c", "b": "c", "x": "y"}), auto)'
