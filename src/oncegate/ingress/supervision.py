"""This module stops a worker by signals, and logs an outage once when it begins and once when it ends."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from oncegate.backoff import Backoff
from oncegate.clocks import Clock
from oncegate.durations import spoken

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_FIRST_PAUSE: Final = 200_000  # microseconds
_LONGEST_PAUSE: Final = 20_000_000
_log: Final = logging.getLogger("oncegate.work")


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in the running event loop on SIGTERM and Ctrl-C. Does nothing outside the main thread, because Python
    allows signal handlers only in the main thread."""

    def log_and_stop() -> None:
        _log.info("stopping; running handlers may finish")
        stop()

    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, log_and_stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            with suppress(TypeError):  # the previous handler was not installed by Python and cannot be restored
                signal.signal(number, previous[number])


class OutageLogger:
    """Tracks an outage of a store or a queue: its beginning, its end, and the pause before the next request. The log
    says at the beginning what follows from the outage."""

    def __init__(self, boot: Clock, consequence: str = "nothing is received until this ends") -> None:
        self._boot = boot
        self._consequence = consequence
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._began_at: int | None = None
        self._failed_at = 0  # the time of the last failure
        self._paused_until = 0

    @property
    def is_ongoing(self) -> bool:
        return self._began_at is not None

    @property
    def pause(self) -> float:
        """Seconds until the next request should be sent; 0 if there is no outage."""
        return max(0.0, (self._paused_until - self._boot()) / 1e6)

    def failed(self, reason: str) -> None:
        """Record a failure. A failure during a pause belongs to a request that was sent before the pause, so it does
        not make the pause longer."""
        now = self._failed_at = self._boot()
        if now < self._paused_until:
            return
        if self._began_at is None:
            self._began_at = now
            _log.warning("%s; %s", reason, self._consequence)
        self._paused_until = now + int(self._backoff.next_pause())

    def succeeded(self, what: str, sent_at: int | None = None) -> None:
        """Record a success. A success ends an outage. `what` describes what works again.

        `sent_at` is the time at which the request was sent, if its answer may have come long before this call. A
        request that was sent before the last failure does not prove that the outage has ended."""
        if self._began_at is not None and (sent_at is None or sent_at > self._failed_at):
            _log.warning("%s again, after %s", what, spoken(self._boot() - self._began_at))
            self._began_at, self._paused_until = None, 0
            self._backoff.reset()


async def wait_out(stopping: asyncio.Event, *outages: OutageLogger) -> None:
    """Wait for the pauses of these outages, or until `stopping` is set."""
    while (pause := max(outage.pause for outage in outages)) and not stopping.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stopping.wait()
