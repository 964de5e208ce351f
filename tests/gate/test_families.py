"""Families of types: types that name a state share one timeline with events that have the state in a member."""

from typing import Any

import pytest

from oncegate import Gate, keys
from oncegate.stores.memory import MemoryStore
from tests.gate.test_state_changes import Handler, emission, kinds_of


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def gate(store: MemoryStore) -> Gate:
    return Gate(store, key=keys.state_change("500ms"), remember=None)


def named(state: str, at: int, where: str) -> dict[str, Any]:
    """A webhook as tutorials show it: it names the state in its type, in a member, or in both."""
    data = {"conversationId": "c-1"} | ({} if where == "type" else {"state": state})
    kind = "conversation" if where == "state" else f"conversation.{state.lower()}"
    return {"id": f"{state}{at}", "type": kind, "createdTime": 1_765_551_600_000 + at, "data": data}


def topic(name: str, at: int, session: str, **more: Any) -> dict[str, Any]:
    """A message of Genesys Cloud for a session of one conversation."""
    body = {"eventTime": 1_765_551_600_000 + at, "conversationId": "c-1", "sessionId": session, **more}
    return {"topicName": f"v2.detail.events.conversation.c-1.{name}", "eventBody": body}


@pytest.mark.parametrize("where", ["both", "state", "type"])
def test_types_that_name_the_state(gate: Gate, handler: Handler, where: str) -> None:
    """A state that comes again within the window is a new change, whether the type names it, a member, or both; an
    older state is stale."""
    outcomes = [
        gate.run(named(state, at, where), handler)
        for state, at in (("connected", 0), ("held", 100), ("Connected", 200), ("connected", 210))
    ]
    assert kinds_of(outcomes) == [*[("processed", None)] * 3, ("duplicate", "state-echo")]
    gate.run(named("ringing", -60_000, where), handler)
    assert [event.stale for event in handler.runs] == [False, False, False, True]


def test_echo_without_the_member(store: MemoryStore, handler: Handler) -> None:
    """The last word of a type is the state that other events have in a member, also if it is an alias."""
    gate = Gate(store, key=keys.state_change(aliases={"answered": "connected"}))
    emissions = [
        *(named("ended", 0, "both"), named("ended", 100, "type"), named("ENDED", 200, "both")),
        *(named("answered", -5000, "both"), named("connected", -4900, "type"), named("answered", -4800, "type")),
    ]
    outcomes = [gate.run(each, handler).status for each in emissions]
    assert outcomes == ["processed", "duplicate", "duplicate"] * 2


def test_type_and_state_differ(gate: Gate, handler: Handler) -> None:
    """Two types that each name a change are two events, even if the entity has the same state after both. Events of one
    type are one, and all share one timeline."""
    emissions = [
        *(emission("open", 0, type="case.created"), emission("open", 100, type="case.transferred")),
        *(emission("open", 150, type="case.transferred", n=2), emission("open", -60_000, type="case.new")),
    ]
    outcomes = [gate.run(each, handler).status for each in emissions]
    assert outcomes == ["processed", "processed", "duplicate", "processed"]
    assert [event.stale for event in handler.runs] == [False, False, True]


def test_end_of_a_session(gate: Gate, handler: Handler) -> None:
    """The start of a session that arrives after its end is stale, whether the end has a disconnect type or not."""
    for session, more in (("s-1", {"disconnectType": "PEER"}), ("s-2", {})):
        gate.run(topic("customer.end", 60_000, session, **more), handler)
        gate.run(topic("customer.start", 0, session), handler)
    assert [event.stale for event in handler.runs] == [False, True] * 2


@pytest.mark.parametrize("path", ["call.phase", "call"])
def test_missing_path(store: MemoryStore, handler: Handler, path: str) -> None:
    """A state that is not at the given path is missing; no other member and no type replaces it."""
    gate = Gate(store, key=keys.state_change(entity="call.nr", state=path))
    event = emission("held", 0, type="call.ended", status="ok", call={"nr": 7})
    assert f"Refused: the state_change key needs {path}, which" in gate.run(event, handler).reason
    by_entity = Gate(store, key=keys.state_change(entity="call.who"))
    assert "Refused: the state_change key needs call.who, which" in by_entity.run(event, handler).reason
