"""This module wraps handlers. A wrapper logs where a handler failed, and turns sys.exit and similar exceptions into a
failure of the event."""

import asyncio
import logging
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

from oncegate.errors import Bury, RetryLater
from oncegate.events import Event
from oncegate.gate.async_runner import is_async
from oncegate.gate.handlers import AsyncHandler, Handler, handler_kind, loggable_error, publish_target_of

_log: Final = logging.getLogger("oncegate.work")
_Wrapper = TypeVar("_Wrapper", bound=Callable[..., Any])


class Interrupted(KeyboardInterrupt):
    """The exception that Ctrl-C raises within `interrupts_told_apart`."""


@contextmanager
def interrupts_told_apart() -> Iterator[None]:
    """Make Ctrl-C raise `Interrupted`, so that Ctrl-C can be distinguished from a KeyboardInterrupt that a handler
    raises. Works in the main thread only."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def contained(handler: Handler) -> Handler:
    """Wrap a plain handler so that it raises only subclasses of Exception. The interrupt by Ctrl-C is still raised."""

    def call(event: Event) -> Any:
        try:
            return handler(event)
        except Exception:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise failure_of(error) from error

    return call


def logged(handler: AsyncHandler | Handler, *, has_log: bool = False) -> AsyncHandler | Handler:
    """Wrap a handler so that it raises only subclasses of Exception, and each of its failures is logged once. Ctrl-C
    and cancellation are still raised.

    `has_log` says that an observer logs the outcomes. The line of the outcome then reports the failure, and the wrapper
    logs nothing. Otherwise the wrapper logs the failure with its stack. The message of the exception is not logged,
    because it may contain parts of the payload. The gate stores the message with the event."""
    failed = _ignore_failure if has_log else partial(_log_failure, handler_kind(handler))
    if is_async(handler):

        async def call_async(event: Event) -> Any:
            task = asyncio.current_task()
            try:
                return await handler(event)
            except Exception as error:
                failed(event, error)
                raise
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) or is_interrupt(error) or _is_discarded(error, task):
                    raise
                failed(event, error)
                raise failure_of(error) from error

        return _with_publish_target(call_async, handler)

    def call(event: Event) -> Any:
        try:
            return handler(event)
        except Exception as error:
            failed(event, error)
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) or is_interrupt(error):
                raise
            failed(event, error)
            raise failure_of(error) from error

    return _with_publish_target(call, handler)


def is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C may have raised the error. Ctrl-C raises an error only in the main thread, and only if the SIGINT
    handler was installed by Python, by asyncio or by `interrupts_told_apart`."""
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    installed = signal.getsignal(signal.SIGINT)
    return isinstance(error, Interrupted) or installed is signal.default_int_handler or isinstance(installed, partial)


def failure_of(error: BaseException) -> RuntimeError:
    """Returns the error that replaces an exception such as SystemExit. If SystemExit itself were raised, it would end
    the event loop and everything that runs in the event loop."""
    if isinstance(error, SystemExit):
        return RuntimeError(f"the handler called sys.exit({error.code!r})")
    return RuntimeError(f"the handler raised {type(error).__name__}")


def trace(error: BaseException) -> str:
    """Returns the stack of an error. The message of the error is left out, because it may contain parts of the
    payload."""
    return "".join(traceback.format_tb(error.__traceback__))


def _with_publish_target(wrapper: _Wrapper, handler: AsyncHandler | Handler) -> _Wrapper:
    """Copy the publish target of a handler to its wrapper."""
    if (target := publish_target_of(handler)) is not None:
        wrapper.publishes_to = target  # type: ignore[attr-defined]  # functions accept attributes
    return wrapper


def _is_discarded(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether the error is the GeneratorExit of a coroutine that is being closed or garbage-collected. In this case the
    current task is not the task of the coroutine."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not task
    except RuntimeError:  # no loop runs
        return True


def _ignore_failure(_event: Event, _error: BaseException) -> None:
    """An observer logs the outcome of the event."""


def _log_failure(kind: str, event: Event, error: BaseException) -> None:
    """Log the failure of a handler or a sink. The error of a sink says what failed. RetryLater and Bury are raised on
    purpose, so these are logged without a stack."""
    if kind != "handler":
        _log.warning("event %r: %s", event.id, loggable_error(error))
        return
    stack = "" if isinstance(error, RetryLater | Bury) else f"\n{trace(error)}"
    _log.warning("the handler failed at event %r with %s%s", event.id, loggable_error(error), stack)
