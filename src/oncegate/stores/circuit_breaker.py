"""The breaker: after a row of failures or slow answers a store is left alone for a while, and asked again with care.

    closed ── so many in a row failed or were slow ──▶ open ── the pause is over ──▶ half open
      ▲                                                 ▲                                │
      └──────────── one call answered in time ──────────┼────────────────────────────────┤
                                                        └── it failed or was slow: twice the pause

While it is open, asking for claims is refused at once. Endings and renewals go through always: their effects are done
or under way, and what is not recorded will be done again.

An answer is slow if it took longer than `breaker` and than ten times the median of the last answers: a store that is
far away answers in 60 ms every time, and is well. Slow answers join the median, too. So a store that answers at a new
pace from some day on is refused for a minute or two, and then used as it is.

An answer to a call that was begun before the breaker last
changed says nothing about how things are now, and does not count: every change begins a new generation.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from oncegate import forks
from oncegate.claims import Address, Admission, Admit, Claim, Renew, Settlement, Verdict
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import StoreError, StoreReadOnly, StoreUnavailable, Unkeepable
from oncegate.stores.base import Change, Document, Entry, Inbox, Store, TakeRequest

IN_A_ROW: Final = 5
_AT_ONCE: Final = 10
_RECENT: Final = 21
_TIMES_MEDIAN: Final = 10
_FIRST_PAUSE: Final = 1_000_000
_LONGEST_PAUSE: Final = 30_000_000

_Answer = TypeVar("_Answer")


class CircuitBreaker:
    """`slow` is the time in microseconds up to which no answer is slow, longer for a batch: as much again for every ten
    things in it. `told` hears of each change."""

    def __init__(self, slow: int, boot: Clock, told: Callable[[str, str], object] | None = None) -> None:
        self._slow = slow
        self._boot = boot
        self._told = told
        self._lock = threading.Lock()
        self._generation = 0
        self._failures = 0
        self._pause = _FIRST_PAUSE
        self._open_until: int | None = None
        self._recent: deque[int] = deque(maxlen=_RECENT)  # how long the last answers took, each for ten things
        self._probing = False
        self._why = ""
        self._refusal: type[StoreUnavailable] = StoreUnavailable
        self._watch = forks.holding(self._lock, self._let_try)

    def _let_try(self) -> None:
        """A child of a fork has no part in what its parent is just trying."""
        self._probing = False

    def call(
        self,
        ask: Callable[[Sequence[Any]], _Answer],
        batch: Sequence[Any],
        *,
        always: bool = False,
        reads: bool = False,
    ) -> _Answer:
        """Ask the store, if it is to be asked; a refusal says why and until when. What only `reads` is asked for also
        while it takes no writes, and then says nothing of how it is."""
        generation = self._generation  # before the look whether it is open: what opens it meanwhile is of a later one
        if self._open_until is not None and not always:
            if reads and self._refusal is StoreReadOnly:
                return ask(batch)
            generation = self._admitted()
        sent_at = self._boot()
        try:
            answer = ask(batch)
        except Unkeepable:  # which is an answer, and as good as any
            self._count(generation, None)
            raise
        except StoreError as error:
            self._count(generation, str(error), read_only=isinstance(error, StoreReadOnly))
            raise
        except BaseException:
            self._abandon(generation)
            raise
        took = (self._boot() - sent_at) // (1 + len(batch) // _AT_ONCE)
        slow = self._too_slow(took) if took > self._slow else None
        self._recent.append(took)
        if slow or self._failures or self._open_until is not None:  # else there is nothing to count
            self._count(generation, slow)
        return answer

    def _too_slow(self, took: int) -> str | None:
        """What is wrong with an answer that took longer than `slow`, if anything is: it may be as usual."""
        recent = sorted(list(self._recent))  # noqa: C414  # a copy in one step: other threads append
        limit = max(self._slow, _TIMES_MEDIAN * recent[len(recent) // 2]) if recent else took
        if took <= limit:
            return None
        return f"it took {spoken(took)} to answer, and {spoken(limit)} is the limit"

    def _admitted(self) -> int:
        with self._lock:
            if self._open_until is None:
                return self._generation
            left = self._open_until - self._boot()
            if left > 0 or self._probing:
                again = f"again in {spoken(left)}" if left > 0 else "again just now"
                raise self._refusal(
                    f"the store is left alone after failures in a row, and asked {again} ({self._why}); "
                    "the setting breaker says how slow it may be"
                )
            self._probing = True
            return self._generation

    def _count(self, generation: int, failure: str | None, *, read_only: bool = False) -> None:
        change = None
        with self._lock:
            if generation == self._generation:
                change = self._failed(failure, read_only) if failure is not None else self._answered()
        if change is not None and self._told is not None:
            self._told(change, self._why)

    def _failed(self, why: str, read_only: bool) -> str | None:
        if self._open_until is not None and not self._probing:
            return None  # what goes through always has failed once more: that is known
        self._failures += 1
        self._why = why
        self._refusal = StoreReadOnly if read_only else StoreUnavailable
        if self._failures < IN_A_ROW and self._open_until is None:
            return None
        self._generation += 1
        self._pause = _FIRST_PAUSE if self._open_until is None else min(2 * self._pause, _LONGEST_PAUSE)
        self._open_until = self._boot() + self._pause
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
        """A call that ended without an answer, such as by an interrupt, says nothing; another may try in its place."""
        with self._lock:
            if generation == self._generation:
                self._probing = False


class GuardedStore:
    """A store behind a breaker: what a gate asks goes through it, the rest straight to the store."""

    def __init__(self, store: Store, breaker: CircuitBreaker) -> None:
        self._store = store
        self._breaker = breaker

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        return self._breaker.call(self._store.claim, requests)

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        answers: list[Admission] = self._breaker.call(cast(Inbox, self._store).admit, requests)
        return answers

    def take(self, wants: Sequence[TakeRequest]) -> list[Entry | None]:
        return self._breaker.call(self._store.take, wants)

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        return self._breaker.call(self._store.load, addresses, reads=True)

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        return self._breaker.call(self._store.swap, changes)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self._breaker.call(self._store.settle, settlements, always=True)

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        return self._breaker.call(self._store.renew, leases, always=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
