"""Handling: a handler that says in the log where it failed, and whose sys.exit fails its event and nothing else."""

import logging
import traceback
from typing import Any, Final

from oncegate.errors import Bury, RetryLater
from oncegate.events import Event
from oncegate.gate.concurrent import is_async
from oncegate.gate.handlers import AsyncHandler, Handler, told

_log: Final = logging.getLogger("oncegate.work")


def logged(handler: AsyncHandler | Handler) -> AsyncHandler | Handler:
    """The same handler. The gate keeps the text of its errors, which may be of the payload; the log has where they
    came from."""
    if is_async(handler):

        async def awaited(event: Event) -> Any:
            try:
                return await handler(event)
            except Exception as error:
                _tell(event, error)
                raise
            except SystemExit as error:
                raise _told_exit(event, error) from error

        return awaited

    def called(event: Event) -> Any:
        try:
            return handler(event)
        except Exception as error:
            _tell(event, error)
            raise
        except SystemExit as error:
            raise _told_exit(event, error) from error

    return called


def _told_exit(event: Event, error: SystemExit) -> RuntimeError:
    """To call sys.exit is to fail: raised in an event loop as it is, it would end all that runs there."""
    _tell(event, error)
    return RuntimeError(f"the handler called sys.exit({error.code!r})")


def _tell(event: Event, error: BaseException) -> None:
    """What a handler says on purpose needs no trace of where it came from."""
    where = "" if isinstance(error, RetryLater | Bury) else trace(error)
    _log.warning("the handler failed at event %r with %s\n%s", event.id, told(error), where)


def trace(error: BaseException) -> str:
    """Where an error came from; not what it said, which may be of the payload."""
    return "".join(traceback.format_tb(error.__traceback__))
