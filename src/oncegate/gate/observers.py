"""This module sends notices of what a gate does to observers, counts the notices, and writes the JSON log.

Every notice has a dotted name:

    claim.granted      a claim was granted; `event` has its key, attempt and fence
    event.STATUS       an event has its outcome; one notice for each event: event.processed, event.duplicate, …
    event.kept         a refused event was stored as a dead letter
    handler.hung       a plain handler has run for longer than `handler_timeout` (longer than `max_hold` if there is no
                       `handler_timeout`); `detail` has the time since the handler started
    lease.lost         a claim was lost, or its lease ended, while its handler ran
    lease.adopted      an event was granted again to the process whose handler still runs it; the handler was not
                       started again
    memory.hit         a duplicate was answered from the completion cache, without a call to the store
    previous.found     the old place of the option `previous` has marked the event; it was recorded as completed
    policy.NAME        a policy was applied: missing_key, store_error, conflict, replay, too_old, stale, sliding;
                       `detail` has the decision
    inbox.failed       the store did not answer when the inbox polled for waiting events; `detail` has the reason
    inbox.crowded      an event that must run alone could not run, because other handlers ran for too long
    breaker.opened     the store failed or was slow too often, and is not called for some time; `detail` has the reason
    breaker.closed     the store has answered again
    transaction.held   a handler of `gate.transaction` blocked all other writes to the store for longer than the lease;
                       `detail` has the time
    timeline.split     a new state change lies between two emissions that were already merged
    observer.failed    an observer raised an exception; this notice is only counted
    observer.dropped   observers were too slow, and a notice was dropped; this notice is only counted

All notices are counted, with or without observers.
"""

import atexit
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TextIO, get_args
from weakref import WeakSet

from msgspec import Struct, json
from msgspec.structs import replace

from oncegate import forks
from oncegate.background import Background
from oncegate.clocks import Clock
from oncegate.errors import SettingError
from oncegate.events import Event, Key
from oncegate.gate.options import LISTS
from oncegate.gate.outcome import Outcome, Status
from oncegate.times import microseconds_of

_MOST_QUEUED: Final = 10_000
_BATCH_SIZE: Final = 100
_FLUSH_AT_EXIT: Final = 2.0  # seconds
# An estimate of the memory of a queued outcome, in bytes: a constant, and a multiple of the size of the document.
_OUTCOME_SIZE: Final = 1_000
_BODY_FACTOR: Final = 5


class Notice(Struct, frozen=True):
    """One thing that a gate did. `at` is the time in microseconds since 1970. Fields that do not apply are None."""

    name: str
    at: int
    namespace: str
    event: Event | None = None
    key: Key | None = None
    outcome: Outcome | None = None
    detail: str | None = None


Observer = Callable[[Notice], object]


class QueuedOutcomes(Struct, frozen=True):
    """The outcomes of one call to a gate, without results. `place` is the name of a route or a queue, `at` is the time
    in microseconds since 1970, and `size` is the estimated memory of the outcomes in bytes."""

    place: str
    namespace: str
    at: int
    outcomes: tuple[Outcome, ...]
    size: int


class OutcomeQueue:
    """A bounded queue of outcomes, for an observer that processes outcomes in a separate thread. If the queue is full,
    outcomes are dropped and counted. `start` is called with the first item. It must start the thread and set
    `is_started`. If it cannot start the thread, it must not raise: it is called again with the next item."""

    def __init__(self, most: int, most_bytes: int, start: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self._most = most
        self._most_bytes = most_bytes
        self._start = start
        self.dropped = 0
        self.is_closed = False
        self.reset()

    def reset(self) -> None:
        """Forget all items, after a fork."""
        self._items: deque[QueuedOutcomes | threading.Event] = deque()
        self.count = self.waiters = self._bytes = 0
        self.is_started = False
        self.filled, self.hurry = threading.Event(), threading.Event()

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, place: str, namespace: str, at: int, outcomes: Sequence[Outcome]) -> None:
        outcomes = tuple([_without_results(outcome) for outcome in outcomes])
        count = len(outcomes)
        size = sum([_OUTCOME_SIZE + _BODY_FACTOR * len(outcome.event.raw) for outcome in outcomes])
        with self.lock:
            fits = self.count + count <= self._most and self._bytes + size <= self._most_bytes
            if self.is_closed or not fits:
                self.dropped += count
            else:
                self._items.append(QueuedOutcomes(place, namespace, at, outcomes, size))
                self.count += count
                self._bytes += size
            if not self.is_started and not self.is_closed:
                self._start()
        if not self.filled.is_set():
            self.filled.set()

    def take(self, most: int) -> list[QueuedOutcomes | threading.Event]:
        """Remove and return the oldest items, with about `most` outcomes. An event is an item of `flush`: set it after
        the items before it are processed."""
        items: list[QueuedOutcomes | threading.Event] = []
        count = 0
        with self.lock:
            while self._items and count < most:
                item = self._items.popleft()
                items.append(item)
                if isinstance(item, QueuedOutcomes):
                    count += len(item.outcomes)
                    self._bytes -= item.size
                else:
                    self.waiters -= 1
            self.count -= count
        return items

    def take_all(self) -> list[QueuedOutcomes | threading.Event]:
        return self.take(self._most + 1)

    def flush(self, within: float) -> bool:
        """Wait until all outcomes that were put so far are processed. Returns False if this takes longer than `within`
        seconds."""
        with self.lock:
            if self.is_closed:
                return True
            if self._items and not self.is_started:
                self._start()
            if not self.is_started:
                return not self._items
            done = threading.Event()
            self._items.append(done)
            self.waiters += 1
        self.hurry.set()
        self.filled.set()
        return done.wait(within)


