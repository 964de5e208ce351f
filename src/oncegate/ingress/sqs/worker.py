"""A session of a worker: from its start in an event loop to the end of what it has in hand."""

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
from oncegate.gate.job import Identified, handed_to
from oncegate.gate.options import outlasts_lease
from oncegate.gate.outcome import STATUSES, Outcome
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.dispatcher import Dispatcher, Next, RunAgain
from oncegate.ingress.handler_wrappers import logged
from oncegate.ingress.http_answers import due_in
from oncegate.ingress.sqs.client import QueueAddress, SqsClient, read_address
from oncegate.ingress.sqs.messages import MessageEvent
from oncegate.ingress.sqs.options import SqsOptions
from oncegate.ingress.sqs.receiver import SHORT, InFlightMessages, Receiver
from oncegate.ingress.supervision import stopped_by_signals
from oncegate.ingress.worker import Figures, WorkerContext

_log: Final = logging.getLogger("oncegate.work")
_SENDERS: Final = 4
_STEPS_ASIDE: Final = 2
_LONGEST_HIDDEN: Final = 12 * 3_600 - 60
_LAST_POLL: Final = SHORT + 0.5
_FLUSH_WITHIN: Final = 5.0
_LOOK_AGAIN: Final = 0.1
_LOOKS: Final = 20
# What nothing but the store can have said; a duplicate may be known without it.
_ASKED: Final = ("processed", "failed", "in_flight")


