"""Circuit breaker: after several failures or slow answers in a row, a store is not called for a while.

    closed ── 5 in a row failed or were slow ──▶ open ── the pause is over ──▶ half open: one call probes
      ▲                                           ▲                              │
      └──────────── the call answered in time ────┼──────────────────────────────┤
                                                  └── it failed or was slow: twice the pause

While the breaker is open, claims fail at once. Settlements and renewals always go through (`always`).

An answer is slow if it took longer than `slow` and longer than ten times the median of the last answers: a distant
store that answers in 60 ms every time is healthy. Slow answers count in the median, too. So if a store becomes slower
for good, events fail for a minute or two, and then the store is used at its new speed.

A call that began before the breaker last changed says nothing about the present, so its result is not counted: every
change starts a new generation.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from oncegate import forks
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import StoreError, StoreReadOnly, StoreUnavailable, Unkeepable

IN_A_ROW: Final = 5
_PER_ALLOWANCE: Final = 10
_RECENT: Final = 21
_TIMES_MEDIAN: Final = 10
_FIRST_PAUSE: Final = 1_000_000
_LONGEST_PAUSE: Final = 30_000_000


class CircuitBreaker:
    """No answer is slow up to `slow` microseconds; a batch gets as much again for every ten items. `notify` is called
    with the name of each change and the reason."""

    def __init__(self, slow: int, boot: Clock, notify: Callable[[str, str], object] | None = None) -> None:
        self._slow = slow
        self.boot = boot
        self._notify = notify
        self._lock = threading.Lock()
        self._generation = 0
        self._failures = 0
        self._pause = _FIRST_PAUSE
        self._open_until: int | None = None
        self._recent: deque[int] = deque(maxlen=_RECENT)  # how long the last answers took, per ten items
        self._probing = False
        self._why = ""
        self._refusal: type[StoreUnavailable] = StoreUnavailable
        self._watch = forks.holding(self._lock, self._let_try)

    def _let_try(self) -> None:
        """A forked child does not share the probe of its parent."""
        self._probing = False

    def watch(self, size: int, *, always: bool = False, reads: bool = False) -> "_Watch":
        """A context for one call with a batch of this size. It raises StoreUnavailable, with the reason and the time
        left, instead of calling while the breaker is open. A call that only `reads` goes through while the store
        refuses writes, and is not counted then."""
        return _Watch(self, size, always, reads)

    def begin(self, *, always: bool, reads: bool) -> int | None:
        """The generation in which the call counts; None if it does not count."""
        generation = self._generation  # read before `_open_until`: what opens the breaker meanwhile is a later one
        if self._open_until is not None and not always:
            if reads and self._refusal is StoreReadOnly:
                return None
            generation = self._admitted()
        return generation

    def end(self, generation: int, size: int, took: int, error: BaseException | None) -> None:
        if error is None:
            took //= 1 + size // _PER_ALLOWANCE
            slow = self._too_slow(took) if took > self._slow else None
            self._recent.append(took)
            if slow or self._failures or self._open_until is not None:  # otherwise there is nothing to count
                self._count(generation, slow)
        elif isinstance(error, Unkeepable):  # the store answered
            self._count(generation, None)
        elif isinstance(error, StoreError):
            self._count(generation, str(error), read_only=isinstance(error, StoreReadOnly))
        else:
            self._abandon(generation)

    def _too_slow(self, took: int) -> str | None:
        """Why an answer that took longer than `slow` counts as slow; None if it is usual for this store."""
        recent = sorted(list(self._recent))  # noqa: C414  # a copy in one step: other threads append
        limit = max(self._slow, _TIMES_MEDIAN * recent[len(recent) // 2]) if recent else took
        if took <= limit:
            return None
        return f"it took {spoken(took)} to answer; the limit is {spoken(limit)}"

    def _admitted(self) -> int:
        with self._lock:
            if self._open_until is None:
                return self._generation
            left = self._open_until - self.boot()
            if left > 0 or self._probing:
                next_call = f"in {spoken(left)}" if left > 0 else "now, by one probe"
                raise self._refusal(
                    f"circuit breaker open after failures in a row, next call {next_call} ({self._why}); "
                    "the setting `breaker` is the time after which an answer counts as slow"
                )
            self._probing = True
            return self._generation

    def _count(self, generation: int, failure: str | None, *, read_only: bool = False) -> None:
        change = None
        with self._lock:
            if generation == self._generation:
                change = self._failed(failure, read_only) if failure is not None else self._answered()
        if change is not None and self._notify is not None:
            self._notify(change, self._why)

    def _failed(self, why: str, read_only: bool) -> str | None:
        if self._open_until is not None and not self._probing:
            return None  # a settlement or renewal failed once more while the breaker is open
        self._failures += 1
        self._why = why
        self._refusal = StoreReadOnly if read_only else StoreUnavailable
        if self._failures < IN_A_ROW and self._open_until is None:
            return None
        self._generation += 1
        self._pause = _FIRST_PAUSE if self._open_until is None else min(2 * self._pause, _LONGEST_PAUSE)
        self._open_until = self.boot() + self._pause
        self._probing = False
        return "breaker.opened"

    def _answered(self) -> str | None:
        self._failures = 0
        if self._open_until is None:
            return None
        self._generation += 1
        self._open_until, self._probing = None, False
        return "breaker.closed"

    def _abandon(self, generation: int) -> None:
        """A call that ended without an answer, for example by an interrupt, is not counted; another may probe."""
        with self._lock:
            if generation == self._generation:
                self._probing = False


class _Watch:
    """One call to the store, from before it is sent to its answer."""

    __slots__ = ("_always", "_breaker", "_generation", "_reads", "_sent_at", "_size")

    def __init__(self, breaker: CircuitBreaker, size: int, always: bool, reads: bool) -> None:
        self._breaker = breaker
        self._size = size
        self._always = always
        self._reads = reads

    def __enter__(self) -> None:
        self._generation = self._breaker.begin(always=self._always, reads=self._reads)
        self._sent_at = self._breaker.boot()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._generation is not None:
            self._breaker.end(self._generation, self._size, self._breaker.boot() - self._sent_at, error)
