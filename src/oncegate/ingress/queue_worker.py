"""The queue worker takes the messages of a queue or a bus through a gate.

receive ─▶ read ─▶ dispatcher ─▶ gate ─▶ every event acknowledged ─▶ acknowledge the message
                                        └▶ an event not acknowledged ─▶ have the message delivered again, after a pause;
                                           if the bus cannot do this, or nothing counts the attempts of the event,
                                           run the event again here (`retries`)

A link is the part that knows one kind of queue: it receives messages, keeps them from other workers, and acknowledges
or returns them.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from oncegate.backoff import jittered, pause_after
from oncegate.clocks import Clock
from oncegate.events import Event
from oncegate.gate.async_runner import is_async
from oncegate.gate.handlers import AsyncHandler, Handler, publish_target_of
from oncegate.gate.job import Identified, Job, UnguardedEvent, set_destination
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import STATUSES, Cause, Outcome
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.dispatcher import Dispatcher, Next, RunAgain
from oncegate.ingress.handler_wrappers import logged
from oncegate.ingress.http_answers import due_in
from oncegate.ingress.messages import Message, MessageEvent
from oncegate.ingress.retries import LocalRetries, Mover, UnguardedAttempts
from oncegate.ingress.supervision import OutageLogger, stopped_by_signals
from oncegate.ingress.worker import Figures, WorkerContext

_MAX_SKIPS: Final = 2  # the deliveries in which an event may be skipped because of a failed event of its lane
_FLUSH_WITHIN: Final = 5.0
_PUBLISHER_CHECK: Final = 0.1  # seconds between two checks of whether the publisher has completed the event
_PUBLISHER_CHECKS: Final = 20
_MOVE_PAUSES: Final = (1, 20)  # seconds; the first and the longest pause after a failed move
_CLAIM_CHECK: Final = 0.05  # seconds between two checks, during an outage, of whether the store has granted a claim


class LinkContext(Struct, frozen=True):
    """What a link gets from the worker. `take` is called with each received message and its payload for `read`. While
    `store_outage` is ongoing, a link receives nothing."""

    boot: Clock
    config: GateConfig
    dispatcher: Dispatcher[MessageEvent]
    take: Callable[[Message, Any], None]
    store_outage: OutageLogger


class QueueLink(Protocol):
    """The connection of a worker to a queue or a bus, for one run of the worker in an event loop.

    `in_groups`: the queue has message groups whose messages must be handled in order. `has_dead_letters`: the queue
    itself stores messages that always fail. `longest_pause` is the longest time, in seconds, after which the queue can
    deliver a message again."""

    in_groups: bool
    has_dead_letters: bool
    longest_pause: float

    async def open(self) -> None:
        """Connect. Raises QueueError if the queue cannot be used."""

    async def receive(self, stopping: asyncio.Event) -> None:
        """Receive messages until `stopping` is set. Raises QueueError if the queue can no longer be used."""

    async def hold(self) -> None:
        """Keep the received messages from other workers, until this coroutine is cancelled."""

    def end(self, message: Message) -> None:
        """Acknowledge a message, or have it delivered again after `again_after`. All its events have ended."""

    async def end_receiving(self, receiving: asyncio.Task[None]) -> None:
        """Wait until `receive` has ended. Messages that are returned must not be received here again."""

    async def flush(self, within: float) -> None:
        """Wait until all ended messages are acknowledged or returned, for at most `within` seconds."""

    async def close(self) -> None: ...


OpenLink = Callable[[LinkContext], QueueLink]


class QueueWorker:
    """Implements `oncegate.ingress.worker.Worker`. `in_hand` is the largest number of events that wait or run, and
    `drain` is how many seconds running handlers have to end. `mover` is set for a bus that does not deliver a message
    again: the worker then runs failed events again itself."""

    def __init__(
        self,
        open_link: OpenLink,
        handler: AsyncHandler | Handler,
        context: WorkerContext,
        *,
        in_hand: int,
        drain: float,
        mover: Mover | None = None,
    ) -> None:
        self._open_link = open_link
        self._handler = handler
        self._context = context
        self._in_hand = in_hand
        self._drain = drain
        self._mover = mover
        # The counter has all names from the start: other threads read it, so no name may be added during a read.
        self._counts = Counter(received=0, processed=0, duplicates=0, failed=0)
        self._lock = threading.Lock()
        self._session: QueueSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._left_running = 0

    def run(self) -> None:
        self._left_running = 0
        try:
            asyncio.run(self._work())
        finally:
            self._stopped = False
        if not self._left_running:
            self._context.engine.close()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._loop is not None and self._session is not None:
                self._loop.call_soon_threadsafe(self._session.stop)

    @property
    def figures(self) -> Figures:
        session = self._session
        figures = Figures(**self._counts, in_hand=0 if session is None else session.in_hand)
        return figures if self._mover is None else _plus_moved(figures, self._mover.figures)

    @property
    def left_running(self) -> int:
        return self._left_running

    async def _work(self) -> None:
        session = QueueSession(
            self._open_link,
            self._handler,
            self._context,
            self._counts,
            in_hand=self._in_hand,
            drain=self._drain,
            mover=self._mover,
        )
        with self._lock:
            self._session, self._loop = session, asyncio.get_running_loop()
            if self._stopped:
                session.stop()
        try:
            with stopped_by_signals(session.stop):
                await session.work()
        finally:
            with self._lock:
                self._session = self._loop = None
            self._left_running = session.left_running + self._context.engine.async_runner.threads.given_up
            self._left_running += 0 if self._mover is None else self._mover.left_running


class QueueSession:
    """One run of a worker in an event loop. Counts events and messages in `counts`."""

    def __init__(
        self,
        open_link: OpenLink,
        handler: AsyncHandler | Handler,
        context: WorkerContext,
        counts: Counter[str],
        *,
        in_hand: int,
        drain: float,
        mover: Mover | None = None,
    ) -> None:
        self._is_plain = not is_async(handler)
        self._handler = logged(handler, has_log=context.observers.have_log)
        self._publish_target = publish_target_of(handler)
        self._context = context
        self._counts = counts
        self._drain_time = drain
        self.left_running = 0
        config = context.engine.config
        # At most one plain handler for each thread: an event that waits for a thread would hold its claim while it
        # waits.
        concurrency = min(in_hand, config.threads if self._is_plain else config.max_in_hand)
        self._dispatcher = Dispatcher(self._run, self._give_back, most=in_hand, at_work=concurrency)
        self._store_outage = OutageLogger(context.boot)
        self._link = open_link(LinkContext(context.boot, config, self._dispatcher, self._take, self._store_outage))
        self._mover = mover
        self._retries = LocalRetries(self._dispatcher, context.boot, in_hand)
        self._unguarded = UnguardedAttempts(config, context.boot)
        self._threads = CallThreads("oncegate-keep", 1)
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._lane_pauses: dict[Hashable, float] = {}

    @property
    def in_hand(self) -> int:
        return self._dispatcher.in_hand

    def stop(self) -> None:
        """Stop receiving and drain. A second call ends the wait for running handlers. Must be called in the event
        loop."""
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()

    async def work(self) -> None:
        """Work until stopped. Raises QueueError if the queue cannot be used or was deleted."""
        try:
            if await self._open():
                await self._work_until_stopped()
        finally:
            self._threads.close()
            await self._link.close()
            if self._mover is not None:
                self._mover.close()

    async def _open(self) -> bool:
        """Connect. Returns False if the worker is stopped before it is connected."""
        opening, stopped = asyncio.create_task(self._link.open()), asyncio.create_task(self._stopping.wait())
        await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if opening.done():
            opening.result()
            return True
        opening.cancel()
        await asyncio.wait([opening])
        return False

    async def _work_until_stopped(self) -> None:
        receiving = asyncio.create_task(self._link.receive(self._stopping))
        holding = asyncio.create_task(self._link.hold())
        stopped = asyncio.create_task(self._stopping.wait())
        tasks = [receiving, holding, stopped]
        moved = None if self._mover is None else asyncio.create_task(self._mover.work())
        try:
            await asyncio.wait([*tasks, *filter(None, [moved])], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopping.set()
            if self._mover is not None:
                self._mover.stop()
            await self._drain(receiving)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, *filter(None, [moved]), return_exceptions=True)
        _raise_first([result for result in results if isinstance(result, BaseException)])

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, message: Message, payload: Any) -> None:
        self._counts["received"] += 1
        events = self._context.read(payload)
        message.unfinished = len(events)
        in_groups = self._link.in_groups
        works = [MessageEvent(message, event, self._identify(event), in_groups=in_groups) for event in events]
        for work in works:
            self._dispatcher.offer(work, work.lane, work.order)
        if not works:
            self._link.end(message)

    def _end(self, work: MessageEvent, again_after: float | None) -> None:
        """Record that an event of a message has ended. If `again_after` is None, the event is acknowledged. Otherwise
        the message is to be delivered again after `again_after` seconds."""
        message = work.message
        if again_after is not None:
            message.again_after = max(message.again_after or 0, again_after)
        message.unfinished -= 1
        if not message.unfinished:
            self._link.end(message)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, work: MessageEvent) -> Next:
        now = self._context.boot()
        self._retries.note_start(work)
        if not work.message.may_start(now):
            return self._not_acknowledged(work, work.message.pause)
        if now < work.starts_at:
            return RunAgain((work.starts_at - now) / 1e6)
        work.message.running += 1
        try:
            if self._mover is not None and (work.move_until or self._mover.must_follow(work)):
                return await self._move(work, self._mover)
            return await self._run_event(work)
        finally:
            work.message.running -= 1

    async def _run_event(self, work: MessageEvent) -> Next:
        work.ran = True
        began_at = self._context.boot()
        outcome = await self._outcome_of(work)
        if outcome.cause is Cause.STORE_UNAVAILABLE:
            return self._wait_for_store(work, outcome)
        if _proves_answer(outcome):
            self._store_answered(began_at)
        if self._is_being_published(work, outcome):
            return RunAgain(_PUBLISHER_CHECK)
        self._report(outcome)
        if outcome.status == "invalid" and not self._link.has_dead_letters:
            (outcome,) = await self._threads.call(self._context.keep, [outcome])
        if not outcome.acked and not (outcome.status == "invalid" and outcome.kept is not None):
            return await self._retry(work, outcome)
        if outcome.key is None:
            self._unguarded.forget(work.event)
        self._end(work, None)
        return "go_on"

    async def _outcome_of(self, work: MessageEvent) -> Outcome:
        """Run the event. An event without a key that has no attempts left becomes a dead letter. If the store does not
        take it, the next call only stores it."""
        if work.spent is None:
            outcome = await self._run_through_gate(work.item)
            uncounted = self._uncounted(work, outcome)
            if uncounted is None or not self._unguarded.are_used_up(work.event, outcome):
                return outcome
            work.spent = uncounted
        return await self._threads.call(self._context.engine.dead_letters.bury_unguarded, work.spent)

    async def _retry(self, work: MessageEvent, outcome: Outcome) -> Next:
        """Have the event delivered again. If the bus cannot do this, run it again here or move it. An event whose
        attempts nothing else counts also runs again here, as long as it does not keep other events waiting."""
        pause, moves = self._pause(outcome, work), self._mover is not None
        if not moves and self._uncounted(work, outcome) is None:
            return self._not_acknowledged(work, pause)
        work.message.receives += 1
        failed = moves and outcome.status == "failed"
        if self._retries.is_used_up(work, pause, failed=failed) and outcome.status != "invalid":
            if self._mover is None:
                return self._not_acknowledged(work, pause)
            if self._mover.can_move(work):
                work.move_until = self._context.boot() + int(pause * 1e6)
                return await self._move(work, self._mover)
        work.item = self._identify(work.event)
        return RunAgain(pause)

    def _uncounted(self, work: MessageEvent, outcome: Outcome) -> UnguardedEvent | None:
        """Returns the event if it has failed and neither a record nor the queue counts its attempts."""
        if outcome.status != "failed" or self._link.has_dead_letters or not isinstance(work.item, UnguardedEvent):
            return None
        return work.item

    async def _move(self, work: MessageEvent, mover: Mover) -> Next:
        """Move the event to another place, and acknowledge it. If this fails, it is tried again soon, without the
        handler: until then its message keeps later ones from being acknowledged, whatever pause the event has."""
        now = self._context.boot()
        work.move_until = work.move_until or now + int(work.message.pause * 1e6)
        if await mover.move(work, self._identify(work.event), max(0, work.move_until - now) / 1e6):
            self._end(work, None)
            return "go_on"
        work.failed_moves += 1
        return RunAgain(jittered(pause_after(work.failed_moves, *_MOVE_PAUSES)))

    async def _run_through_gate(self, item: Identified) -> Outcome:
        if not self._store_outage.is_ongoing:
            return await self._context.engine.arun(item, self._handler)
        watching = asyncio.create_task(self._watch_claim(item))
        try:
            return await self._context.engine.arun(item, self._handler)
        finally:
            watching.cancel()

    async def _watch_claim(self, item: Identified) -> None:
        """Report the end of an outage as soon as the store has granted the claim. The handler may run for minutes."""
        while not (isinstance(item, Job) and item.held):
            await asyncio.sleep(_CLAIM_CHECK)
        self._store_answered(item.lease.held_since)

    def _store_answered(self, sent_at: int) -> None:
        """Record that the store has answered a claim that was sent at or after `sent_at`."""
        self._store_outage.succeeded("events can be claimed", sent_at)

    def _not_acknowledged(self, work: MessageEvent, again_after: float) -> Next:
        """Have the event delivered again. The later events of its lane are given back, so that they do not run before
        this event."""
        if self._dispatcher.has_waiting(work.lane):
            self._lane_pauses[work.lane] = again_after
        self._end(work, again_after)
        return "give_back"

    def _wait_for_store(self, work: MessageEvent, outcome: Outcome) -> Next:
        """Hold the message until the store answers. If the message were returned, it would be received again, and a
        queue that counts receives would move it to its dead-letter queue."""
        self._store_outage.failed(f"events cannot be claimed ({outcome.error})")
        work.item = self._identify(work.event)
        return RunAgain(self._store_outage.pause)

    def _identify(self, event: Event) -> Identified:
        (item,) = set_destination(self._publish_target, [self._context.identify(event)])
        return item

    def _is_being_published(self, work: MessageEvent, outcome: Outcome) -> bool:
        """Prepare another run, and return True, if the message arrived before its publisher has completed the event.
        The publisher needs a short time for this. The message is held during this time, so that the queue does not
        count another receive. Returns False after `_PUBLISHER_CHECKS` checks."""
        if outcome.status != "in_flight" or work.event.evidence.handed_key is None or work.checks == _PUBLISHER_CHECKS:
            return False
        work.checks += 1
        work.item = self._identify(work.event)
        return True

    def _report(self, outcome: Outcome) -> None:
        self._context.observers.outcomes([outcome])
        if name := STATUSES[outcome.status].figure:
            self._counts[name] += 1

    def _give_back(self, works: Sequence[MessageEvent]) -> None:
        """End events that were not run because an earlier event of the lane failed, or because the worker stops.

        A queue may count each delivery, and an event must not become a dead letter because another event fails. So an
        event that was delivered more than `_MAX_SKIPS` times runs out of order. Events of a message group never run out
        of order."""
        now = self._context.boot()
        for work in works:
            pause = self._lane_pauses.get(work.lane, work.message.pause)
            self._retries.note_start(work)
            if self._stopping.is_set():
                self._end(work, self._pause_at_stop(work))
            elif self._mover is not None and work.message.may_start(now):  # the bus would not deliver it again
                work.starts_at = now + int(pause * 1e6)
                self._dispatcher.offer(work, work.lane, work.order)
            elif work.ran or self._link.in_groups or work.message.receives <= _MAX_SKIPS:
                self._end(work, pause)
            else:
                self._dispatcher.offer(work, work.lane, work.order)
        for lane in {work.lane for work in works}:
            self._lane_pauses.pop(lane, None)

    def _pause(self, outcome: Outcome, work: MessageEvent) -> float:
        """Returns the seconds before the next delivery of an event that was not acknowledged. This is the time until
        the lease of the other worker ends, or the delay that the handler requested. If neither is known, it is a pause
        that grows with each receive."""
        due = due_in(outcome)
        return work.message.pause if due is None else min(due, self._link.longest_pause)

    def _pause_at_stop(self, work: MessageEvent) -> float:
        """Returns the seconds after which a message is delivered again when the worker stops. This is 0, except if a
        plain handler still runs. Such a handler cannot be stopped, so the pause is as long as the lease."""
        if not (self._is_plain and work.ran and work.started):
            return 0
        self.left_running += 1
        return self._context.engine.config.lease / 1e6

    # ── stopping ──────────────────────────────────────────────────────────────────────────────────────────

    async def _drain(self, receiving: asyncio.Task[None]) -> None:
        """Finish the running events, and return the other messages."""
        draining = asyncio.create_task(self._dispatcher.drain(self._drain_time))
        await self._link.end_receiving(receiving)
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait([draining, hurried], return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            await self._dispatcher.drain(0)
        await draining
        hurried.cancel()
        await self._link.flush(_FLUSH_WITHIN)


def _proves_answer(outcome: Outcome) -> bool:
    """Whether the outcome proves that the store has answered in this run. A duplicate may come from the completion
    cache. A failure without an exception of the handler may come from a settlement that the store did not confirm. An
    event without a key runs without a claim: only its dead letter is an answer."""
    if outcome.status == "in_flight":
        return outcome.original is not None
    if outcome.key is None:
        return outcome.status == "buried"
    return outcome.status == "processed" or (outcome.status == "failed" and outcome.raised is not None)


def _plus_moved(figures: Figures, moved: Figures) -> Figures:
    """Add the figures of events that were moved from the queue to the inbox. Their messages are counted once."""
    return Figures(
        received=figures.received,
        processed=figures.processed + moved.processed,
        duplicates=figures.duplicates + moved.duplicates,
        failed=figures.failed + moved.failed,
        in_hand=figures.in_hand + moved.in_hand,
    )


def _raise_first(errors: Sequence[BaseException]) -> None:
    for error in errors:
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from error
        if not isinstance(error, asyncio.CancelledError):
            raise error