def _without_results(outcome: Outcome) -> Outcome:
    """Returns an outcome without the result of its handler, and without the result and the payload of its original:
    they can have any size, and no reader of a queue needs them."""
    original = outcome.original
    if original is not None and (original.result is not None or original.payload is not None):
        return replace(outcome, result=None, original=replace(original, result=None, payload=None))
    return outcome if outcome.result is None else replace(outcome, result=None)


class PlaceObserver:
    """An observer that puts all outcomes of a gate into a queue, with the name of the gate's route or queue.

    The gate calls `record` once for each call, in the thread of the caller, and sends no notices to this observer. This
    costs a tenth of one notice for each event. `close` is called when the gate is closed. With `awaits_keep`, the
    outcome of an invalid event is recorded when the event is kept as a dead letter, so that the row names the dead
    letter. `Gate.keep` must then be called for all invalid events."""

    def __init__(
        self,
        queue: OutcomeQueue,
        place: str,
        close: Callable[[float], object] | None = None,
        *,
        awaits_keep: bool = False,
    ) -> None:
        self._queue = queue
        self._place = place
        self._close = close
        self._awaits_keep = awaits_keep

    def __call__(self, notice: Notice) -> None:
        if (outcome := outcome_of(notice)) is not None:
            self.record([outcome], notice.at, notice.namespace)

    def record(self, outcomes: Sequence[Outcome], at: int, namespace: str) -> None:
        if self._awaits_keep and "invalid" in [outcome.status for outcome in outcomes]:
            outcomes = [outcome for outcome in outcomes if outcome.status != "invalid"]
        if outcomes:
            self._queue.put(self._place, namespace, at, outcomes)

    def record_kept(self, outcomes: Sequence[Outcome], at: int, namespace: str) -> None:
        """Record invalid events, after they were kept."""
        if self._awaits_keep and outcomes:
            self._queue.put(self._place, namespace, at, outcomes)

    def flush(self, within: float) -> bool:
        return self._queue.flush(within)

    def close(self, within: float) -> None:
        if self._close is not None:
            self._close(within)


class Observers:
    """Counts notices, and passes them to the observers in a background thread. Observers cannot delay or fail an event.
    If 10,000 notices are queued, further notices are dropped, and the dropped notices are counted."""

    def __init__(self, observers: Sequence[Observer], namespace: str, wall: Clock) -> None:
        if not isinstance(observers, LISTS) or not all(callable(observer) for observer in observers):
            raise SettingError(f"observers={observers!r} must be a list of callables that take one notice")
        self.have_log = log_outcomes(observers)
        self._recorders = tuple(observer for observer in observers if isinstance(observer, PlaceObserver))
        self._observers = tuple(observer for observer in observers if not isinstance(observer, PlaceObserver))
        self._namespace = namespace
        self.wall = wall
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)
        self._counts: Counter[str] = Counter()
        self._background: Background[Notice] = Background("oncegate-observers", self._deliver, most=_BATCH_SIZE)
        if observers:
            _open.add(self)

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
        if self._recorders:
            self._record(PlaceObserver.record, outcomes)

    def kept(self, outcomes: Sequence[Outcome]) -> None:
        """Report the new outcomes of invalid events, after they were kept as dead letters."""
        for outcome in outcomes:
            if outcome.kept is not None:
                self.notify("event.kept", outcome.event, outcome.kept, outcome)
        self._record(PlaceObserver.record_kept, outcomes)

    def _record(
        self, record: Callable[[PlaceObserver, Sequence[Outcome], int, str], None], outcomes: Sequence[Outcome]
    ) -> None:
        at = self.wall()
        for recorder in self._recorders:
            try:
                record(recorder, outcomes, at, self._namespace)
            except Exception:  # noqa: BLE001  # an observer must not fail an event
                self._count("observer.failed")

    def flush(self, within: float) -> bool:
        """Wait until all notices queued so far are delivered. Returns False if they are not delivered within `within`
        seconds."""
        deadline = time.monotonic() + within
        delivered = self._background.flush(within)
        recorded = [recorder.flush(max(0.0, deadline - time.monotonic())) for recorder in self._recorders]
        return delivered and all(recorded)

    def close(self, within: float) -> None:
        """Deliver the queued notices, and close the recorders that belong to this gate."""
        deadline = time.monotonic() + within
        self.flush(within)
        for recorder in self._recorders:
            recorder.close(max(0.0, deadline - time.monotonic()))

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
        if len(self._background) >= _MOST_QUEUED:
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
                except BaseException:  # noqa: BLE001  # the other observers still get the notice
                    self._count("observer.failed")


