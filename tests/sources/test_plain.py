"""Plain events: any payload becomes events, and `read` never raises."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from oncegate import read
from oncegate.events import Event


def test_an_object_is_an_event() -> None:
    """Bytes, text and parsed JSON give the same event. Raw bytes are kept if there were any."""
    body = {"id": "evt-1", "type": "call.ended", "n": 1}
    expected = Event(source="plain", id="evt-1", type="call.ended", body=body)
    assert read(body) == [replace(expected, raw=b'{"id":"evt-1","n":1,"type":"call.ended"}')]
    for raw in (b'{"id":"evt-1","type":"call.ended","n":1.0}', '{"n":1,"id":"evt-1","type":"call.ended"}'):
        (found,) = read(raw)
        assert (found.id, found.type, found.body) == ("evt-1", "call.ended", body)
        assert found.raw == (raw if isinstance(raw, bytes) else raw.encode())


def test_an_array_is_its_events() -> None:
    """Each element of an array is an event. An unreadable element does not affect the others."""
    found = read('[{"id":1},5,{"id":"b"}]')
    assert [event.id for event in found] == ["1", None, "b"]
    assert [event.problem for event in found] == [None, "an event is a JSON object, not a number", None]
    assert read("[]") == []


@pytest.mark.parametrize(
    ("identifier", "read_as"), [("a", "a"), (7, "7"), (-1, "-1"), (10**19, "1" + "0" * 19), (None, None), ("", None)]
)
def test_ids(identifier: Any, read_as: str | None) -> None:
    """Strings and whole numbers are ids. null and the empty string are not."""
    (event,) = read({"id": identifier})
    assert (event.id, event.problem) == (read_as, None)


@pytest.mark.parametrize(
    ("identifier", "problem"),
    [
        (1.5, "a string or a whole number"),
        (True, "a string or a whole number"),
        ([], "a string or a whole number"),
        ({}, "a string or a whole number"),
        (10**20, "more than 20 digits"),
        ("x" * 257, "longer than 256"),
        ("a\0b", "NUL"),
    ],
)
def test_hostile_ids(identifier: Any, problem: str) -> None:
    """An id that could be confused with another is rejected with the reason."""
    (event,) = read({"id": identifier})
    assert event.problem is not None
    assert problem in event.problem


@pytest.mark.parametrize("payload", [b"", b"{", "5", "null", b"\xff", object(), {1: 2}, float("nan"), "\ud800"])
def test_unreadable(payload: Any) -> None:
    """Any other payload is one event with a problem."""
    (event,) = read(payload)
    assert event.source == "unreadable"
    assert event.problem


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_read_never_raises_on_bytes(payload: bytes | str) -> None:
    """`read` returns for any bytes and any text."""
    for event in read(payload):
        assert (event.problem is None) == (event.source == "plain")


@settings(max_examples=300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["id", "type"]) | st.text(), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_read_never_raises_on_values(payload: Any) -> None:
    """`read` returns for any value."""
    for event in read(payload):
        assert (event.problem is None) == (event.source == "plain")
