"""Handling: a handler that says in the log where it failed, and whose sys.exit fails its event and nothing else."""

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import Any, Final, TypeVar

from oncegate.errors import Bury, RetryLater
from oncegate.events import Event
from oncegate.gate.concurrent import is_async
from oncegate.gate.handlers import AsyncHandler, Handler, place_of, told
from oncegate.work.containing import failure_of, is_interrupt

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
    if (place := place_of(handler)) is not None:
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
    _log.warning("the handler failed at event %r with %s\n%s", event.id, told(error), where)


def trace(error: BaseException) -> str:
    """Where an error came from; not what it said, which may be of the payload."""
    return "".join(traceback.format_tb(error.__traceback__))
