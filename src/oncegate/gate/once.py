"""Calls: a function that takes effect once for each set of arguments.

A call is an event like any other: its body is the arguments by name, its key is made of them and of the function's
name, and every further call with that key gets the first one's result.
"""

import sys
import time
from collections.abc import Callable
from functools import wraps
from inspect import Signature, isclass, iscoroutinefunction, signature, unwrap
from typing import Any, Final

from msgspec.structs import replace

from oncegate import keys
from oncegate.backoff import PollBackoff
from oncegate.canonical import decode, told_apart, written
from oncegate.claims import RELEASED
from oncegate.errors import (
    Buried,
    Conflict,
    InFlight,
    NoResult,
    SettingError,
    StoreUnavailable,
    Unconfirmed,
    Unreadable,
)
from oncegate.events import Event, Key
from oncegate.gate.engine import Engine
from oncegate.gate.handlers import check_handler, checked_result, is_coroutine
from oncegate.gate.job import CALL, Identified, Identifier
from oncegate.gate.observers import Observers
from oncegate.gate.outcome import Outcome

_RUN: Final = ("__main__", "__mp_main__")  # the program itself, and as multiprocessing names it in other processes


class OnceFunctions:
    """The functions of one gate that are guarded."""

    def __init__(self, engine: Engine, observers: Observers, identifier: Callable[..., Identifier]) -> None:
        self._engine = engine
        self._observers = observers
        self._identifier = identifier
        self._names: dict[str, Callable[..., Any]] = {}

    def guard(
        self, function: Callable[..., Any], name: str | None, key: Callable[[Event], Any] | None, wait: int
    ) -> Callable[..., Any]:
        """The function, once for each key."""
        if isinstance(function, staticmethod | classmethod):  # in whichever order the two are written
            return type(function)(self.guard(function.__func__, name, key, wait))
        check_handler(function, may_await=True, arguments=None)
        if isclass(function):
            raise SettingError(f"{function.__name__} is a class; once() guards functions and methods")
        call = _Call(function, self._named(function, name), key, self._identifier)
        waits = is_coroutine(function) or iscoroutinefunction(function)
        return self._awaited(call, wait) if waits else self._plain(call, wait)

    def _named(self, function: Callable[..., Any], name: str | None) -> str:
        """The name under which a function's calls are known. Two functions of one gate never share one."""
        name = name or _own_name(function)
        first = self._names.setdefault(name, function)
        if first is not function:
            raise SettingError(f"two functions are named {name!r}, so their calls would be one; name one once(name=…)")
        return name

    def _plain(self, call: "_Call", wait: int) -> Callable[..., Any]:
        @wraps(call.function)
        def once(*args: Any, **kwargs: Any) -> Any:
            run, patience = _Run(call.function, args, kwargs), PollBackoff(wait)
            while True:
                outcome = self._engine.run(call.identify(args, kwargs), run)
                pause = patience.pause() if outcome.status == "in_flight" else None
                if pause is None:
                    return self._answer(outcome, run)
                time.sleep(pause)

        return once

    def _awaited(self, call: "_Call", wait: int) -> Callable[..., Any]:
        @wraps(call.function)
        async def once(*args: Any, **kwargs: Any) -> Any:
            run, patience = _Run(call.function, args, kwargs), PollBackoff(wait)
            while True:
                outcome = await self._engine.arun(call.identify(args, kwargs), run.awaited)
                pause = patience.pause() if outcome.status == "in_flight" else None
                if pause is None:
                    return self._answer(outcome, run)
                import asyncio  # loaded already: this runs in an event loop

                await asyncio.sleep(pause)

        return once

    def _answer(self, outcome: Outcome, run: "_Run") -> Any:
        """What a call returns or raises: the first one what its function did, the others what is known of that."""
        self._observers.outcomes([outcome])
        if run.error is not None:
            raise run.error
        if outcome.status in ("processed", "unguarded"):
            return run.result
        waits = outcome.original is not None and outcome.original.state == RELEASED
        if outcome.status == "duplicate" and outcome.error is None and not waits:
            return outcome.result
        raise _problem(outcome, ran=run.started)


