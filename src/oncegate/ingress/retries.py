"""Retries for a bus that does not deliver a message again, such as Kafka.

not acknowledged ─▶ runs again here, after a pause; the later events of its lane wait
                 └▶ after some attempts, or when too many events wait ─▶ moved ─▶ acknowledged

An event that waits here keeps the bus from going on, because it only knows how far its messages are processed. So an
event that fails repeatedly is moved to another place: to the inbox of the store, or to another topic of the bus.

An event that runs without a key has no record that counts its attempts. So the worker of any bus counts them until the
event succeeds or is a dead letter (`UnguardedAttempts`). It also runs such an event again here, because another worker
would start a new count. If the event waits for too long, or too many events wait, the bus delivers it again.
"""

import asyncio
import logging
from collections.abc import Hashable
from contextlib import suppress
from typing import Final, Protocol

from msgspec import Struct

from oncegate.canonical import digest
from oncegate.clocks import Clock
from oncegate.errors import StoreError
from oncegate.events import Event
from oncegate.gate.job import Identified, Job, is_stage
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Cause, Outcome
from oncegate.ingress.dispatcher import Dispatcher
from oncegate.ingress.inbox import InboxWorker
from oncegate.ingress.messages import MessageEvent
from oncegate.ingress.worker import Figures, WorkerContext

_MOST_ATTEMPTS: Final = 3
_LONGEST: Final = 30_000_000  # microseconds from the first failure to the last attempt here
_MOST_LANES: Final = 10_000  # that are remembered; the events of a lane that is forgotten may run out of order
_MOST_EVENTS: Final = 10_000  # without a key, whose failures are remembered
_CHECK_EVERY: Final = 1.0  # seconds
_log: Final = logging.getLogger("oncegate.work")


class Mover(Protocol):
    """Moves events to a place from which they are run again."""

    async def work(self) -> None:
        """Run what moved events need, until `stop` is called."""

    def stop(self) -> None: ...

    def must_follow(self, work: MessageEvent) -> bool:
        """Whether an earlier event of the lane was moved and may still wait. This event must then be moved, too."""

    def can_move(self, work: MessageEvent) -> bool:
        """Whether an event that has run may be moved. Otherwise it runs again here."""

    async def move(self, work: MessageEvent, item: Identified, pause: float) -> bool:
        """Move an event that should run again after `pause` seconds. `work.item` has its last run, and `item` is the
        event as it was before that run. Returns False if the event could not be moved now."""

    @property
    def figures(self) -> Figures:
        """The figures of events that were moved and run in this process."""

    @property
    def left_running(self) -> int: ...

    def close(self) -> None:
        """Close connections. All events have ended."""


class LocalRetries:
    """Decides whether an event runs again here, or is moved or returned to the bus. `in_hand` is the limit of events
    that wait or run."""

    def __init__(self, dispatcher: Dispatcher[MessageEvent], boot: Clock, in_hand: int) -> None:
        self._dispatcher = dispatcher
        self._boot = boot
        self._in_hand = in_hand
        # The dispatcher holds an event a little later than it fails. Many events may fail at the same time.
        self._waiting: set[MessageEvent] = set()

    def note_start(self, work: MessageEvent) -> None:
        """Record that the event does not wait any more: it starts, or it was given back."""
        self._waiting.discard(work)

    def is_used_up(self, work: MessageEvent, pause: float, *, failed: bool) -> bool:
        """Record an attempt, and return whether the event should not wait here: after three failed attempts, or if the
        next attempt would start more than 30 s after the first one, or if half of the events in hand wait for a
        retry."""
        now = self._boot()
        work.attempts += failed
        work.failed_at = work.failed_at or now
        waiting = 1 + max(len(self._waiting), self._dispatcher.held_items)
        if (
            work.attempts >= _MOST_ATTEMPTS
            or now + pause * 1e6 - work.failed_at > _LONGEST
            or 2 * waiting > self._in_hand
        ):
            return True
        self._waiting.add(work)
        return False


class _Failures(Struct):
    """The failed attempts of an event: how many of them count, and since when a service is unavailable."""

    counted: int = 0
    unavailable_since: int | None = None


