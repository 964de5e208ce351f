"""The circuit breaker stops calls to a store for a while after several failures or slow answers in a row.

    closed ── 5 calls in a row failed or were slow ──▶ open ── the pause is over ──▶ half open: one call probes
      ▲                                                 ▲                              │
      └──────────── the probe answered in time ─────────┼──────────────────────────────┤
                                                        └── the probe failed or was slow: twice the pause

While the breaker is open, claims fail at once. Settlements and renewals are always sent to the store (`always`).

An answer is slow if it took longer than `slow` and also longer than ten times the median of the last answers. The
median is used because a distant store that answers in 60 ms every time is healthy. Slow answers are included in the
median. So if a store becomes permanently slower, events fail for a minute or two. After this time, the new speed of the
store counts as normal.

Every change of the breaker (opened, opened again, closed) starts a new generation. The result of a call is counted only
in the generation in which the call began: an older call says nothing about the present state of the store.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from oncegate import forks
from oncegate.backoff import Backoff
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import StoreError, StoreReadOnly, StoreUnavailable, Unkeepable

IN_A_ROW: Final = 5
_ITEMS_PER_ALLOWANCE: Final = 10
_RECENT_ANSWERS: Final = 21
_TIMES_MEDIAN: Final = 10
_FIRST_PAUSE: Final = 1_000_000
_LONGEST_PAUSE: Final = 30_000_000


class CircuitBreaker:
    """An answer within `slow` microseconds is never slow. For a batch, this limit grows by `slow` for every ten items.
    The breaker calls `notify` with the name of each change and the reason."""

    def __init__(self, slow: int, boot: Clock, notify: Callable[[str, str], object] | None = None) -> None:
        self._slow = slow
        self.boot = boot
        self._notify = notify
        self._lock = threading.Lock()
        self._generation = 0
        self._failures = 0
        self._pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=False)
        self._open_until: int | None = None
        self._recent: deque[int] = deque(maxlen=_RECENT_ANSWERS)  # times of the last answers, per ten items
        self._probing = False
        self._reason = ""
        self._error_class: type[StoreUnavailable] = StoreUnavailable
        self._watch = forks.holding(self._lock, self._forget_probe)

    def _forget_probe(self) -> None:
        """Let a forked child probe the store itself: the probe of the parent does not end in the child."""
        self._probing = False

    @property
    def state(self) -> str:
        """`closed`, `open` or `half open`, for people."""
        with self._lock:
            if self._open_until is None:
                return "closed"
            return "half open" if self._probing or self.boot() >= self._open_until else "open"

    def watch(self, size: int, *, always: bool = False, reads: bool = False) -> "_Watch":
        """Return a context for one call with a batch of `size` items. While the breaker is open, entering the context
        raises StoreUnavailable with the reason and the time until the next probe. Exception: if the breaker is open
        because the store refuses writes, a call that only `reads` is sent to the store and is not counted."""
        return _Watch(self, size, always, reads)

    def begin(self, *, always: bool, reads: bool) -> int | None:
        """Return the generation in which the call is counted, or None if the call is not counted. Raises
        StoreUnavailable if the breaker is open and the call may not be sent."""
        # Read before `_open_until`: if the breaker opens between the two reads, it opens in a later generation.
        generation = self._generation
        if self._open_until is not None and not always:
            if reads and self._error_class is StoreReadOnly:
                return None
            generation = self._begin_while_open()
        return generation

    def end(self, generation: int, size: int, took: int, error: BaseException | None) -> None:
        if error is None:
            took //= 1 + size // _ITEMS_PER_ALLOWANCE
            slow = self._slow_reason(took) if took > self._slow else None
            self._recent.append(took)
            if slow or self._failures or self._open_until is not None:  # otherwise the counts do not change
                self._count(generation, slow)
        elif isinstance(error, Unkeepable):  # the store answered
            self._count(generation, None)
        elif isinstance(error, StoreError):
            self._count(generation, str(error), read_only=isinstance(error, StoreReadOnly))
        else:
            self._end_uncounted(generation)

    def _slow_reason(self, took: int) -> str | None:
        """Return why an answer that took longer than `slow` counts as slow, or None if this time is usual for the
        store."""
        recent = sorted(list(self._recent))  # noqa: C414  # list() copies in one step: other threads append
        limit = max(self._slow, _TIMES_MEDIAN * recent[len(recent) // 2]) if recent else took
        if took <= limit:
            return None
        return f"it took {spoken(took)} to answer; the limit is {spoken(limit)}"

    def _begin_while_open(self) -> int:
        with self._lock:
            if self._open_until is None:
                return self._generation
            left = self._open_until - self.boot()
            if left > 0 or self._probing:
                next_call = f"in {spoken(left)}" if left > 0 else "now, by one probe"
                raise self._error_class(
                    f"circuit breaker open after failures in a row, next call {next_call} ({self._reason}); "
                    "the setting `breaker` is the time after which an answer counts as slow"
                )
            self._probing = True
            return self._generation

    def _count(self, generation: int, failure: str | None, *, read_only: bool = False) -> None:
        change = None
        with self._lock:
            if generation == self._generation:
                change = self._count_failure(failure, read_only) if failure is not None else self._count_answer()
        if change is not None and self._notify is not None:
            self._notify(change, self._reason)

    def _count_failure(self, why: str, read_only: bool) -> str | None:
        if self._open_until is not None and not self._probing:
            return None  # a settlement or a renewal failed while the breaker is open: the breaker does not change
        self._failures += 1
        self._reason = why
        self._error_class = StoreReadOnly if read_only else StoreUnavailable
        if self._failures < IN_A_ROW and self._open_until is None:
            return None
        self._generation += 1
        if self._open_until is None:
            self._pauses.reset()
        self._open_until = self.boot() + int(self._pauses.next_pause())
        self._probing = False
        return "breaker.opened"

    def _count_answer(self) -> str | None:
        self._failures = 0
        if self._open_until is None:
            return None
        self._generation += 1
        self._open_until, self._probing = None, False
        return "breaker.closed"

    def _end_uncounted(self, generation: int) -> None:
        """End a call that got no answer, for example because of an interrupt. The call is not counted. If it was the
        probe, another call may probe."""
        with self._lock:
            if generation == self._generation:
                self._probing = False


class _Watch:
    """The context of one call to the store. It measures the time from before the call is sent until its answer."""

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
