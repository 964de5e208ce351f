"""Clocks in microseconds: wall time since 1970 for stores, time since boot for the validity of a lease."""

import time
from collections.abc import Callable

Clock = Callable[[], int]

# The boot clock runs while the machine sleeps or a Lambda is frozen; the monotonic clock may stop.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_read = time.clock_gettime_ns


def wall() -> int:
    """Wall time. Wall time can step back, so stores wrap this clock in `Steady`."""
    return time.time_ns() // 1_000


def since_boot() -> int:
    """Time since boot. This clock never steps, so it is used to measure durations."""
    return _read(_BOOT) // 1_000


class Steady:
    """Wall time that never goes back and never stops.

    When the wall clock steps back, this clock continues from its last value at the rate of the boot clock. If this
    clock stopped until the wall clock caught up, the lease of every crashed worker would last longer by the size of the
    step.
    """

    def __init__(self, wall: Clock = wall, boot: Clock = since_boot) -> None:
        self._wall = wall
        self._boot = boot
        self._last = 0
        self._last_boot = boot()

    def __call__(self, at_least: int = 0) -> int:
        """Return the current time, but not less than `at_least`: the latest time that other users of the same store
        have seen."""
        # The wall clock is read first. If the boot clock were read first, a pause between the two reads would put this
        # clock ahead of the wall clock.
        wall = self._wall()
        boot = self._boot()
        self._last = max(wall, at_least, self._last + boot - self._last_boot)
        self._last_boot = boot
        return self._last


def _frozen() -> int:
    return 0


def store_clock(clock: Clock | None) -> Steady:
    """The clock of a store. If `clock` is given, time moves only when `clock` moves."""
    return Steady() if clock is None else Steady(clock, _frozen)
