"""Wrap a handler: log where it failed, and turn sys.exit and similar exceptions into a failure of its event."""

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
from oncegate.gate.handlers import AsyncHandler, Handler, loggable_error, publish_target_of

_log: Final = logging.getLogger("oncegate.work")
_Wrapper = TypeVar("_Wrapper", bound=Callable[..., Any])


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, as raised within `interrupts_told_apart`."""


@contextmanager
def interrupts_told_apart() -> Iterator[None]:
    """Make Ctrl-C raise `Interrupted`, which no handler raises by itself. Works in the main thread only."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def contained(handler: Handler) -> Handler:
    """A plain handler that raises only subclasses of Exception, except for Ctrl-C."""

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


def logged(handler: AsyncHandler | Handler) -> AsyncHandler | Handler:
    """A handler that logs the stack of each failure, and raises only subclasses of Exception, except for Ctrl-C and
    cancellation. The log gets no message of the exception, which may contain parts of the payload; the gate stores
    the message with the event."""
    if is_async(handler):

        async def call_async(event: Event) -> Any:
            task = asyncio.current_task()
            try:
                return await handler(event)
            except Exception as error:
                _log_failure(event, error)
                raise
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) or is_interrupt(error) or _is_discarded(error, task):
                    raise
                _log_failure(event, error)
                raise failure_of(error) from error

        return _with_publish_target(call_async, handler)

    def call(event: Event) -> Any:
        try:
            return handler(event)
        except Exception as error:
            _log_failure(event, error)
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) or is_interrupt(error):
                raise
            _log_failure(event, error)
            raise failure_of(error) from error

    return _with_publish_target(call, handler)


def is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C may have raised the error. That is possible only in the main thread, and only if the handler of
    SIGINT is Python's own, asyncio's, or that of `interrupts_told_apart`."""
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    installed = signal.getsignal(signal.SIGINT)
    return isinstance(error, Interrupted) or installed is signal.default_int_handler or isinstance(installed, partial)


def failure_of(error: BaseException) -> RuntimeError:
    """The failure that stands for an exception such as SystemExit. Raised as it is, that exception would end the event
    loop and everything that runs in it."""
    if isinstance(error, SystemExit):
        return RuntimeError(f"the handler called sys.exit({error.code!r})")
    return RuntimeError(f"the handler raised {type(error).__name__}")


def trace(error: BaseException) -> str:
    """The stack of an error, without its message, which may contain parts of the payload."""
    return "".join(traceback.format_tb(error.__traceback__))


def _with_publish_target(wrapper: _Wrapper, handler: AsyncHandler | Handler) -> _Wrapper:
    """Copy the publish target of a handler to its wrapper."""
    if (target := publish_target_of(handler)) is not None:
        wrapper.publishes_to = target  # type: ignore[attr-defined]  # functions accept attributes
    return wrapper


def _is_discarded(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether the error is the GeneratorExit of a coroutine that is closed or garbage-collected. Then the coroutine
    does not run in its own task."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not task
    except RuntimeError:  # no loop runs
        return True


def _log_failure(event: Event, error: BaseException) -> None:
    """RetryLater and Bury are raised on purpose, so they are logged without a stack."""
    stack = "" if isinstance(error, RetryLater | Bury) else trace(error)
    _log.warning("the handler failed at event %r with %s\n%s", event.id, loggable_error(error), stack)
