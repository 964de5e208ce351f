"""Handlers: what may be one, what it may answer, and how its errors are told."""

from collections.abc import Awaitable, Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from oncegate.errors import Bury, HandlerTimeout, RetryLater, SettingError
from oncegate.events import Event

Handler = Callable[[Event], Any]
AsyncHandler = Callable[[Event], Awaitable[Any]]
TransactionHandler = Callable[[Event, Any], Any]

LONGEST_ERROR: Final = 2_000
_MOST_CAUSES: Final = 8
# What HTTP clients raise when there is no answer, and when the answer is an error, by package and class.
_UNREACHABLE: Final = frozenset(
    {
        "httpx.TransportError",
        "requests.ConnectionError",
        "requests.Timeout",
        "urllib3.MaxRetryError",
        "urllib3.ProtocolError",
        "urllib3.TimeoutError",
        "aiohttp.ClientConnectionError",
        "botocore.ConnectionError",
        "botocore.HTTPClientError",
    }
)
_STATUS: Final = frozenset({"httpx.HTTPStatusError", "requests.HTTPError", "urllib.HTTPError"})
_GENERATOR: Final = 0x20 | 0x200  # CO_GENERATOR, CO_ASYNC_GENERATOR
_COROUTINE: Final = 0x80  # CO_COROUTINE
_MORE: Final = 0x04  # CO_VARARGS
_WRITTEN: Final = (FunctionType, MethodType)
_GIVEN: Final = ("the event alone", "the event and its transaction")
_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, dict, list, tuple})


def check_handler(handler: Callable[..., Any], *, may_await: bool = False, given: int | None = 1) -> None:
    """Refuse at once what could never do its work when it is called, with so many arguments if that is known."""
    if type(handler) is FunctionType:  # as nearly all are, with nothing to say against them
        code = handler.__code__
        unfit = _GENERATOR if may_await else _GENERATOR | _COROUTINE
        if code.co_argcount == given and not code.co_kwonlyargcount and not code.co_flags & unfit:
            return
    if not callable(handler):
        raise SettingError(f"handler={handler!r} cannot be called")
    flags = _flags(handler)
    if flags & _GENERATOR:
        raise SettingError(f"{_named(handler)} is a generator; the handler must be a function that does its work")
    if flags & _COROUTINE and not may_await:
        raise SettingError(f"{_named(handler)} is async; the handler must be a plain function, or use arun()")
    if given is not None and type(handler) in _WRITTEN and not _takes(handler, given):
        raise SettingError(f"{_spelled(handler)} cannot be called with {_GIVEN[given - 1]}, as a handler is")


def publish_target_of(handler: Any) -> str | None:
    """The place that a handler publishes events to, as sinks have it; None for all others."""
    place = getattr(handler, "publishes_to", None)
    return place if isinstance(place, str) else None


def is_coroutine(handler: Callable[..., Any]) -> bool:
    """Whether it is written as `async def`; inspect would say so of more, but takes long to import."""
    return bool(_flags(handler) & _COROUTINE)


def _takes(handler: Any, given: int) -> bool:
    """Whether a function or method can be called with so many arguments, as far as its code tells. Partials, classes
    and what else can be called are left to their first event."""
    code = getattr(handler, "__code__", None)
    if code is None:
        return True
    given += type(handler) is MethodType
    if code.co_argcount == given and not code.co_kwonlyargcount:
        return True
    needed = code.co_argcount - len(handler.__defaults__ or ())
    by_name = code.co_kwonlyargcount - len(handler.__kwdefaults__ or ())
    return needed <= given and (given <= code.co_argcount or bool(code.co_flags & _MORE)) and not by_name


def _spelled(handler: Any) -> str:
    """A function or method with the names of what it takes."""
    code, own = handler.__code__, type(handler) is MethodType
    return f"{handler.__name__}({', '.join(code.co_varnames[own : code.co_argcount + code.co_kwonlyargcount])})"


def _flags(handler: Any) -> int:
    code = getattr(handler, "__code__", None) or getattr(_behind(handler), "__code__", None)
    return int(getattr(code, "co_flags", 0))


def _behind(handler: Any) -> Any:
    """The function that a partial, a static or class method or an object ends in when it is called."""
    while isinstance(handler, partial | staticmethod | classmethod):
        handler = handler.func if isinstance(handler, partial) else handler.__func__
    return handler if hasattr(handler, "__code__") else type(handler).__call__


def _named(handler: Any) -> str:
    return str(getattr(handler, "__name__", None) or getattr(_behind(handler), "__qualname__", repr(handler)))


def plain(result: Any) -> Any:
    """The result, unless it is work that was only described: a coroutine or a generator has done nothing yet."""
    kind = type(result)
    if kind not in _PLAIN and any(hasattr(kind, method) for method in ("__await__", "send", "asend")):
        if hasattr(result, "close"):
            result.close()
        raise TypeError("the handler returned a coroutine or a generator, which nobody runs; write it as (async) def")
    return result


def error_text(error: BaseException) -> str:
    """An exception in one line of bounded length."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001  # an exception that cannot say what it is must not stop us
        text = f"(its text could not be read: {type(failure).__name__})"
    name = type(error).__name__
    if isinstance(error, RetryLater | Bury | HandlerTimeout) and text:  # a sentence for people already
        name, text = text, ""
    return (f"{name}: {text}" if text else name).encode("utf-8", "backslashreplace").decode()[:LONGEST_ERROR]


def loggable_error(error: BaseException) -> str:
    """What a log may say of an exception: its name, since its text may be of the payload, unless that is public."""
    if isinstance(error, HandlerTimeout):
        return error_text(error)
    return error_text(error) if isinstance(error, RetryLater | Bury) and error.public else type(error).__name__


def retry_delay_of(error: BaseException) -> int | None:
    """How long the next attempt shall wait, in microseconds, if the handler has said so."""
    return int(error.after * 1e6) if isinstance(error, RetryLater) and error.after is not None else None


def is_unavailable(error: BaseException) -> bool:
    """Whether a handler failed because something that it calls is unavailable: it raised `RetryLater`, which the sinks
    raise for 5xx, 429, timeouts and connections that fail; or ConnectionError or TimeoutError; or what an HTTP client
    raises for a connection that fails, a timeout, 429 or 5xx; or an exception from one of these (`raise … from error`).
    A handler that hangs is no such thing."""
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None or isinstance(cause, HandlerTimeout | Bury):
            return False
        if isinstance(cause, RetryLater | ConnectionError | TimeoutError) or _is_of_a_client(cause):
            return True
        cause = cause.__cause__
    return False


def _is_of_a_client(error: BaseException) -> bool:
    """Whether an exception of an HTTP client tells of a service that cannot be reached, or that answers 429 or 5xx. The
    clients are known by name: they are not imported for this."""
    names = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(error).__mro__}
    if names & _UNREACHABLE or isinstance(getattr(error, "reason", None), ConnectionError | TimeoutError):
        return True  # the reason is that of urllib's URLError
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "code", None)
    return bool(names & _STATUS) and isinstance(status, int) and (status == 429 or 500 <= status < 600)
