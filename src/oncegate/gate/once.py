"""`@gate.once` makes a function take effect once for each set of arguments.

A call is an event like any other event. The body of the event has the arguments by name. The key is made of the
arguments and the name of the function. Every further call with the same key returns the result of the first call.
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
from oncegate.canonical import decode, is_lossless, written
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

_MAIN_MODULES: Final = ("__main__", "__mp_main__")  # the second name is used in child processes of multiprocessing


class OnceFunctions:
    """The guarded functions of one gate."""

    def __init__(self, engine: Engine, observers: Observers, identifier: Callable[..., Identifier]) -> None:
        self._engine = engine
        self._observers = observers
        self._identifier = identifier
        self._names: dict[str, Callable[..., Any]] = {}

    def guard(
        self, function: Callable[..., Any], name: str | None, key: Callable[[Event], Any] | None, wait: int
    ) -> Callable[..., Any]:
        """Wrap the function so that it runs once for each key. `wait` is in microseconds."""
        if isinstance(function, staticmethod | classmethod):  # @gate.once may be written above or below @staticmethod
            return type(function)(self.guard(function.__func__, name, key, wait))
        check_handler(function, may_await=True, arguments=None)
        if isclass(function):
            raise SettingError(f"{function.__name__} is a class; once() guards functions and methods")
        guarded = _GuardedFunction(function, self._register(function, name), key, self._identifier)
        is_async = is_coroutine(function) or iscoroutinefunction(function)
        return self._wrap_async(guarded, wait) if is_async else self._wrap_sync(guarded, wait)

    def _register(self, function: Callable[..., Any], name: str | None) -> str:
        """Register and return the name of a function. The name is part of the key of each call. Raises SettingError if
        another function of this gate has the same name."""
        name = name or _default_name(function)
        first = self._names.setdefault(name, function)
        if first is not function:
            raise SettingError(
                f"two functions have the name {name!r}, so their calls would share keys; give one of them another"
                " name with once(name=…)"
            )
        return name

    def _wrap_sync(self, guarded: "_GuardedFunction", wait: int) -> Callable[..., Any]:
        @wraps(guarded.function)
        def once(*args: Any, **kwargs: Any) -> Any:
            call, backoff = _Call(guarded.function, args, kwargs), PollBackoff(wait)
            while True:
                outcome = self._engine.run(guarded.identify(args, kwargs), call)
                pause = backoff.pause() if outcome.status == "in_flight" else None
                if pause is None:
                    return self._result(outcome, call)
                time.sleep(pause)

        return once

    def _wrap_async(self, guarded: "_GuardedFunction", wait: int) -> Callable[..., Any]:
        @wraps(guarded.function)
        async def once(*args: Any, **kwargs: Any) -> Any:
            call, backoff = _Call(guarded.function, args, kwargs), PollBackoff(wait)
            while True:
                outcome = await self._engine.arun(guarded.identify(args, kwargs), call.run_async)
                pause = backoff.pause() if outcome.status == "in_flight" else None
                if pause is None:
                    return self._result(outcome, call)
                import asyncio  # loaded already: this runs in an event loop

                await asyncio.sleep(pause)

        return once

    def _result(self, outcome: Outcome, call: "_Call") -> Any:
        """Return the result of a call, or raise its error. The call that ran the function returns or raises the same as
        the function. A further call returns the stored result, or raises if there is no stored result."""
        self._observers.outcomes([outcome])
        if call.error is not None:
            raise call.error
        if outcome.status in ("processed", "unguarded"):
            return call.result
        was_redriven = outcome.original is not None and outcome.original.state == RELEASED
        if outcome.status == "duplicate" and outcome.error is None and not was_redriven:
            return outcome.result
        raise _exception_for(outcome, has_run=call.started)


def _exception_for(outcome: Outcome, *, has_run: bool) -> Exception:
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
            return Unconfirmed(outcome) if has_run else StoreUnavailable(outcome.error or outcome.status)


class _GuardedFunction:
    """A guarded function. `identify` turns the arguments of a call into an event and a job."""

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
        raw, body = self._as_json(self._arguments(args, kwargs))
        return self._identify(Event(source=CALL, type=self._name, body=body, raw=raw))

    def _key(self, event: Event) -> Key:
        inner = self._inner(event)
        return replace(keys.make("once", event, [self._name, str(inner)], binds=inner.binds), parts=inner.parts)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns all arguments by name, including defaults, but without the object or class of a method."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        first = next(iter(arguments), None)
        if first in ("self", "cls") and _is_method_of(arguments[first], self.function):
            del arguments[first]
        return arguments

    def _as_json(self, arguments: dict[str, Any]) -> tuple[bytes, Any]:
        """Returns the arguments as JSON, and as decoded from this JSON. If the user passed a key, arguments that are
        not JSON values (a session, a client) are left out. Without a key, such an argument raises SettingError, because
        two different calls could get the same key."""
        try:
            return _encoded(arguments)
        except ValueError as error:
            encodable = {name: value for name, value in arguments.items() if _is_json({name: value})}
            if self._all_arguments:
                other = next(name for name in arguments if name not in encodable)
                raise SettingError(
                    f"{self._name}: the argument {other} is not a JSON value, so it cannot be part of the key"
                    f" ({error}); pass a key, such as once(key=keys.fields('order_id'))"
                ) from error
            return _encoded(encodable)


def _signature(function: Callable[..., Any], name: str) -> Signature:
    try:
        return signature(function)
    except ValueError as error:
        raise SettingError(f"{name} has no signature; guard a function of your own that calls it") from error


def _is_method_of(first: Any, function: Callable[..., Any]) -> bool:
    """Whether a function is a method of its first argument: it is defined in the class of this argument, or in the
    argument itself if the argument is a class. The parameter name `self` or `cls` alone does not prove this."""
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    kinds = (*type(first).__mro__, *(first.__mro__ if isclass(first) else ()))
    return any(kind.__qualname__ == owner and kind.__module__ == function.__module__ for kind in kinds)


def _encoded(value: Any) -> tuple[bytes, Any]:
    raw = written(value)
    if not is_lossless(value, raw):
        raise ValueError("nan and infinity are encoded as null")
    return raw, decode(raw)


def _is_json(value: Any) -> bool:
    try:
        _encoded(value)
    except ValueError:
        return False
    return True


class _Call:
    """One call of the function, used as a handler. It stores the object that the function returned or raised. This
    object may differ from the decoded JSON that further calls return."""

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

    async def run_async(self, _event: Event) -> Any:
        self.started = True
        try:
            self.result = checked_result(await self._function(*self._args, **self._kwargs))
        except Exception as error:
            self.error = error
            raise
        return self.result


def _default_name(function: Callable[..., Any]) -> str:
    """Returns the module and the qualified name. Raises SettingError if they do not identify the function."""
    name, module = getattr(function, "__qualname__", repr(function)), function.__module__
    if "<" in name or not hasattr(function, "__qualname__"):
        raise SettingError(f"{name} has no name that is the same in every process; pass one with once(name=…)")
    return f"{_main_module_name(function) if module in _MAIN_MODULES else module}.{name}"


def _main_module_name(function: Callable[..., Any]) -> str:
    """Returns the name that the main module would have if it were imported; for a script, the name of its file. The
    main module defines the function. The code object of the function cannot be used to find this name, because it may
    belong to a wrapper from another module."""
    module = function.__module__
    names = getattr(unwrap(function), "__globals__", {})
    if names.get("__name__") != module:
        names = vars(sys.modules[module])
    spec, file = names.get("__spec__"), names.get("__file__")
    if spec is not None and spec.name not in _MAIN_MODULES:  # python -m; a profiler may set the name __main__
        return str(spec.name)
    return module if file is None else file.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
