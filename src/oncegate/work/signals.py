"""Signals that stop a worker."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Where signals can be had, which is in the main thread, SIGTERM and Ctrl-C call `stop` in the running loop."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    try:
        yield
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
            with suppress(TypeError):  # set by somebody who is not Python
                signal.signal(each, before[each])
