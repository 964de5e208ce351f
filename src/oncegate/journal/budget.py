"""Limit the processor time of the recorder's thread: the thread shares the interpreter lock with the handlers."""

import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.1  # of the processor time of the other threads, for a service or a worker
SHARE_IN_PROGRAM: Final = 0.4  # the same for a program that asked for a journal
_WHEN_IDLE: Final = 0.5  # of one processor
_BUSY: Final = 0.25  # of one processor
_SATURATED: Final = 0.4  # of one processor; beyond this, details would cost throughput
_LEAST: Final = 0.02  # of one processor
_BURST: Final = 0.05  # seconds of processor time that can be saved up
_INTERVAL: Final = 0.05  # seconds; the load of a shorter time says little
_DELAYED: Final = 0.002  # seconds; a thread that wakes up this late competes with other threads or processes


class CpuBudget:
    """An allowance of processor time. It shrinks with the processor time of the thread that calls `update`.

    While the process is busy, the allowance grows with the processor time of the other threads of this process, times
    `share`. So the thread slows the others down by about that share, even if other processes take most of the machine.
    The process is busy if its other threads use more than a quarter of a processor, or if the thread wakes up late
    from a wait. Otherwise the allowance grows with time."""

    def __init__(
        self,
        share: float = SHARE,
        clock: Callable[[], float] = time.monotonic,
        own: Callable[[], float] = time.thread_time,
        whole: Callable[[], float] = time.process_time,
    ) -> None:
        self._share = share
        self._clock = clock
        self._own = own
        self._whole = whole
        self._balance = _BURST
        self._is_delayed = self._is_saturated = False
        self._at, self._own_at, self._whole_at = self._clock(), self._own(), self._whole()
        self._own_last = self._own_at

    def note_wait(self, delay: float) -> None:
        """Note by how many seconds the thread woke up late."""
        self._is_delayed = delay > _DELAYED

    def update(self) -> None:
        """Add the allowance since the last update, and subtract the processor time that was used since then."""
        now, own = self._clock(), self._own()
        self._balance -= own - self._own_last
        self._own_last = own
        passed = now - self._at
        if passed >= _INTERVAL:
            whole = self._whole()
            others = whole - self._whole_at - (own - self._own_at)
            is_busy = self._is_delayed or others > _BUSY * passed
            self._is_saturated = self._is_delayed or others > _SATURATED * passed
            grown = max(_LEAST * passed, self._share * others) if is_busy else _WHEN_IDLE * passed
            self._balance = min(_BURST, self._balance + grown)
            self._at, self._own_at, self._whole_at = now, own, whole

    @property
    def allows_details(self) -> bool:
        """Whether there is time for more than the plain rows."""
        return self._balance > _BURST / 2 and not self._is_saturated

    @property
    def allows_rows(self) -> bool:
        return self._balance > 0