class UnguardedAttempts:
    """Counts the failed attempts of events that run without a key. Every bus needs this: not all buses count
    deliveries, and a delivery is not always an attempt. The count is kept while the bus delivers the message again, but
    each worker has its own. Equal events share a count if their messages have no id."""

    def __init__(self, config: GateConfig, boot: Clock) -> None:
        self._config = config
        self._boot = boot
        self._failures: dict[Hashable, _Failures] = {}

    def are_used_up(self, event: Event, failed: Outcome) -> bool:
        """Record a failed attempt, and return whether it was the last one. The rules are those of events with a key:
        see `SettlementPlanner.failed`."""
        now, config, failures = self._boot(), self._config, self._remembered(event)
        if failed.cause is Cause.BURY:
            return True
        if failed.cause is Cause.SERVICE_UNAVAILABLE and config.retry_for is not None:
            failures.unavailable_since = since = failures.unavailable_since or now
            return config.max_attempts is not None and now - since >= config.retry_for
        failures.unavailable_since = None
        failures.counted += 1
        return config.max_attempts is not None and failures.counted >= config.max_attempts

    def forget(self, event: Event) -> None:
        """Forget the failures of an event that has succeeded or is a dead letter."""
        if self._failures:
            self._failures.pop(_identity(event), None)

    def _remembered(self, event: Event) -> _Failures:
        name = _identity(event)
        failures = self._failures[name] = self._failures.pop(name, _Failures())
        if len(self._failures) > _MOST_EVENTS:
            del self._failures[next(iter(self._failures))]
        return failures


def _identity(event: Event) -> Hashable:
    return event.evidence.message_id, digest(event.raw)


class InboxMover:
    """Moves events to the inbox of the store, and runs the inbox. The inbox keeps the order of each entity, so the
    later events of an entity follow the moved event into the inbox until the inbox is empty. `source` is the bus of the
    worker, as records name it."""

    def __init__(self, inbox: InboxWorker, context: WorkerContext, source: str) -> None:
        self._inbox = inbox
        self._context = context
        self._source = source
        self._lanes: dict[Hashable, int] = {}  # the lanes with moved events, and the number of the last move
        self._moves = 0
        self._has_warned = False

    async def work(self) -> None:
        tasks = [asyncio.create_task(self._check_namespace()), asyncio.create_task(self._forget_lanes())]
        try:
            await self._inbox.work()
        finally:
            for task in tasks:
                task.cancel()

    async def _check_namespace(self) -> None:
        """Warn at the start if records show that the publisher of the topic uses the same namespace. If they do not
        show it yet, `can_move` warns later."""
        with suppress(StoreError):
            if await asyncio.to_thread(self._context.engine.has_published, self._source):
                self._warn()

    def stop(self) -> None:
        self._inbox.stop()

    def must_follow(self, work: MessageEvent) -> bool:
        return work.lane in self._lanes

    def can_move(self, work: MessageEvent) -> bool:
        """An event whose publisher uses the same inbox must stay here."""
        is_shared = isinstance(work.item, Job) and is_stage(work.item.key)
        if is_shared:
            self._warn()
        return not is_shared

    async def move(self, work: MessageEvent, item: Identified, pause: float) -> bool:  # noqa: ARG002  # see Mover
        """Store the event. The inbox may run it at once: if it fails, the store knows the next pause."""
        (stored,) = await self._context.engine.async_runner.admit([item])
        outcome = stored.outcome
        if not outcome.acked:
            return False
        self._context.observers.outcomes([outcome])
        if outcome.status == "accepted" and work.lane is not None:
            self._remember(work.lane)
        self._inbox.wake()
        return True

    def _warn(self) -> None:
        """The service that has published this event uses the same namespace, and so the same inbox. It would take a
        moved event for one of its own, and publish it again and again."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "events that fail are not moved to the inbox, because the publisher of this topic also uses the"
                " namespace %s; use another namespace for this worker, or add retry_topic=NAME to the URL",
                self._context.engine.config.namespace,
            )

    def _remember(self, lane: Hashable) -> None:
        self._moves += 1
        self._lanes.pop(lane, None)
        self._lanes[lane] = self._moves
        if len(self._lanes) > _MOST_LANES:
            del self._lanes[next(iter(self._lanes))]

    async def _forget_lanes(self) -> None:
        """Forget all lanes when the inbox is empty. An event that was moved during the check keeps its lane."""
        while True:
            await asyncio.sleep(_CHECK_EVERY)
            if not self._lanes:
                continue
            moves = self._moves
            try:
                kept = await asyncio.to_thread(self._context.engine.kept, 1)
            except StoreError:
                continue
            if not kept:
                self._lanes = {lane: number for lane, number in self._lanes.items() if number > moves}

    @property
    def figures(self) -> Figures:
        return self._inbox.figures

    @property
    def left_running(self) -> int:
        return self._inbox.left_running

    def close(self) -> None:
        """The gate closes its store."""


class NoMover:
    """For events that are never moved. With mode="mark_first" an event that fails is a dead letter at once, and only an
    event that has not run yet runs again here."""

    figures = Figures()
    left_running = 0

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    async def work(self) -> None:
        await self._stopped.wait()
        self._stopped = asyncio.Event()  # the next run has another event loop

    def stop(self) -> None:
        self._stopped.set()

    def must_follow(self, work: MessageEvent) -> bool:  # noqa: ARG002  # see Mover
        return False

    def can_move(self, work: MessageEvent) -> bool:  # noqa: ARG002  # see Mover
        return False

    async def move(self, work: MessageEvent, item: Identified, pause: float) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to close."""
