"""Containing: a handler that means to end the process, by sys.exit or the like, fails its event and nothing else."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from oncegate.events import Event
from oncegate.gate.handlers import Handler


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