def log_outcomes(observers: Sequence[Observer]) -> bool:
    """Whether one of the observers writes a line for each outcome. Such an observer has the attribute `logs_outcomes`.
    A failure then needs no other line in the log."""
    return any(getattr(observer, "logs_outcomes", False) for observer in observers)


_NAMES: Final = {status: f"event.{status}" for status in get_args(Status)}

# A process may end without closing its gates. So the last notices are delivered when the process exits.
_open: WeakSet[Observers] = WeakSet()


@atexit.register
def _flush_all() -> None:
    deadline = time.monotonic() + _FLUSH_AT_EXIT
    for observers in list(_open):
        observers.flush(max(0.0, deadline - time.monotonic()))


# ── the JSON log ──────────────────────────────────────────────────────────────────────────────────────────


_LONGEST_NAME: Final = 256  # characters
_WARNINGS: Final = ("transaction.held",)  # notices that get a separate line, in addition to the line of the outcome


class JsonLog:
    """An observer that writes one line of JSON for each outcome. A line contains no text of an exception. The only data
    of the payload in a line is what identifies the event, its state and its time. If a handler raised an exception, the
    member `stack` says where. Without a stream, a line goes to the object that `sys.stdout` refers to when the line is
    written."""

    logs_outcomes = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def __call__(self, notice: Notice) -> None:
        outcome = outcome_of(notice)
        if outcome is not None:
            write_line({"time": spelt(notice.at), **line_fields(outcome, notice.namespace)}, self._stream)
        elif notice.name in _WARNINGS and notice.event is not None:
            write_line({"time": spelt(notice.at), **_warning_fields(notice, notice.event)}, self._stream)


def outcome_of(notice: Notice) -> Outcome | None:
    """Returns the outcome if this notice reports the outcome of an event; otherwise None. Each event has one such
    notice."""
    outcome = notice.outcome
    return outcome if outcome is not None and notice.name == f"event.{outcome.status}" else None


def ascii_only(text: str) -> str:
    """Returns the same JSON in printable ASCII. Such text cannot contain terminal control sequences, and every stream
    can encode it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else escaped(c) for c in text)


def escaped(character: str) -> str:
    """Returns a character as a JSON escape, such as `\\u000a`."""
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def write_line(fields: dict[str, Any], stream: TextIO | None = None) -> None:
    """Write one line of JSON and flush. Without a stream, write to `sys.stdout`."""
    stream = sys.stdout if stream is None else stream
    stream.write(f"{ascii_only(json.encode(fields).decode())}\n")
    stream.flush()


def spelt(at: int) -> str:
    """Returns a time, given in microseconds since 1970, in the format of RFC 3339 with milliseconds."""
    when = datetime.fromtimestamp(at / 1_000_000, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line_fields(outcome: Outcome, namespace: str) -> dict[str, Any]:
    """Returns the fields of a line of the log: those of the outcome, and `stack` if a handler raised an exception."""
    stack = {} if outcome.stack is None else {"stack": outcome.stack}
    return fields_of(outcome, namespace) | stack


def fields_of(outcome: Outcome, namespace: str) -> dict[str, Any]:
    """Returns the log fields of an outcome. The only data of the payload in these fields is what identifies the event,
    its state and its time."""
    fields = {
        "status": outcome.status,
        "kind": outcome.kind,
        **_event_fields(outcome.event, outcome.key, namespace),
        "reason": outcome.discreet,
    }
    if outcome.status == "accepted":  # the store may have granted the event with its admission, but it has not run
        fields["attempt"] = None
    return fields


def _warning_fields(notice: Notice, event: Event) -> dict[str, Any]:
    return {"warning": notice.name, **_event_fields(event, notice.key, notice.namespace), "reason": notice.detail}


def _event_fields(event: Event, key: Key | None, namespace: str) -> dict[str, Any]:
    return {
        "event_id": event.id,
        "key": None if key is None else str(key),
        "namespace": namespace,
        "source": _shortened(event.source),
        "type": _shortened(event.type),
        "entity": _shortened(event.entity),
        "state": _shortened(event.state),
        "occurred_at": None if event.occurred_at is None else spelt(microseconds_of(event.occurred_at)),
        "attempt": event.attempt or None,
    }


def _shortened(name: str | None) -> str | None:
    """Cut a name to a bounded length, because senders may use names of any length."""
    return name if name is None or len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
