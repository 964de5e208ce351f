"""This module checks handlers and their results, and describes the errors of handlers."""

from collections.abc import Awaitable, Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from oncegate.errors import Bury, HandlerTimeout, RetryLater, SettingError
from oncegate.events import Event

Handler = Callable[[Event], Any]
AsyncHandler = Callable[[Event], Awaitable[Any]]
TransactionHandler = Callable[[Event, Any], Any]

LONGEST_ERROR: Final = 2_000  # characters
_MOST_CAUSES: Final = 8
_MOST_FRAMES: Final = 20
_PACKAGE: Final = __file__.rpartition("gate")[0]
# Exceptions of HTTP clients, by package and class. They are compared by name, so that no client has to be imported.
_CONNECTION_ERRORS: Final = frozenset(
    {
        "httpx.TransportError",
        "httpx2.TransportError",
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
_STATUS_ERRORS: Final = frozenset(
    {"httpx.HTTPStatusError", "httpx2.HTTPStatusError", "requests.HTTPError", "urllib.HTTPError"}
)
_GENERATOR: Final = 0x20 | 0x200  # CO_GENERATOR, CO_ASYNC_GENERATOR
_COROUTINE: Final = 0x80  # CO_COROUTINE
_VARARGS: Final = 0x04  # CO_VARARGS
_FUNCTIONS: Final = (FunctionType, MethodType)
_CALLED_WITH: Final = ("one argument, the event", "two arguments, the event and its transaction")
_PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str, bytes, dict, list, tuple})


def check_handler(handler: Callable[..., Any], *, may_await: bool = False, arguments: int | None = 1) -> None:
    """Raise SettingError if the handler can never be called with this number of arguments. With `arguments=None`, the
    number of arguments is not checked."""
    if type(handler) is FunctionType:  # a fast check that nearly all handlers pass
        code = handler.__code__
        unfit = _GENERATOR if may_await else _GENERATOR | _COROUTINE
        if code.co_argcount == arguments and not code.co_kwonlyargcount and not code.co_flags & unfit:
            return
    if not callable(handler):
        raise SettingError(f"handler={handler!r} is not callable; pass a function that takes the event")
    flags = _flags(handler)
    if flags & _GENERATOR:
        raise SettingError(
            f"{_name(handler)} is a generator, which does nothing when it is called; use return, not yield"
        )
    if flags & _COROUTINE and not may_await:
        raise SettingError(f"{_name(handler)} is async; the handler must be a plain function, or use arun()")
    if arguments is not None and type(handler) in _FUNCTIONS and not _accepts(handler, arguments):
        called_with = _CALLED_WITH[arguments - 1]
        raise SettingError(f"{_with_parameters(handler)} cannot be the handler, which is called with {called_with}")


def publish_target_of(handler: Any) -> str | None:
    """Returns the destination to which the handler publishes events; None if the handler does not publish events."""
    destination = getattr(handler, "publishes_to", None)
    return destination if isinstance(destination, str) else None


def is_coroutine(handler: Callable[..., Any]) -> bool:
    """Whether the handler is defined with `async def`. `inspect.iscoroutinefunction` recognises more kinds of
    coroutines, but the import of inspect takes long."""
    return bool(_flags(handler) & _COROUTINE)


def _accepts(handler: Any, arguments: int) -> bool:
    """Whether a function or method can be called with this number of arguments. Partials, classes and other callables
    are not checked. If they do not fit, they fail at their first event."""
    code = getattr(handler, "__code__", None)
    if code is None:
        return True
    arguments += type(handler) is MethodType
    if code.co_argcount == arguments and not code.co_kwonlyargcount:
        return True
    required = code.co_argcount - len(handler.__defaults__ or ())
    required_by_name = code.co_kwonlyargcount - len(handler.__kwdefaults__ or ())
    not_too_many = arguments <= code.co_argcount or bool(code.co_flags & _VARARGS)
    return required <= arguments and not_too_many and not required_by_name


def _with_parameters(handler: Any) -> str:
    """Returns the name and parameters of a function or method, such as `send(event, colour)`."""
    code, is_bound = handler.__code__, type(handler) is MethodType
    return f"{handler.__name__}({', '.join(code.co_varnames[is_bound : code.co_argcount + code.co_kwonlyargcount])})"


def _flags(handler: Any) -> int:
    code = getattr(handler, "__code__", None) or getattr(_unwrapped(handler), "__code__", None)
    return int(getattr(code, "co_flags", 0))