class SqsSession:
    """What it does is counted in `counts`. `left_running` are the plain handlers that did not end in time."""

    def __init__(
        self,
        address: QueueAddress,
        handler: AsyncHandler | Handler,
        ways: SqsOptions,
        lent: WorkerContext,
        counts: Counter[str],
    ) -> None:
        self._fifo = address.fifo
        self._plain = not is_async(handler)
        self._handler = logged(handler)
        self._place = publish_target_of(handler)
        self._ways = ways
        self._lent = lent
        self._counts = counts
        self.left_running = 0
        config, boot = lent.engine.config, lent.boot
        threads = ways.receivers + _SENDERS
        self._calls = SqsClient(address, wait=ways.wait, visibility=ways.visibility, connections=threads)
        self._threads = CallThreads("oncegate-sqs", threads)
        visibility = ways.visibility * 1_000_000
        self._hand = InFlightMessages(self._calls, self._threads, boot, visibility=visibility, max_hold=config.max_hold)
        # What waits for a thread would hold its claim while it waits.
        at_work = min(ways.in_hand, config.threads if self._plain else config.max_in_hand)
        self._dispatcher = Dispatcher(self._run, self._given_back, most=ways.in_hand, at_work=at_work)
        self._receiver = Receiver(self._calls, self._threads, boot, ways, self._dispatcher, self._take)
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._pauses: dict[Hashable, float] = {}

    @property
    def in_hand(self) -> int:
        return self._dispatcher.in_hand

    def stop(self) -> None:
        """In the loop. Told a second time, it no longer waits for handlers."""
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()

    async def work(self) -> None:
        """Until it is stopped. Raises QueueError if the queue cannot be used, or is there no more."""
        try:
            if not await self._threads.call(self._calls.open):
                _log.warning("%s has no redrive policy: what always fails comes again and again", self._calls.place)
            self._warn_of_short_visibility()
            await self._go_on()
        finally:
            self._threads.close()
            self._calls.close()

    def _warn_of_short_visibility(self) -> None:
        visibility, lease = self._ways.visibility, self._lent.engine.config.lease
        if not outlasts_lease(visibility * 1_000_000, lease):
            _log.warning(
                "visibility (%d s) is shorter than the lease (%s): after a crash a message comes again before its claim"
                " is free, and each such receive counts towards the dead-letter queue; set visibility to the lease",
                visibility,
                spoken(lease),
            )

    async def _go_on(self) -> None:
        receiving = asyncio.create_task(self._receiver.receive(self._stopping))
        keeping = asyncio.create_task(self._hand.keep_hidden())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([receiving, keeping, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopping.set()
            await self._drain(receiving)
            for task in (receiving, keeping, stopped):
                task.cancel()
            ended = await asyncio.gather(receiving, keeping, stopped, return_exceptions=True)
        _raise_first([each for each in ended if isinstance(each, BaseException)])

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, received: list[dict[str, Any]]) -> None:
        self._counts["received"] += len(received)
        for each in received:
            message = self._hand.take(each)
            events = self._lent.read(each)
            message.left = len(events)
            works = [MessageEvent(message, event, self._identified(event), fifo=self._fifo) for event in events]
            for work in works:
                self._dispatcher.offer(work, work.lane, work.order)
            if not works:
                self._hand.end(message)

    def _end(self, work: MessageEvent, again_after: float | None) -> None:
        """One of its message's events has come to an end."""
        message = work.message
        if again_after is not None:
            message.again_after = max(message.again_after or 0, again_after)
        message.left -= 1
        if not message.left:
            self._hand.end(message)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, work: MessageEvent) -> Next:
        if self._lent.boot() >= work.message.visible_until:  # another worker has it, or will
            return self._missed(work, work.message.pause)
        work.ran = True
        outcome = await self._lent.engine.arun(work.item, self._handler)
        if _is_unclaimed(outcome):
            return self._kept(work, outcome)
        if self._is_being_published(work, outcome):
            return RunAgain(_LOOK_AGAIN)
        self._tell(outcome)
        if not outcome.acked:
            return self._missed(work, _pause(outcome, work))
        self._end(work, None)
        return "go_on"

    def _missed(self, work: MessageEvent, again_after: float) -> Next:
        """It comes again, and what comes after it in its lane not before it."""
        if self._dispatcher.waits(work.lane):
            self._pauses[work.lane] = again_after
        self._end(work, again_after)
        return "give_back"

    def _kept(self, work: MessageEvent, outcome: Outcome) -> Next:
        """The store could not be asked, which is no fault of the message: it stays in hand, where the queue does not
        count it, until it can."""
        self._receiver.store.met(f"events cannot be claimed ({outcome.error})")
        work.item = self._identified(work.event)
        return RunAgain(self._receiver.store.pause)

    def _identified(self, event: Event) -> Identified:
        (item,) = handed_to(self._place, [self._lent.identify(event)])
        return item

    def _is_being_published(self, work: MessageEvent, outcome: Outcome) -> bool:
        """Whether it has overtaken its publisher, who notes what was sent a moment later. It stays in hand for that
        moment, where the queue does not count it."""
        if outcome.status != "in_flight" or work.event.evidence.handed_key is None or work.looks == _LOOKS:
            return False
        work.looks += 1
        work.item = self._identified(work.event)
        return True

    def _tell(self, outcome: Outcome) -> None:
        self._lent.observers.outcomes([outcome])
        if name := STATUSES[outcome.status].figure:
            self._counts[name] += 1
        if outcome.status in _ASKED:
            self._receiver.store.over("events can be claimed")

    def _given_back(self, works: Sequence[MessageEvent]) -> None:
        """Not run, because one before it in its lane was not taken, or because all is to end.

        Each time it comes again the queue counts. So that it does not become a dead letter by another's fault, it runs
        all the same, out of order, when it has stepped aside often enough; not so in a FIFO queue."""
        for work in works:
            pause = self._pauses.get(work.lane, work.message.pause)
            if self._stopping.is_set():
                self._end(work, self._still_running(work))
            elif work.ran or self._fifo or work.message.receives <= _STEPS_ASIDE:
                self._end(work, pause)
            else:
                self._dispatcher.offer(work, work.lane, work.order)
        for lane in {work.lane for work in works}:
            self._pauses.pop(lane, None)

    def _still_running(self, work: MessageEvent) -> float:
        """For how long others should let it be: a plain handler goes on, whatever is asked of it."""
        if not (self._plain and work.ran and work.started):
            return 0
        self.left_running += 1
        return self._lent.engine.config.lease / 1e6

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────

    async def _drain(self, receiving: asyncio.Task[None]) -> None:
        """End what is in hand, let go of the rest. Polls that are still open are waited for, but not for long."""
        self._hand.hold_back()
        draining = asyncio.create_task(self._dispatcher.drain(self._ways.drain))
        await asyncio.wait([receiving], timeout=_LAST_POLL)
        self._hand.let_go()
        await self._drained(draining)
        self._receiver.leave()
        await self._hand.flush(_FLUSH_WITHIN)

    async def _drained(self, draining: asyncio.Task[bool]) -> None:
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait([draining, hurried], return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            await self._dispatcher.drain(0)
        await draining
        hurried.cancel()


def _is_unclaimed(outcome: Outcome) -> bool:
    """Whether the store could not be asked. What may run without a claim and failed has raised something."""
    return outcome.status == "failed" and not outcome.event.attempt and outcome.raised is None


def _pause(outcome: Outcome, work: MessageEvent) -> float:
    """In how many seconds an event that was not taken is to come again: when whoever is at it has lost its lease, else
    later each time."""
    left = due_in(outcome)
    return work.message.pause if left is None else min(left, _LONGEST_HIDDEN)


def _raise_first(ended: Sequence[BaseException]) -> None:
    for error in ended:
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from error
        if not isinstance(error, asyncio.CancelledError):
            raise error


# The worker of an SQS queue: messages in, events through the gate, messages deleted or let go.
#
# receive ─▶ read ─▶ dispatcher ─▶ gate ─▶ all events acknowledged ─▶ delete
#                                         └▶ one was not ─▶ visible again, when there is sense in it
#
# Nothing is buried here: how often a message comes, the queue counts, and its dead-letter queue has what always fails.


class SqsWorker:
    """See `oncegate.ingress.worker.Worker`."""

    def __init__(self, queue: str, handler: AsyncHandler | Handler, ways: SqsOptions, lent: WorkerContext) -> None:
        self._address = read_address(queue)
        self._handler = handler
        self._ways = ways
        self._lent = lent
        # All of them from the start: other threads read it, which must not grow meanwhile.
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
            self._lent.engine.close()

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
        session = SqsSession(self._address, self._handler, self._ways, self._lent, self._counts)
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
            self._left_running = session.left_running + self._lent.engine.concurrent.threads.given_up
