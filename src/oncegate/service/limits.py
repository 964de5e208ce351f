"""Limits: how much one route may send, so that none takes what the others need."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from oncegate.claims import DEAD
from oncegate.clocks import Clock
from oncegate.gate.outcome import Outcome
from oncegate.stores.base import Entry

_SECOND: Final = 1_000_000
_BUCKETS: Final = 64
_NEW_RECORDS: Final = frozenset({"processed", "accepted"})
_COPIED: Final = frozenset({"conflict", "invalid"})


class Rate:
    """So many events a second: a second's worth may come at once, and what was sent beyond is waited for."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        self._left = float(most)
        self._at = clock()

    def wait(self) -> int:
        """The seconds until more is taken; 0: now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._most / _SECOND)
        self._at = now
        return 0 if self._left >= 1 else 1 + int((1 - self._left) / self._most)

    def spend(self, events: int) -> None:
        """A request with more events than are left is taken as a whole, and those after it wait the longer."""
        self._left -= events


class LiveKeys:
    """So many records at a time, counted by when they expire, in a few buckets instead of one by one."""

    def __init__(self, most: int, retention: int, clock: Clock) -> None:
        self._most = most
        self._retention = retention
        self._width = max(1, retention // _BUCKETS)
        self._clock = clock
        self._live: Counter[int] = Counter()
        self._count = 0
        self._kept: dict[bytes, int] = {}

    def count_in(self, entries: Iterable[Entry]) -> None:
        """What the store remembers already."""
        later = self._clock() + self._retention
        for entry in entries:
            expires_at = entry.record.expires_at or later
            self._add(expires_at, 1)
            if entry.record.state == DEAD and self._count <= self._most:
                self._kept[entry.key] = expires_at

    def wait(self) -> int:
        """The seconds until the first is forgotten; 0: there is room."""
        if self._count < self._most:
            return 0
        now = self._clock()
        self._forget(now // self._width)
        if self._count < self._most:
            return 0
        return 1 + max(0, (min(self._live) + 1) * self._width - now) // _SECOND

    def _forget(self, now: int) -> None:
        gone = [bucket for bucket in self._live if bucket < now]
        for bucket in gone:
            self._count -= self._live.pop(bucket)
        if gone:
            self._kept = {key: until for key, until in self._kept.items() if until // self._width >= now}

    def spend(self, outcomes: Sequence[Outcome]) -> None:
        until = self._clock() + self._retention
        new = sum(_made_a_record(outcome) or self._is_first_copy(outcome, until) for outcome in outcomes)
        if new:
            self._add(until, new)

    def _is_first_copy(self, outcome: Outcome, until: int) -> bool:
        """Whether a dead letter was made of what is refused: equal ones share theirs, and say nothing of it."""
        if outcome.status not in _COPIED or outcome.kept is None or outcome.kept.digest in self._kept:
            return False
        self._kept[outcome.kept.digest] = until
        return True

    def _add(self, expires_at: int, records: int) -> None:
        self._live[expires_at // self._width] += records
        self._count += records


def _made_a_record(outcome: Outcome) -> bool:
    """A failure at a later attempt, and what was buried then, made theirs at the first."""
    return outcome.status in _NEW_RECORDS or (outcome.status in ("failed", "buried") and outcome.event.attempt == 1)
