"""Observing: what a gate tells those who watch it, and how often it did what.

Every notice has a dotted name:

    claim.granted      an event may run; `event` has its key, attempt and fence
    event.STATUS       an event has come to its outcome, once for each: event.processed, event.duplicate, …
    event.kept         a refused event was kept as a dead letter
    handler.hung       a plain handler has run for longer than `handler_timeout`, or `max_hold` without one; `detail`
                       has its age
    lease.lost         a claim was lost, or can no longer be trusted, while its handler ran
    lease.adopted      an event was granted anew to the process that still runs it, and was not started again
    memory.hit         a duplicate was answered by this process, without asking the store
    policy.NAME        a policy decided: missing_key, store_error, conflict, replay, too_old, stale, sliding; `detail`
                       has what it decided
    inbox.failed       the store could not be asked for what waits; `detail` says why
    inbox.crowded      events that must run alone could not, since other handlers ran for too long
    breaker.opened     the store failed or was slow too often, and is left alone for a while; `detail` says why
    breaker.closed     it has answered again
    transaction.held   a handler of `gate.transaction` kept all others from writing to the store for longer than the
                       lease; `detail` says for how long
    timeline.split     a state change lies between emissions that were taken for one
    observer.failed    an observer raised; only counted
    observer.dropped   observers were too slow, and a notice was thrown away; only counted

All of them are counted, whether anybody watches or not.
"""

import atexit
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, get_args
from weakref import WeakSet

from msgspec import Struct

from oncegate import forks
from oncegate.clocks import Clock
from oncegate.errors import SettingError
from oncegate.events import Event, Key
from oncegate.gate.background import Background
from oncegate.gate.outcome import Outcome, Status
from oncegate.gate.terms import LISTS

_MOST_WAITING: Final = 10_000
_AT_A_TIME: Final = 100
_FLUSH_AT_EXIT: Final = 2.0


class Notice(Struct, frozen=True):
    """Something that a gate did, when (microseconds since 1970), and with what."""

    name: str
    at: int
    namespace: str
    event: Event | None = None
    key: Key | None = None
    outcome: Outcome | None = None
    detail: str | None = None


Observer = Callable[[Notice], object]


class Observers:
    """Counts what happens and tells it on, from a thread of its own: whoever watches can neither break nor slow the
    gate. Notices that pile up beyond a bound are dropped, and counted."""

    def __init__(self, observers: Sequence[Observer], namespace: str, wall: Clock) -> None:
        if not isinstance(observers, LISTS) or not all(callable(observer) for observer in observers):
            raise SettingError(f"observers={observers!r} must be a list of things that can be called with one notice")
        self._observers = tuple(observers)
        self._namespace = namespace
        self.wall = wall
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)
        self._counts: Counter[str] = Counter()
        self._background: Background[Notice] = Background("oncegate-observers", self._deliver, most=_AT_A_TIME)
        if self._observers:
            _watched.add(self)

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def tell(
        self,
        name: str,
        event: Event | None = None,
        key: Key | None = None,
        outcome: Outcome | None = None,
        detail: str | None = None,
    ) -> None:
        with self._lock:
            self._counts[name] += 1
        self._send(name, event, key, outcome, detail)

    def granted(self, number: int, events: Iterable[Event]) -> None:
        with self._lock:
            self._counts["claim.granted"] += number
        if self._observers:
            for event in events:
                self._send("claim.granted", event, event.key)

    def outcomes(self, outcomes: Sequence[Outcome]) -> None:
        statuses = [outcome.status for outcome in outcomes]
        with self._lock:
            for status in set(statuses):
                self._counts[_NAMES[status]] += statuses.count(status)
        if self._observers:
            for outcome in outcomes:
                self._send(_NAMES[outcome.status], outcome.event, outcome.key, outcome)

    def flush(self, within: float) -> bool:
        """Wait until all that was told so far has been delivered; False if that takes too long."""
        return self._background.flush(within)

    def _send(
        self,
        name: str,
        event: Event | None = None,
        key: Key | None = None,
        outcome: Outcome | None = None,
        detail: str | None = None,
    ) -> None:
        if not self._observers:
            return
        if len(self._background) >= _MOST_WAITING:
            self._count("observer.dropped")
        else:
            self._background.put(Notice(name, self.wall(), self._namespace, event, key, outcome, detail))

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _deliver(self, notices: list[Notice]) -> None:
        for notice in notices:
            for observer in self._observers:
                try:
                    observer(notice)
                except BaseException:  # noqa: BLE001  # whatever an observer does is its own affair
                    self._count("observer.failed")


# Who ends a process without closing its gates is told the last of it all the same, unless that takes long.
_watched: WeakSet[Observers] = WeakSet()


@atexit.register
def _flush_all() -> None:
    until = time.monotonic() + _FLUSH_AT_EXIT
    for each in list(_watched):
        each.flush(max(0.0, until - time.monotonic()))


_NAMES: Final = {status: f"event.{status}" for status in get_args(Status)}
