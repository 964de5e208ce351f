"""The SQS worker takes the messages of an SQS queue through a gate.

receive ─▶ read ─▶ dispatcher ─▶ gate ─▶ every event acknowledged ─▶ delete the message
                                        └▶ an event not acknowledged ─▶ make the message visible again, after a pause

This worker does not bury events. SQS counts the receives of a message, and moves messages that always fail to the
dead-letter queue.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Final

from oncegate.durations import spoken
from oncegate.events import Event
from oncegate.gate.async_runner import is_async
from oncegate.gate.handlers import AsyncHandler, Handler, publish_target_of
from oncegate.gate.job import Identified, Job, set_destination
from oncegate.gate.options import outlasts_lease
from oncegate.gate.outcome import STATUSES, Cause, Outcome
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.dispatcher import Dispatcher, Next, RunAgain
from oncegate.ingress.handler_wrappers import logged
from oncegate.ingress.http_answers import due_in
from oncegate.ingress.sqs.client import QueueAddress, SqsClient, read_address
from oncegate.ingress.sqs.messages import InFlightMessages, MessageEvent
from oncegate.ingress.sqs.options import SqsOptions
from oncegate.ingress.sqs.receiver import SHORT_POLL, Receiver
from oncegate.ingress.supervision import stopped_by_signals
from oncegate.ingress.worker import Figures, WorkerContext

_log: Final = logging.getLogger("oncegate.work")
_SENDER_THREADS: Final = 4
_MAX_SKIPS: Final = 2  # the deliveries in which an event may be skipped because of a failed event of its lane
_LONGEST_PAUSE: Final = 12 * 3_600 - 60  # seconds; SQS hides a message for at most 12 hours after its receipt
_LAST_POLL: Final = SHORT_POLL + 0.5  # seconds that the worker waits for open polls when it stops
_FLUSH_WITHIN: Final = 5.0
_PUBLISHER_CHECK: Final = 0.1  # seconds between two checks of whether the publisher has completed the event
_PUBLISHER_CHECKS: Final = 20
_CLAIM_CHECK: Final = 0.05  # seconds between two checks, during an outage, of whether the store has granted a claim


class SqsWorker:
    """Implements `oncegate.ingress.worker.Worker`."""

    def __init__(
        self, queue: str, handler: AsyncHandler | Handler, options: SqsOptions, context: WorkerContext
    ) -> None:
        self._address = read_address(queue)
        self._handler = handler
        self._options = options
        self._context = context
        # The counter has all names from the start: other threads read it, so no name may be added during a read.
        self._counts = Counter(received=0, processed=0, duplicates=0, failed=0)
        self._lock = threading.Lock()
        self._session: SqsSession | None = None
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
        return Figures(**self._counts, in_hand=0 if session is None else session.in_hand)

    @property
    def left_running(self) -> int:
        return self._left_running

    async def _work(self) -> None:
        session = SqsSession(self._address, self._handler, self._options, self._context, self._counts)
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


class SqsSession:
    """One run of a worker in an event loop. Counts events and messages in `counts`."""

    def __init__(
        self,
        address: QueueAddress,
        handler: AsyncHandler | Handler,
        options: SqsOptions,
        context: WorkerContext,
        counts: Counter[str],
    ) -> None:
        self._fifo = address.fifo
        self._is_plain = not is_async(handler)
        self._handler = logged(handler, has_log=context.observers.have_log)
        self._publish_target = publish_target_of(handler)
        self._options = options
        self._context = context
        self._counts = counts
        self.left_running = 0
        config, boot = context.engine.config, context.boot
        threads = options.receivers + _SENDER_THREADS
        self._client = SqsClient(address, wait=options.wait, visibility=options.visibility, connections=threads)
        self._threads = CallThreads("oncegate-sqs", threads)
        visibility = options.visibility * 1_000_000
        self._messages = InFlightMessages(
            self._client, self._threads, boot, visibility=visibility, max_hold=config.max_hold
        )
        # At most one plain handler for each thread: an event that waits for a thread would hold its claim while it
        # waits.
        concurrency = min(options.in_hand, config.threads if self._is_plain else config.max_in_hand)
        self._dispatcher = Dispatcher(self._run, self._give_back, most=options.in_hand, at_work=concurrency)
        self._receiver = Receiver(self._client, self._threads, boot, options, self._dispatcher, self._take)
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
            if not await self._threads.call(self._client.open):
                _log.warning(
                    "%s has no redrive policy: a message that always fails is delivered without end; set a dead-letter"
                    " queue",
                    self._client.place,
                )
            self._warn_of_short_visibility()
            await self._work_until_stopped()
        finally:
            self._threads.close()
            self._client.close()

    def _warn_of_short_visibility(self) -> None:
        visibility, lease = self._options.visibility, self._context.engine.config.lease
        if not outlasts_lease(visibility * 1_000_000, lease):
            _log.warning(
                "visibility (%d s) is shorter than the lease (%s): after a crash a message is delivered again before"
                " its claim can be acquired, and each such receive counts towards the dead-letter queue; set visibility"
                " to at least the lease",
                visibility,
                spoken(lease),
            )

    async def _work_until_stopped(self) -> None:
        receiving = asyncio.create_task(self._receiver.receive(self._stopping))
        hiding = asyncio.create_task(self._messages.keep_hidden())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([receiving, hiding, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopping.set()
            await self._drain(receiving)
            for task in (receiving, hiding, stopped):
                task.cancel()
            results = await asyncio.gather(receiving, hiding, stopped, return_exceptions=True)
        _raise_first([result for result in results if isinstance(result, BaseException)])

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, received: list[dict[str, Any]]) -> None:
        self._counts["received"] += len(received)
        for each in received:
            message = self._messages.add(each)
            events = self._context.read(each)
            message.unfinished = len(events)
            works = [MessageEvent(message, event, self._identify(event), fifo=self._fifo) for event in events]
            for work in works:
                self._dispatcher.offer(work, work.lane, work.order)
            if not works:
                self._messages.end(message)

    def _end(self, work: MessageEvent, again_after: float | None) -> None:
        """Record that an event of a message has ended. If `again_after` is None, the event is acknowledged. Otherwise
        the message is to be delivered again after `again_after` seconds."""
        message = work.message
        if again_after is not None:
            message.again_after = max(message.again_after or 0, again_after)
        message.unfinished -= 1
        if not message.unfinished:
            self._messages.end(message)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, work: MessageEvent) -> Next:
        if self._context.boot() >= work.message.visible_until:  # another worker may have received the message
            return self._not_acknowledged(work, work.message.pause)
        work.ran = True
        began_at = self._context.boot()
        outcome = await self._run_through_gate(work.item)
        if outcome.cause is Cause.STORE_UNAVAILABLE:
            return self._wait_for_store(work, outcome)
        if _proves_answer(outcome):
            self._store_answered(began_at)
        if self._is_being_published(work, outcome):
            return RunAgain(_PUBLISHER_CHECK)
        self._report(outcome)
        if not outcome.acked:
            return self._not_acknowledged(work, _pause(outcome, work))
        self._end(work, None)
        return "go_on"

    async def _run_through_gate(self, item: Identified) -> Outcome:
        if not self._receiver.store_outage.is_ongoing:
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
        self._receiver.store_outage.succeeded("events can be claimed", sent_at)

    def _not_acknowledged(self, work: MessageEvent, again_after: float) -> Next:
        """Make SQS deliver the event again. The later events of its lane are given back, so that they do not run before
        this event."""
        if self._dispatcher.has_waiting(work.lane):
            self._lane_pauses[work.lane] = again_after
        self._end(work, again_after)
        return "give_back"

    def _wait_for_store(self, work: MessageEvent, outcome: Outcome) -> Next:
        """Hold the message until the store answers. If the message were released, it would be received again, and SQS
        would count each receive towards the dead-letter queue."""
        self._receiver.store_outage.failed(f"events cannot be claimed ({outcome.error})")
        work.item = self._identify(work.event)
        return RunAgain(self._receiver.store_outage.pause)

    def _identify(self, event: Event) -> Identified:
        (item,) = set_destination(self._publish_target, [self._context.identify(event)])
        return item

    def _is_being_published(self, work: MessageEvent, outcome: Outcome) -> bool:
        """Prepare another run, and return True, if the message arrived before its publisher has completed the event.
        The publisher needs a short time for this. The message is held during this time, so that SQS does not count
        another receive. Returns False after `_PUBLISHER_CHECKS` checks."""
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

        SQS counts each delivery, and an event must not become a dead letter because another event fails. So an event
        that was delivered more than `_MAX_SKIPS` times runs out of order. In a FIFO queue, events never run out of
        order."""
        for work in works:
            pause = self._lane_pauses.get(work.lane, work.message.pause)
            if self._stopping.is_set():
                self._end(work, self._pause_at_stop(work))
            elif work.ran or self._fifo or work.message.receives <= _MAX_SKIPS:
                self._end(work, pause)
            else:
                self._dispatcher.offer(work, work.lane, work.order)
        for lane in {work.lane for work in works}:
            self._lane_pauses.pop(lane, None)

    def _pause_at_stop(self, work: MessageEvent) -> float:
        """Returns the seconds after which a message is delivered again when the worker stops. This is 0, except if a
        plain handler still runs. Such a handler cannot be stopped, so the pause is as long as the lease."""
        if not (self._is_plain and work.ran and work.started):
            return 0
        self.left_running += 1
        return self._context.engine.config.lease / 1e6

    # ── stopping ──────────────────────────────────────────────────────────────────────────────────────────

    async def _drain(self, receiving: asyncio.Task[None]) -> None:
        """Finish the running events, and release the other messages. Before messages are released, the open polls get a
        short time to end, because an open poll would receive a released message again."""
        self._messages.pause_releases()
        draining = asyncio.create_task(self._dispatcher.drain(self._options.drain))
        await asyncio.wait([receiving], timeout=_LAST_POLL)
        self._messages.resume_releases()
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait([draining, hurried], return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            await self._dispatcher.drain(0)
        await draining
        hurried.cancel()
        self._receiver.abandon()
        await self._messages.flush(_FLUSH_WITHIN)


def _proves_answer(outcome: Outcome) -> bool:
    """Whether the outcome proves that the store has answered the claim of this run. A duplicate may come from the
    completion cache. A failure without an exception of the handler may come from a settlement that the store did not
    confirm."""
    if outcome.status == "in_flight":
        return outcome.original is not None
    return outcome.status == "processed" or (outcome.status == "failed" and outcome.raised is not None)


def _pause(outcome: Outcome, work: MessageEvent) -> float:
    """Returns the seconds before the next delivery of an event that was not acknowledged. This is the time until the
    lease of the other worker ends, or the delay that the handler requested. If neither is known, it is a pause that
    grows with each receive."""
    due = due_in(outcome)
    return work.message.pause if due is None else min(due, _LONGEST_PAUSE)


def _raise_first(errors: Sequence[BaseException]) -> None:
    for error in errors:
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from error
        if not isinstance(error, asyncio.CancelledError):
            raise error
