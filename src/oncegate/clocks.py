"""Where time comes from: microseconds since 1970 for stores, since boot for the validity of a lease."""

import time
from collections.abc import Callable

Clock = Callable[[], int]

# Boot time goes on while the machine sleeps or a Lambda is frozen; `monotonic` need not.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_read = time.clock_gettime_ns


def wall() -> int:
    """The time of day. It can step back: stores use `Steady` around it."""
    return time.time_ns() // 1_000


def since_boot() -> int:
    """Time that never steps, for measuring how long ago something was."""
    return _read(_BOOT) // 1_000


class Steady:
    """Wall time that never goes back and never stands still.

    When the wall clock steps back, time goes on from where it was at the pace of the boot clock. Freezing it
    instead until the wall catches up would keep every lease of a crashed worker alive for as long as the step.
    """

    def __init__(self, wall: Clock = wall, boot: Clock = since_boot) -> None:
        self._wall = wall
        self._boot = boot
        self._last = 0
        self._last_boot = boot()

    def __call__(self, at_least: int = 0) -> int:
        """The time now, no earlier than `at_least` (what others on the same store have seen)."""
        # The wall first: were the boot clock read before it, a pause between the two would put time ahead of the wall.
        wall = self._wall()
        boot = self._boot()
        self._last = max(wall, at_least, self._last + boot - self._last_boot)
        self._last_boot = boot
        return self._last


def _frozen() -> int:
    return 0


def store_clock(clock: Clock | None) -> Steady:
    """A store's own time; around a clock that was passed in, time moves only as that clock does."""
    return Steady() if clock is None else Steady(clock, _frozen)
