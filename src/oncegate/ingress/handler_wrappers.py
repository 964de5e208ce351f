"""Containing: a handler that means to end the process, by sys.exit or the like, fails its event and nothing else."""

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


class Interrupted(KeyboardInterrupt):
    """A person's Ctrl-C, where `interrupts_told_apart` took it."""


@contextmanager
def interrupts_told_apart() -> Iterator[None]:
    """Have Ctrl-C raise what no handler raises by itself. To be used in the main thread."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def contained(handler: Handler) -> Handler:
    """The same plain handler, which raises nothing but an Exception, unless a person interrupts it."""

    def called(event: Event) -> Any:
        try:
            return handler(event)
        except Exception:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise failure_of(error) from error

    return called


def is_interrupt(error: BaseException) -> bool:
    """Whether a person may have raised it by Ctrl-C: only in the main thread, and not where something else than Python
    and asyncio, which turn the signal into an exception, waits for it."""
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    waits = signal.getsignal(signal.SIGINT)
    return isinstance(error, Interrupted) or waits is signal.default_int_handler or isinstance(waits, partial)


def failure_of(error: BaseException) -> RuntimeError:
    """To end the process is to fail: raised in an event loop as it is, it would end all that runs there."""
    if isinstance(error, SystemExit):
        return RuntimeError(f"the handler called sys.exit({error.code!r})")
    return RuntimeError(f"the handler raised {type(error).__name__}")


# Handling: a handler that says in the log where it failed, and whose sys.exit fails its event and nothing else.


_log: Final = logging.getLogger("oncegate.work")
_Wrapper = TypeVar("_Wrapper", bound=Callable[..., Any])


def logged(handler: AsyncHandler | Handler) -> AsyncHandler | Handler:
    """The same handler. The gate keeps the text of its errors, which may be of the payload; the log has where they
    came from."""
    if is_async(handler):

        async def awaited(event: Event) -> Any:
            task = asyncio.current_task()
            try:
                return await handler(event)
            except Exception as error:
                _tell(event, error)
                raise
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) or is_interrupt(error) or _is_thrown_away(error, task):
                    raise
                _tell(event, error)
                raise failure_of(error) from error

        return _publishing(awaited, handler)

    def called(event: Event) -> Any:
        try:
            return handler(event)
        except Exception as error:
            _tell(event, error)
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) or is_interrupt(error):
                raise
            _tell(event, error)
            raise failure_of(error) from error

    return _publishing(called, handler)


def _publishing(wrapper: _Wrapper, handler: AsyncHandler | Handler) -> _Wrapper:
    """What calls a handler publishes to where that does."""
    if (place := publish_target_of(handler)) is not None:
        wrapper.publishes_to = place  # type: ignore[attr-defined]  # a function can have it
    return wrapper


def _is_thrown_away(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether it tells the coroutine that nobody will go on with it: then something else than its task runs now."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not task
    except RuntimeError:  # no loop runs
        return True


def _tell(event: Event, error: BaseException) -> None:
    """What a handler says on purpose needs no trace of where it came from."""
    where = "" if isinstance(error, RetryLater | Bury) else trace(error)
    _log.warning("the handler failed at event %r with %s\n%s", event.id, loggable_error(error), where)


def trace(error: BaseException) -> str:
    """Where an error came from; not what it said, which may be of the payload."""
    return "".join(traceback.format_tb(error.__traceback__))
