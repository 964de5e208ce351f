"""Stop a worker by signals, and log an outage once when it begins and once when it ends."""

import asyncio
import logging
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from oncegate.clocks import Clock
from oncegate.durations import spoken

# Signals that stop a worker.


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


# Trouble: something that fails for a while, told once when it begins and once when it is over.


_log: Final = logging.getLogger("oncegate.work")
_FIRST_PAUSE: Final = 200_000
_LONGEST_PAUSE: Final = 20_000_000


class OutageLogger:
    """Counts how long to leave something alone: longer each time, and at random, so that many do not come back at
    once."""

    def __init__(self, boot: Clock) -> None:
        self._boot = boot
        self._since: int | None = None
        self._until = 0
        self._longest = _FIRST_PAUSE

    @property
    def pause(self) -> float:
        """For how many seconds more it is to be left alone."""
        return max(0.0, (self._until - self._boot()) / 1e6)

    def met(self, why: str) -> None:
        """It failed. What was under way together is one failure."""
        now = self._boot()
        if now < self._until:
            return
        if self._since is None:
            self._since = now
            _log.warning("%s; nothing is received until that is over", why)
        self._until = now + int(random.uniform(self._longest / 2, self._longest))  # noqa: S311  # no secret
        self._longest = min(2 * self._longest, _LONGEST_PAUSE)

    def over(self, what: str) -> None:
        """It works."""
        if self._since is not None:
            _log.warning("%s again, after %s", what, spoken(self._boot() - self._since))
            self._since, self._until, self._longest = None, 0, _FIRST_PAUSE
