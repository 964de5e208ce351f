"""The door of a route: what is read of a request, and how often."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from oncegate import Event, Gate, read
from oncegate.claims import Reset
from oncegate.service import route as doors
from oncegate.service.admission import InFlightBudget, InlineAdmission
from oncegate.service.monitoring import Metrics
from oncegate.service.route import Route
from oncegate.stores.memory import MemoryStore

BODY = b'{"id":"evt-1","type":"call.ended","left":1}'
HEADERS = [(b"content-type", b"application/json")]


class Readings:
    """Counts how often something is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._read = read
        monkeypatch.setattr(doors, "read", self)

    def __call__(self, *arguments: Any, **more: Any) -> list[Event]:
        self.count += 1
        return self._read(*arguments, **more)


def statuses(door: Route, *requests: tuple[bytes, list[tuple[bytes, bytes]]]) -> list[str]:
    """What the events of these requests have come to, one after the other."""

    async def main() -> list[str]:
        answers = [await door.answer(body, headers, lambda: "here", InFlightBudget()) for body, headers in requests]
        said = [msgspec.json.decode(answer.body) for answer in answers]
        return [each.get("outcome", each["status"]) for each in said]

    return asyncio.run(main())


def door_of(handler: Any) -> Route:
    return Route("default", InlineAdmission(Gate(MemoryStore()), handler, ThreadPoolExecutor(1)), Metrics())


def test_a_storm_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies to the byte of a duplicate are answered as it was, without reading them; what differs is read."""
    door = door_of(lambda event: None)
    readings = Readings(monkeypatch)
    assert statuses(door, *[(BODY, HEADERS)] * 20) == ["processed"] + ["duplicate"] * 19
    assert readings.count == 2
    assert statuses(door, (BODY.replace(b":1}", b": 1}"), HEADERS)) == ["duplicate"]
    assert readings.count == 3


def test_what_a_handler_was_given_is_read_again() -> None:
    """Whatever a handler does to an event that then fails, the next attempt is given what was delivered."""
    given: list[int] = []

    def handler(event: Event) -> None:
        given.append(event.body.pop("left"))
        if len(given) < 3:
            raise ValueError("boom")

    door = door_of(handler)
    assert statuses(door, *[(BODY, HEADERS)] * 6) == ["failed", "failed", "processed", *["duplicate"] * 3]
    assert given == [1, 1, 1]


def test_a_copy_while_the_handler_changes_the_event() -> None:
    """A copy that comes while a handler has the event, and has changed it, is a copy of what was delivered."""
    gate = Gate(MemoryStore())
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(event: Event) -> None:
        event.body["id"] = "another"
        started.set()
        await go.wait()

    async def main() -> list[str]:
        door = Route("default", InlineAdmission(gate, handler, ThreadPoolExecutor(1)), Metrics())

        async def said() -> str:
            told = msgspec.json.decode((await door.answer(BODY, HEADERS, lambda: "here", InFlightBudget())).body)
            return str(told.get("outcome", told["status"]))

        go.set()
        before = [await said() for _ in range(3)]
        for entry in gate.store.browse():
            gate.store.reset([Reset(entry.namespace, entry.key)])
        gate._engine._cache._new.clear()
        started.clear()
        go.clear()
        running = asyncio.create_task(said())
        await started.wait()
        copy = await said()
        go.set()
        return [*before, copy, await running]

    assert asyncio.run(main()) == ["processed", "duplicate", "duplicate", "in_flight", "processed"]


def test_headers_that_say_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where headers tell of the event, the body alone does not say which one it is."""
    door = door_of(lambda event: None)
    clouds = [
        [(b"ce-specversion", b"1.0"), (b"ce-id", each), (b"ce-source", b"/a"), (b"ce-type", b"t"), *HEADERS]
        for each in (b"one", b"two")
    ]
    asked = [(BODY, HEADERS)] * 3 + [(BODY, clouds[0])] * 3 + [(BODY, clouds[1])] * 2
    assert statuses(door, *asked) == [
        "processed",
        *["duplicate"] * 2,
        "processed",
        *["duplicate"] * 2,
        "processed",
        "duplicate",
    ]


def test_headers_that_are_no_text() -> None:
    """An id that is not UTF-8 is refused; one that is, is the same with and without escapes."""
    door = door_of(lambda event: None)
    asked = [
        (BODY, [(b"ce-specversion", b"1.0"), (b"ce-id", each), (b"ce-source", b"/a"), (b"ce-type", b"t"), *HEADERS])
        for each in (b"\xff", b"\xfe", b"%FF", "ÿ".encode(), b"%C3%BF")
    ]
    assert statuses(door, *asked) == ["invalid", "invalid", "invalid", "processed", "duplicate"]


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many different bodies come again, only so many are kept; large ones are not."""
    monkeypatch.setattr(doors, "_MOST_COPIES", 4)
    door = door_of(lambda event: None)
    bodies = [b'{"id":"%d"}' % number for number in range(40)] + [b'{"id":"x","much":"%s"}' % (b"y" * 20_000)]
    statuses(door, *[(body, HEADERS) for body in bodies for _ in range(2)])
    assert 0 < len(door._copies._read) <= 4
    assert bodies[-1] not in door._copies._read
