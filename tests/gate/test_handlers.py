"""Handlers: which callables are accepted, and which are refused before their first event."""

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
    "nothing() cannot be the handler, which is called with one argument, the event": nothing,
    "two(event, colour) cannot be the handler": two,
    "by_name(event, colour) cannot be the handler": by_name,
    "send(self, event) cannot be the handler": Mail.send,
    "close() cannot be the handler": Mail().close,
}


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(f"sqlite:///{tmp_path}/store.db")
    yield gate
    gate.close()


@pytest.mark.parametrize("handler", GOOD.values(), ids=GOOD)
def test_accepted(gate: Gate, handler: Callable[..., Any]) -> None:
    """Every callable that can be called with an event may be a handler."""
    assert gate.run({"id": "a"}, handler).status == "processed"


def test_partial_is_not_checked(gate: Gate) -> None:
    """The arguments of a partial are not checked: it is not refused, and fails at its first event."""
    assert gate.run({"id": "a"}, partial(nothing)).status == "failed"


@pytest.mark.parametrize(("message", "handler"), BAD.items(), ids=[message.partition("(")[0] for message in BAD])
def test_wrong_arguments(gate: Gate, message: str, handler: Callable[..., Any]) -> None:
    """Every entry point refuses a function that cannot be called with an event, before the first event."""
    entry_points: list[Callable[[], Any]] = [
        lambda: gate.run({"id": "a"}, handler),
        lambda: gate.run_batch([{"id": "a"}], handler),
        lambda: gate.lambda_handler(handler),
        lambda: gate.inbox(handler),
        lambda: gate.run_waiting(handler),
    ]
    for enter in entry_points:
        with pytest.raises(SettingError, match=re.escape(message)):
            enter()
    assert gate.run({"id": "a"}, plain).event.attempt == 1


@pytest.mark.parametrize("handler", [partial(later, colour="red"), Later(), partial(Later())])
def test_wrapped_async_handler(gate: Gate, handler: Any) -> None:
    """An async function is recognised inside a partial and as `__call__` of an object: `arun` awaits it, and `run`
    refuses it."""
    with pytest.raises(SettingError, match="is async; the handler must be a plain function"):
        gate.run({"id": "a"}, handler)
    assert asyncio.run(gate.arun({"id": "a"}, handler)).result == "later"


def test_wrapped_generator(gate: Gate) -> None:
    """A generator is refused inside a partial, too."""
    with pytest.raises(SettingError, match="described is a generator"):
        gate.run({"id": "a"}, partial(described))


def test_transaction_handler(gate: Gate) -> None:
    """The handler of a transaction is called with two arguments; a handler that takes only the event is refused."""
    with pytest.raises(SettingError, match="with two arguments, the event and its transaction"):
        gate.transaction({"id": "a"}, plain)  # type: ignore[arg-type]
    assert gate.transaction({"id": "a"}, lambda event, connection: None).status == "processed"


def test_once_functions_take_any_arguments(gate: Gate) -> None:
    """A function that `once` guards is called by its users, so its arguments are not checked."""
    assert gate.once(nothing)() is None