def _problem(outcome: Outcome, *, ran: bool) -> Exception:
    match outcome.status:
        case "in_flight":
            return InFlight(outcome)
        case "conflict":
            return Conflict(outcome)
        case "buried":
            return Buried(outcome)
        case "duplicate":
            return NoResult(outcome)
        case "invalid":
            return Unreadable(outcome.reason)
        case _:
            return Unconfirmed(outcome) if ran else StoreUnavailable(outcome.error or outcome.status)


class _Call:
    """A guarded function: how its arguments become an event and a job."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        key: Callable[[Event], Any] | None,
        identifier: Callable[..., Identifier],
    ) -> None:
        self.function = function
        self._name = name
        self._all_arguments = key is None
        self._signature = _signature(function, name)
        self._inner = keys.strategy(key or keys.content)
        self._identify = identifier(self._key)

    def identify(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Identified:
        raw, body = self._written(self._arguments(args, kwargs))
        return self._identify(Event(source=CALL, type=self._name, body=body, raw=raw))

    def _key(self, event: Event) -> Key:
        inner = self._inner(event)
        return replace(keys.make("once", event, [self._name, str(inner)], binds=inner.binds), parts=inner.parts)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name, defaults included, but for the object of a method."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        first = next(iter(arguments), None)
        if first in ("self", "cls") and _is_method_of(arguments[first], self.function):
            del arguments[first]
        return arguments

    def _written(self, arguments: dict[str, Any]) -> tuple[bytes, Any]:
        """The arguments as JSON, and as they are read from that. With a key of the user's own, those that are no JSON
        (a session, a client) are left out; without one, leaving something out could make two calls one."""
        try:
            return _json(arguments)
        except ValueError as error:
            kept = {name: value for name, value in arguments.items() if _is_json({name: value})}
            if self._all_arguments:
                other = next(name for name in arguments if name not in kept)
                raise SettingError(
                    f"{self._name}: the argument {other} is no JSON value, so calls cannot be told apart by it"
                    f" ({error}); say what to tell them apart by, such as once(key=keys.fields('order_id'))"
                ) from error
            return _json(kept)


def _signature(function: Callable[..., Any], name: str) -> Signature:
    try:
        return signature(function)
    except ValueError as error:
        raise SettingError(f"{name} does not tell what it takes; guard a function of your own that calls it") from error


def _is_method_of(first: Any, function: Callable[..., Any]) -> bool:
    """Whether a function is from the body of a class that its first argument is an object of, or is itself. That an
    argument is named `self` or `cls` does not say so."""
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    kinds = (*type(first).__mro__, *(first.__mro__ if isclass(first) else ()))
    return any(kind.__qualname__ == owner and kind.__module__ == function.__module__ for kind in kinds)


def _json(value: Any) -> tuple[bytes, Any]:
    raw = written(value)
    if not told_apart(value, raw):
        raise ValueError("nan and infinity are written as null")
    return raw, decode(raw)


def _is_json(value: Any) -> bool:
    try:
        _json(value)
    except ValueError:
        return False
    return True


class _Run:
    """One call as a handler: remembers what the function returned or raised, as Python has it."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self.started = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, _event: Event) -> Any:
        self.started = True
        try:
            self.result = checked_result(self._function(*self._args, **self._kwargs))
        except BaseException as error:
            self.error = error
            raise
        return self.result

    async def awaited(self, _event: Event) -> Any:
        self.started = True
        try:
            self.result = checked_result(await self._function(*self._args, **self._kwargs))
        except Exception as error:
            self.error = error
            raise
        return self.result


def _own_name(function: Callable[..., Any]) -> str:
    """Module and name, if they tell it from every other function."""
    name, module = getattr(function, "__qualname__", repr(function)), function.__module__
    if "<" in name or not hasattr(function, "__qualname__"):
        raise SettingError(f"{name} has no name that lasts; give it one: once(name=…)")
    return f"{_imported_as(function) if module in _RUN else module}.{name}"


def _imported_as(function: Callable[..., Any]) -> str:
    """The name that the program which a function is of would have if it were imported: a script has its file's name.
    The function's own code does not tell: it may be that of a wrapper, from elsewhere."""
    module = function.__module__
    names = getattr(unwrap(function), "__globals__", {})
    if names.get("__name__") != module:
        names = vars(sys.modules[module])
    spec, file = names.get("__spec__"), names.get("__file__")
    if spec is not None and spec.name not in _RUN:  # python -m; a profiler may name it as the program
        return str(spec.name)
    return module if file is None else file.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