def _unwrapped(handler: Any) -> Any:
    """Returns the function that a partial, a static or class method, or a callable object finally calls."""
    while isinstance(handler, partial | staticmethod | classmethod):
        handler = handler.func if isinstance(handler, partial) else handler.__func__
    return handler if hasattr(handler, "__code__") else type(handler).__call__


def _name(handler: Any) -> str:
    return str(getattr(handler, "__name__", None) or getattr(_unwrapped(handler), "__qualname__", repr(handler)))


def checked_result(result: Any) -> Any:
    """Returns the result. Raises TypeError if the result is a coroutine or a generator, because its code has not
    run."""
    kind = type(result)
    if kind not in _PLAIN_TYPES and any(hasattr(kind, method) for method in ("__await__", "send", "asend")):
        if hasattr(result, "close"):
            result.close()
        raise TypeError(
            "the handler returned a coroutine or a generator, which was not run; write it as (async) def without yield"
        )
    return result


def error_text(error: BaseException) -> str:
    """Returns an exception as text of at most LONGEST_ERROR characters."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001  # str() of a user's exception may raise
        text = f"(str() of it raised {type(failure).__name__})"
    name = type(error).__name__
    if isinstance(error, RetryLater | Bury | HandlerTimeout) and text:  # the text is a full sentence
        name, text = text, ""
    return (f"{name}: {text}" if text else name).encode("utf-8", "backslashreplace").decode()[:LONGEST_ERROR]


def loggable_error(error: BaseException) -> str:
    """Returns the part of an exception that a log may contain. This is only the name of its class, because its text may
    quote the payload. If the text is public, it is included. If a part of the text is public, only that part is
    included."""
    if isinstance(error, HandlerTimeout):
        return error_text(error)
    public = error.public if isinstance(error, RetryLater | Bury) else False
    if isinstance(public, str):
        return public
    return error_text(error) if public else type(error).__name__


def failure_stack(error: BaseException) -> str | None:
    """Returns where a handler failed: one line for each frame, the innermost frame last. The lines contain no values
    and no text of the exception. The frames of Oncegate that call the handler are left out. Returns None for an
    exception that is raised on purpose, and if no frame is left."""
    if isinstance(error, RetryLater | Bury | HandlerTimeout):
        return None
    frames: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if frames or not code.co_filename.startswith(_PACKAGE):
            frames.append(f"{code.co_filename}:{trace.tb_lineno} in {code.co_qualname}")
        trace = trace.tb_next
    if not frames and error.__cause__ is not None:  # a wrapper has replaced the exception
        return failure_stack(error.__cause__)
    return "\n".join(frames[-_MOST_FRAMES:]) or None


def handler_kind(handler: Any) -> str:
    """Returns "forward" or "publish" for a sink, and "handler" for any other handler."""
    kind = getattr(handler, "kind", None)
    return kind if kind in ("forward", "publish") else "handler"


def retry_delay_of(error: BaseException) -> int | None:
    """Returns the delay before the next attempt that the handler set with `RetryLater`, in microseconds; None if the
    handler set no delay."""
    return int(error.after * 1e6) if isinstance(error, RetryLater) and error.after is not None else None


def is_unavailable(error: BaseException) -> bool:
    """Whether a handler failed because a service that it calls is unavailable. This is the case if the handler raised

    - `RetryLater`, which the sinks raise for 5xx, 429, timeouts and failed connections;
    - ConnectionError or TimeoutError;
    - the exception of an HTTP client for a failed connection, a timeout, 429 or 5xx;
    - another exception that was caused by one of these exceptions (`raise … from error`).

    Returns False for a handler that exceeded `handler_timeout`."""
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None or isinstance(cause, HandlerTimeout | Bury):
            return False
        if isinstance(cause, RetryLater | ConnectionError | TimeoutError) or _is_client_error(cause):
            return True
        cause = cause.__cause__
    return False


def _is_client_error(error: BaseException) -> bool:
    """Whether an HTTP client raised this error because a service cannot be reached, or because it answered 429 or
    5xx."""
    names = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(error).__mro__}
    if names & _CONNECTION_ERRORS or isinstance(getattr(error, "reason", None), ConnectionError | TimeoutError):
        return True  # `reason`: urllib's URLError has the cause in this attribute
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "code", None)
    return bool(names & _STATUS_ERRORS) and isinstance(status, int) and (status == 429 or 500 <= status < 600)
