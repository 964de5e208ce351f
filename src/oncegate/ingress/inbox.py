"""The inbox worker takes admitted and redriven events from the store in batches, and runs them."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from typing import Any, Final

from msgspec.structs import asdict

from oncegate.backoff import Backoff
from oncegate.durations import spoken
from oncegate.errors import StoreError
from oncegate.events import Event
from oncegate.gate.async_runner import is_async
from oncegate.gate.engine import Engine
from oncegate.gate.handlers import AsyncHandler, Handler, loggable_error, publish_target_of
from oncegate.gate.job import Identified, Job, RejectedEvent, set_destination
from oncegate.gate.limiter import PROCESS, enter_async, first_of
from oncegate.gate.observers import Observers
from oncegate.gate.outcome import STATUSES, Outcome
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.dispatcher import Dispatcher, Next
from oncegate.ingress.handler_wrappers import logged
from oncegate.ingress.supervision import OutageLogger, stopped_by_signals
from oncegate.ingress.worker import Figures

# All times are in seconds.
_LONGEST_PAUSE: Final = 5.0  # between two polls while the store does not answer
_RELEASE_RETRY: Final = (0.2, 2.0)  # the first and the longest pause between two tries to release claims
_RELEASE_AT_LEAST: Final = 1.0  # the shortest time for the last releases, even if the drain time is used up
_POLL_SOON: Final = 0.02  # after an event of an entity has ended
_SUSPECT_TURN: Final = 1.0  # how long suspects run before other events run again
_OTHERS_FACTOR: Final = 10  # after a failed wait of suspects, other events run for this many times the wait
_POLL_AMONG_SUSPECTS: Final = 0.5
_CROWDED: Final = "other handlers ran for longer than {}, so suspects that must run alone wait for another turn"
_log: Final = logging.getLogger("oncegate.work")


class InboxWorker:
    """Implements `oncegate.ingress.worker.Worker` for the inbox. See `Gate.inbox` for the options.

    The store decides which events may run at the same time, because other processes also take events from the store.

    A suspect is an event whose last attempt was never settled. Suspects are released as soon as they are taken. They
    are taken again in separate turns, in which only suspects run: one at a time, while no other handler of this process
    runs. A turn of suspects lasts about a second, or as long as one handler takes. After the turn, other events run for
    at least the same time.

    Before a turn of suspects can begin, the running handlers must end. The turn waits for them for up to
    `GateConfig.alone_within`. If they do not end in this time, other events continue for ten times as long as the turn
    has waited. The next turn waits twice as long, up to `GateConfig.alone_bound`. So suspects delay other events for at
    most a tenth of the time.
    """

    def __init__(
        self,
        engine: Engine,
        identify: Callable[[Event], Identified],
        handler: AsyncHandler | Handler,
        observers: Observers,
        *,
        at_work: int,
        look: int,
        drain: int,
    ) -> None:
        self._engine = engine
        self._identify = identify
        self._handler = logged(handler, has_log=observers.have_log)
        self._publish_target = publish_target_of(handler)
        self._is_plain = not is_async(handler)
        self._outage = OutageLogger(engine.boot)
        self._observers = observers
        # A plain handler needs a thread. While an event waits for a thread here, no other process can run it. So the
        # worker takes at most two events for each thread.
        self._limit = min(at_work, 2 * engine.config.threads) if self._is_plain else at_work
        # Slots that are reserved for `admit`, so that a new event does not wait behind thousands of retries.
        self._admission_slots = self._limit // 8
        self._poll_every = look / 1e6
        self._drain_time = drain / 1e6
        self._pause = self._poll_every
        longest = max(_LONGEST_PAUSE, self._poll_every)
        self._failure_pauses = Backoff(min(2 * self._poll_every, longest), longest)
        self._alone_bound = engine.config.alone_bound
        self._max_hold = engine.config.max_hold / 1e6
        self._suspects = 0  # the number of suspects that the last poll found
        self._next_suspect_turn = 0.0
        self._alone_waits = Backoff(engine.config.alone_within, self._alone_bound, jitter=False)
        self._alone_wait = self._alone_waits.next_pause()  # how long the next turn of suspects waits to run alone
        self._has_waited_in_vain = False
        self._dispatcher: Dispatcher[Job] | None = None
        self._admitting = 0  # slots that are reserved for running admissions
        self._polls_soon = False
        # The entities of events that run directly after their admission. The value is True if more events of the entity
        # were admitted while the event ran.
        self._running_entities: dict[str, bool] = {}
        self._counts: Counter[str] = Counter()
        self._in_hand: set[bytes] = set()
        self._left_running = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    # ── the worker interface ──────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        asyncio.run(self._run_until_stopped())

    async def _run_until_stopped(self) -> None:
        with stopped_by_signals(self.stop):
            await self.work()

    async def work(self) -> None:
        """Work in the running event loop until `stop()` is called. No signal handlers are installed."""
        self._woken, self._stopped = asyncio.Event(), asyncio.Event()
        self._polls_soon = False
        self._running_entities.clear()
        self._in_hand.clear()
        # Takes and releases run in one thread, so a take finds the events that were released before it.
        self._store_thread = CallThreads("oncegate-inbox", 1)
        dispatcher: Dispatcher[Job] = Dispatcher(self._run, self._release_later, most=self._limit)
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            self._dispatcher = dispatcher
            await self._work(dispatcher)
        finally:
            self._store_thread.close()
            self._dispatcher = None
            with self._lock:
                self._loop, self._stopping = None, False

    async def _work(self, dispatcher: Dispatcher[Job]) -> None:
        try:
            while not self._stopping:
                await self._take_and_start(dispatcher)
        finally:
            deadline = time.monotonic() + self._drain_time
            await dispatcher.drain(self._drain_time)
            given_up = self._engine.async_runner.threads.given_up
            self._left_running = len(self._in_hand) + given_up if self._is_plain else 0
            await self._finish(max(deadline - time.monotonic(), _RELEASE_AT_LEAST))

    async def _finish(self, within: float) -> None:
        """Wait until claims are released and settlements are written, for at most `within` seconds.

        Releases and settlements are store calls. If the store does not answer, they block for up to the length of a
        lease, so they run in threads. Calls that have not ended within `within` seconds continue in these threads while
        the process lives."""
        released = asyncio.create_task(self._store_thread.call(_do_nothing))  # runs after all releases
        tasks = [released]
        if not self._left_running:
            closing = CallThreads("oncegate-inbox-close", 1)
            tasks.append(asyncio.create_task(closing.call(self._engine.close)))
            closing.close()
        finished, unfinished = await asyncio.wait(tasks, timeout=within)
        for task in unfinished:
            task.cancel()
        if released in unfinished:
            _log.warning(
                "the store did not answer within %s, so some events that were taken but not started are not released;"
                " other workers can take them when their leases end",
                spoken(int(within * 1e6)),
            )
        for task in finished:
            task.result()  # raises the error of the call

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stopped.set)

    def wake(self) -> None:
        """Make the worker poll the store now, because an event was admitted. May be called from any thread."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._woken.set)

    @property
    def figures(self) -> Figures:
        return Figures(**self._counts, in_hand=len(self._in_hand))

    @property
    def hung(self) -> int:
        """See `Gate.hung`."""
        return self._engine.hung

    @property
    def threads_left(self) -> int:
        """See `Gate.threads_left`."""
        return self._engine.threads_left

    @property
    def left_running(self) -> int:
        return self._left_running

    # ── admissions that run at once ───────────────────────────────────────────────────────────────────────

    async def admit(self, events: Sequence[Event]) -> list[Outcome]:
        """Admit events in the same way as `Gate.aadmit`. Must be called in the event loop in which `work` runs.

        An event runs directly, without another request to the store, if this worker has a free slot and no other
        admitted event of the same entity waits."""
        slots, token = min(self._free_slots(), len(events)), object()
        if slots and not PROCESS.enter_now(token, self._max_hold):
            slots = 0
        self._admitting += slots
        try:
            identified = set_destination(self._publish_target, [self._identify(event) for event in events])
            items = await self._engine.async_runner.admit(identified, slots)
            outcomes = [item.outcome for item in items]
            self._run_admitted(items)
        finally:
            self._admitting -= slots
            PROCESS.leave(token)
        self._observers.outcomes(outcomes)
        return outcomes

    def _run_admitted(self, items: Sequence[Job | RejectedEvent]) -> None:
        for item in items:
            if isinstance(item, Job) and item.held:
                if not self._run_now(item):
                    self._engine.async_runner.release_held(item)
            elif item.outcome.status == "accepted":
                self._poll_for(item.outcome.event.entity)

    def _free_slots(self) -> int:
        """Returns how many events of an admission may run directly."""
        if self._dispatcher is None or self._stopping or self._has_no_thread:
            return 0
        return max(0, self._dispatcher.room - self._admitting)

    def _run_now(self, job: Job) -> bool:
        if self._dispatcher is None or self._stopping:
            return False
        if job.event.entity is not None:
            self._running_entities[job.event.entity] = False
        self._counts["received"] += 1
        self._offer(self._dispatcher, job)
        return True

    def _poll_for(self, entity: str | None) -> None:
        """Make the worker poll the store for a new event of this entity. If an event of this entity runs here, the
        worker polls after that event has ended. Otherwise it polls now."""
        if entity in self._running_entities:
            self._running_entities[entity] = True
        elif self._dispatcher is not None:
            self._woken.set()

    # ── taking events from the store ──────────────────────────────────────────────────────────────────────

    async def _take_and_start(self, dispatcher: Dispatcher[Job]) -> None:
        self._woken.clear()
        if self._suspects and time.monotonic() >= self._next_suspect_turn:
            await self._run_suspects(dispatcher)
        await self._wait_for_room(dispatcher, 1 + self._admission_slots)
        if self._has_no_thread and not self._stopping:  # leave the waiting events to other processes
            await self._wait()
            return
        token = object()
        try:
            if not PROCESS.enter_now(token, self._max_hold) and not await enter_async(
                token, self._max_hold, unless=self._stopped
            ):
                return
            room = max(0, dispatcher.room - self._admission_slots)
            if self._stopping or not room:
                return
            jobs = await self._take(room + self._suspects, without_suspects=True)
            self._release_later(jobs[room:])
            self._start(dispatcher, jobs[:room])
        finally:
            PROCESS.leave(token)
        if self._suspects:
            await self._wait_for_suspect_turn(dispatcher, found_others=bool(jobs))
        elif not jobs:
            await self._wait()

    @property
    def _has_no_thread(self) -> bool:
        """Whether hung handlers occupy all threads. In this case an event that is taken could not start."""
        return self._is_plain and self._engine.async_runner.threads.left == 0

    async def _wait(self) -> None:
        await first_of(self._woken.wait(), self._stopped.wait(), within=self._pause)

    async def _wait_for_room(self, dispatcher: Dispatcher[Job], least: int, until: float = inf) -> None:
        """Wait until the dispatcher has `least` free slots. Stops waiting at the time `until` (monotonic clock), or
        when the worker stops."""
        while not self._stopping and dispatcher.room < least:
            left = until - time.monotonic()
            if left <= 0:
                break
            await first_of(dispatcher.room_for(least), self._stopped.wait(), within=None if left == inf else left)

    async def _take(self, limit: int, *, without_suspects: bool = False) -> list[Job]:
        """Take up to `limit` events that may run now. Returns [] if the store fails, or if the worker is stopped before
        the store answers."""
        try:
            jobs = await self._take_in_thread(limit, without_suspects)
        except Exception as error:  # noqa: BLE001  # one failed poll must not end the worker
            reason = str(error) if isinstance(error, StoreError) else loggable_error(error)
            self._observers.notify("inbox.failed", detail=reason)
            self._outage.failed(f"waiting events cannot be taken from the store ({reason})")
            self._pause = self._failure_pauses.next_pause()
            return []
        if jobs is None:
            return []
        self._pause = self._poll_every
        self._failure_pauses.reset()
        self._outage.succeeded("waiting events can be taken from the store")
        self._counts["received"] += len(jobs)
        return jobs

    async def _take_in_thread(self, limit: int, without_suspects: bool) -> list[Job] | None:
        """Take up to `limit` events in the store thread. Returns None if the worker is stopped before the store
        answers. If the worker is stopped or this coroutine is cancelled, the jobs are released when the store
        answers."""
        taking = self._store_thread.submit(self._take_now, limit, without_suspects)
        try:
            await first_of(_end_of(taking), self._stopped.wait())
        except BaseException:
            self._store_thread.submit(self._release_taken, taking)
            raise
        if taking.done():
            return taking.result()
        self._store_thread.submit(self._release_taken, taking)
        return None

    def _take_now(self, limit: int, without_suspects: bool) -> list[Job]:
        """Take up to `limit` events. With `without_suspects`, the suspects among them are released at once: if the
        process died while it holds a suspect, the suspect would lose one more attempt."""
        jobs = self._engine.claimer.take(limit, in_order=True)
        if not without_suspects:
            return jobs
        suspects = [job for job in jobs if job.runs_alone]
        self._suspects = len(suspects)
        self._release(suspects)
        return [job for job in jobs if not job.runs_alone] if suspects else jobs

    # ── running events ────────────────────────────────────────────────────────────────────────────────────

    def _start(self, dispatcher: Dispatcher[Job], jobs: Sequence[Job]) -> None:
        self._engine.async_runner.hold(jobs)
        for job in jobs:
            self._offer(dispatcher, job)

    def _offer(self, dispatcher: Dispatcher[Job], job: Job) -> None:
        PROCESS.add(job, self._max_hold)
        dispatcher.offer(job)

    async def _run(self, job: Job) -> Next:
        self._in_hand.add(job.key.digest)
        set_destination(self._publish_target, [job])
        try:
            await self._engine.async_runner.run_granted(job, self._handler)
        except asyncio.CancelledError:  # the drain time is over; a plain handler that has started continues
            if not job.started:
                self._in_hand.discard(job.key.digest)
            raise
        except BaseException:
            self._ended(job)
            raise
        finally:
            PROCESS.leave(job)
        self._ended(job)
        self._observers.outcomes([job.outcome])
        if name := STATUSES[job.outcome.status].figure:
            self._counts[name] += 1
        return "go_on"

    def _ended(self, job: Job) -> None:
        """Make the worker poll for the next event of the entity. The worker polls at once if the job was taken from the
        store, or if another event of the entity was admitted here while the job ran. Otherwise another process may have
        admitted an event of the entity, so the worker polls a little later. A poll after every event would cost more
        than the event itself."""
        self._in_hand.discard(job.key.digest)
        if not job.run_now or self._running_entities.pop(job.event.entity or "", False):
            self._woken.set()
        elif job.event.entity is not None and not self._polls_soon:
            self._polls_soon = True
            asyncio.get_running_loop().call_later(min(_POLL_SOON, self._poll_every), self._poll_soon)

    def _poll_soon(self) -> None:
        self._polls_soon = False
        self._woken.set()

    # ── suspects ──────────────────────────────────────────────────────────────────────────────────────────

    async def _run_suspects(self, dispatcher: Dispatcher[Job]) -> None:
        begun, token, pause = time.monotonic(), object(), 0.0
        try:
            alone_for = self._alone_bound + _SUSPECT_TURN
            if await enter_async(
                token, self._max_hold, alone_for=alone_for, within=self._alone_wait, unless=self._stopped
            ):
                self._alone_waits.reset()
                self._alone_wait = self._alone_waits.next_pause()
                self._has_waited_in_vain = False
                await self._run_suspect_turn(dispatcher, begun)
            elif not self._stopping:
                self._observers.notify("inbox.crowded", detail=_CROWDED.format(spoken(int(self._alone_wait * 1e6))))
                pause = _OTHERS_FACTOR * self._alone_wait
                self._alone_wait = self._alone_waits.next_pause()
                self._has_waited_in_vain = True
        finally:
            PROCESS.leave(token)
        now = time.monotonic()
        self._next_suspect_turn = now + max(now - begun, pause)

    async def _run_suspect_turn(self, dispatcher: Dispatcher[Job], begun: float) -> None:
        """Run suspects one after the other. A suspect that does not end within `GateConfig.alone_bound` continues while
        other events run."""
        while self._suspects and not self._stopping:
            jobs = await self._take(1)
            self._start(dispatcher, jobs)
            self._suspects = self._suspects - 1 if jobs else 0
            await self._wait_for_room(dispatcher, self._limit, time.monotonic() + self._alone_bound)
            if dispatcher.in_hand or time.monotonic() - begun >= _SUSPECT_TURN:
                break

    async def _wait_for_suspect_turn(self, dispatcher: Dispatcher[Job], *, found_others: bool) -> None:
        """Wait before the next poll while there are suspects. Every poll takes and releases all suspects, so the worker
        polls less often. If there are no other events, the turn of the suspects begins at once."""
        is_idle = not found_others and not dispatcher.in_hand and not self._admitting
        if is_idle and not self._has_waited_in_vain:
            self._next_suspect_turn = 0.0
            return
        left = min(_POLL_AMONG_SUSPECTS, max(0.0, self._next_suspect_turn - time.monotonic()))
        await first_of(self._stopped.wait(), within=left)

    # ── releasing claims ──────────────────────────────────────────────────────────────────────────────────

    def _release_later(self, jobs: Sequence[Job]) -> None:
        """Release claims whose handler has not started, in the store thread. A handler that was cancelled while it ran
        has settled its claim itself."""
        for job in jobs:
            PROCESS.leave(job)
        if unstarted := [job for job in jobs if not job.started]:
            self._store_thread.submit(self._release, unstarted)

    def _release_taken(self, taking: Future[list[Job]]) -> None:
        """Release the events of a take that was abandoned. This runs in the store thread after the take, so the take
        has ended."""
        if taking.exception() is None:
            self._release(taking.result())

    def _release(self, jobs: Sequence[Job]) -> None:
        """Release claims, with retries until the leases end. Without a release, an attempt that never started would
        count."""
        pauses = Backoff(*_RELEASE_RETRY)
        while jobs := self._engine.runner.release_unstarted(jobs):
            time.sleep(pauses.next_pause())


async def _end_of(future: Future[Any]) -> None:
    with suppress(Exception):  # the caller reads the error from the future
        await asyncio.wrap_future(future)


def _do_nothing() -> None:
    """When this call has ended, all calls that were submitted before it have ended."""


class Inboxes:
    """A `Worker` that runs several inbox workers, one for each namespace, in one event loop."""

    def __init__(self, workers: Sequence[InboxWorker]) -> None:
        self._workers = workers

    def run(self) -> None:
        asyncio.run(self._run_until_stopped())

    async def _run_until_stopped(self) -> None:
        with stopped_by_signals(self.stop):
            tasks = [asyncio.create_task(worker.work()) for worker in self._workers]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.stop()  # one worker was stopped or has failed, so stop the other workers too
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    @property
    def figures(self) -> Figures:
        all_figures = [asdict(worker.figures) for worker in self._workers]
        return Figures(**{name: sum(figures[name] for figures in all_figures) for name in asdict(Figures())})

    @property
    def left_running(self) -> int:
        return sum(worker.left_running for worker in self._workers)
