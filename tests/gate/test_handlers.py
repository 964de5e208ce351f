"""What can be a handler, as far as that is known before its first event."""

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from oncegate import Event, Gate
from oncegate.errors import SettingError


def nothing() -> None: ...


def two(event: Event, colour: str) -> None: ...


def by_name(event: Event, *, colour: str) -> None: ...


def plain(event: Event) -> None: ...


def with_a_default(event: Event, colour: str = "red", *, shape: str = "round") -> None: ...


def anything(*arguments: Any, **named: Any) -> None: ...


@wraps(two)
def wrapped(*arguments: Any) -> None: ...


async def later(event: Event, colour: str = "blue") -> str:
    return "later"


def described(event: Event) -> Iterator[Event]:
    yield event


class Later:
    async def __call__(self, event: Event) -> str:
        return "later"


class Mail:
    def send(self, event: Event) -> None: ...

    def close(self) -> None: ...

    @classmethod
    def make(cls, event: Event) -> None: ...

    @staticmethod
    def post(event: Event) -> None: ...

    def __call__(self, event: Event) -> None: ...


GOOD = {
    "plain": plain,
    "with a default": with_a_default,
    "anything": anything,
    "wrapped": wrapped,
    "lambda": lambda event: None,
    "partial": partial(two, colour="red"),
    "method": Mail().send,
    "class method": Mail.make,
    "static method": Mail.post,
    "instance": Mail(),
    "builtin method": [].append,
    "builtin": repr,
    "mock": Mock(return_value=None),
}
BAD = {
    "nothing() cannot be called with the event alone, as a handler is": nothing,
    "two(event, colour) cannot be called with": two,
    "by_name(event, colour) cannot be called with": by_name,
    "send(self, event) cannot be called with": Mail.send,
    "close() cannot be called with": Mail().close,
}


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(f"sqlite:///{tmp_path}/store.db")
    yield gate
    gate.close()


@pytest.mark.parametrize("handler", GOOD.values(), ids=GOOD)
def test_what_can_be_called(gate: Gate, handler: Callable[..., Any]) -> None:
    """Whatever can be called with an event may be a handler."""
    assert gate.run({"id": "a"}, handler).status == "processed"


def test_what_is_not_known(gate: Gate) -> None:
    """What a partial needs is not told by its code, so it is not refused and fails at its first event."""
    assert gate.run({"id": "a"}, partial(nothing)).status == "failed"


@pytest.mark.parametrize(("said", "handler"), BAD.items(), ids=[said.partition("(")[0] for said in BAD])
def test_other_arguments(gate: Gate, said: str, handler: Callable[..., Any]) -> None:
    """A function that could never be called with an event is refused before there is one, by every way in."""
    ways: list[Callable[[], Any]] = [
        lambda: gate.run({"id": "a"}, handler),
        lambda: gate.run_batch([{"id": "a"}], handler),
        lambda: gate.lambda_handler(handler),
        lambda: gate.inbox(handler),
        lambda: gate.run_waiting(handler),
    ]
    for way in ways:
        with pytest.raises(SettingError, match=re.escape(said)):
            way()
    assert gate.run({"id": "a"}, plain).event.attempt == 1


@pytest.mark.parametrize("handler", [partial(later, colour="red"), Later(), partial(Later())])
def test_async_behind_something(gate: Gate, handler: Any) -> None:
    """What is async is known for it behind a partial and as an object, too: `arun` awaits it, and `run` refuses it."""
    with pytest.raises(SettingError, match="is async; the handler must be a plain function"):
        gate.run({"id": "a"}, handler)
    assert asyncio.run(gate.arun({"id": "a"}, handler)).result == "later"


def test_a_generator_behind_something(gate: Gate) -> None:
    """And a generator is refused."""
    with pytest.raises(SettingError, match="described is a generator"):
        gate.run({"id": "a"}, partial(described))


def test_a_handler_of_a_transaction(gate: Gate) -> None:
    """In a transaction it is called with two, and one that takes the event only is refused."""
    with pytest.raises(SettingError, match="with the event and its transaction"):
        gate.transaction({"id": "a"}, plain)  # type: ignore[arg-type]
    assert gate.transaction({"id": "a"}, lambda event, connection: None).status == "processed"


def test_guarded_functions_take_what_they_like(gate: Gate) -> None:
    """What `once` guards is called by its users, with whatever it takes."""
    assert gate.once(nothing)() is None
