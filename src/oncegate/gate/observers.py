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
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TextIO, get_args
from weakref import WeakSet

from msgspec import Struct, json

from oncegate import forks
from oncegate.background import Background
from oncegate.clocks import Clock
from oncegate.errors import SettingError
from oncegate.events import Event, Key
from oncegate.gate.options import LISTS
from oncegate.gate.outcome import Outcome, Status

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

    def notify(
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


# The log: one line of JSON for each event's outcome, without what its payload or an exception said.


_LONGEST_NAME: Final = 256
# What is worth a line of its own, beside that of the event's outcome.
_WARNINGS: Final = ("transaction.held",)


class JsonLog:
    """An observer that writes to a stream; without one, to what stdout is at the time."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def __call__(self, notice: Notice) -> None:
        outcome = outcome_of(notice)
        if outcome is not None:
            write_line({"time": spelt(notice.at), **fields_of(outcome, notice.namespace)}, self._stream)
        elif notice.name in _WARNINGS and notice.event is not None:
            write_line({"time": spelt(notice.at), **_warning(notice, notice.event)}, self._stream)


def outcome_of(notice: Notice) -> Outcome | None:
    """The outcome that a notice tells of, None if it tells of something else; every event has one such notice."""
    outcome = notice.outcome
    return outcome if outcome is not None and notice.name == f"event.{outcome.status}" else None


def ascii_only(text: str) -> str:
    """The same JSON in printable ASCII: no character of it can steer a terminal, and every stream can take it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else escaped(c) for c in text)


def escaped(character: str) -> str:
    """A character as JSON writes it in ASCII."""
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def write_line(fields: dict[str, Any], stream: TextIO | None = None) -> None:
    """One line of JSON; without a stream, to what stdout is at the time."""
    stream = sys.stdout if stream is None else stream
    stream.write(f"{ascii_only(json.encode(fields).decode())}\n")
    stream.flush()


def spelt(at: int) -> str:
    """A time in microseconds as RFC 3339 has it."""
    when = datetime.fromtimestamp(at / 1_000_000, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def short(name: str | None) -> str | None:
    """A name of what its sender may have called anything, cut after the length that an id may have."""
    return name if name is None or len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def fields_of(outcome: Outcome, namespace: str) -> dict[str, Any]:
    """What a line says of an outcome; nothing in it is of the payload but what names the event."""
    return {
        "status": outcome.status,
        "kind": outcome.kind,
        **_names_of(outcome.event, outcome.key, namespace),
        "reason": outcome.discreet,
    }


def _warning(notice: Notice, event: Event) -> dict[str, Any]:
    return {"warning": notice.name, **_names_of(event, notice.key, notice.namespace), "reason": notice.detail}


def _names_of(event: Event, key: Key | None, namespace: str) -> dict[str, Any]:
    return {
        "event_id": event.id,
        "key": None if key is None else str(key),
        "namespace": namespace,
        "source": short(event.source),
        "type": short(event.type),
        "entity": short(event.entity),
        "attempt": event.attempt or None,
    }
