"""The inbox: what the store keeps is taken from it, a batch at a time, and run."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from oncegate.errors import StoreError
from oncegate.events import Event
from oncegate.gate.concurrent import is_async
from oncegate.gate.engine import Engine
from oncegate.gate.handlers import AsyncHandler, Handler, place_of, told
from oncegate.gate.jobs import Identified, Job, handed_to
from oncegate.gate.observing import Observers
from oncegate.gate.outcome import Outcome, Status
from oncegate.gate.running import PATIENCE
from oncegate.gate.working import Figures
from oncegate.work.dispatcher import Dispatcher, Next
from oncegate.work.handling import logged
from oncegate.work.signals import stopped_by_signals

_LONGEST_PAUSE: Final = 5.0
_GIVE_BACK_EVERY: Final = 0.2
_SOON: Final = 0.02
_COUNTED: Final[dict[Status, str]] = {"processed": "processed", "failed": "failed", "buried": "failed"}


class InboxWorker:
    """Runs what waits; see `Gate.inbox`, and `oncegate.gate.working.Worker` for what can be asked of it.

    Which events may run beside each other is the store's to say, since others take from it too. A last attempt is taken
    and run while nothing else is in hand: an event that kills its process then takes no neighbour with it, and no
    neighbour that kills the process spends its attempt. But nobody waits longer than a moment for that, before or
    after: what hangs, or takes long, must not stop the rest."""

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
        self._handler = logged(handler)
        self._place = place_of(handler)
        self._observers = observers
        # Of those that have to wait for a thread a few are enough: what waits here nobody else can run.
        self._at_work = at_work if is_async(handler) else min(at_work, 2 * engine.terms.threads)
        self._look = look / 1e6
        self._drain = drain / 1e6
        self._pause = self._look
        self._alone = False
        self._begun = 0.0  # when something was last put in hand
        self._dispatcher: Dispatcher[Job] | None = None
        self._asked = 0
        self._looks_soon = False
        # The entities of what runs straight from its admission, and whether more of them was kept meanwhile.
        self._lines: dict[str, bool] = {}
        self._counts: Counter[str] = Counter()
        self._started: set[bytes] = set()
        self._left_running = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    def run(self) -> None:
        asyncio.run(self._run_until_stopped())

    async def _run_until_stopped(self) -> None:
        with stopped_by_signals(self.stop):
            await self.work()

    async def work(self) -> None:
        """The same in a loop that is there already, where no signal stops it."""
        self._woken, self._stopped, self._answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._looks_soon = False
        self._lines.clear()
        self._started.clear()
        dispatcher: Dispatcher[Job] = Dispatcher(self._run, self._give_back, most=self._at_work)
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="oncegate-inbox") as self._thread:
                self._dispatcher = dispatcher
                await self._work(dispatcher)
        finally:
            self._dispatcher = None
            with self._lock:
                self._loop, self._stopping = None, False

    async def _work(self, dispatcher: Dispatcher[Job]) -> None:
        try:
            while not self._stopping:
                await self._fill(dispatcher)
        finally:
            await dispatcher.drain(self._drain)
            self._left_running = 0 if is_async(self._handler) else len(self._started)
        if not self._left_running:
            self._engine.close()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stopped.set)

    def wake(self) -> None:
        """Something waits now: look at once. May be called from any thread."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._woken.set)

    async def admit(self, events: Sequence[Event]) -> list[Outcome]:
        """Have the store keep these, as `Gate.aadmit` does, in the loop in which `work` runs. What nothing else of its
        entity is kept before is run from here, if there is room: the store need not be asked for it again."""
        room = min(self._room_at_once(), len(events))
        self._asked += room
        try:
            identified = handed_to(self._place, [self._identify(event) for event in events])
            items = await self._engine.aadmit(identified, room)
        finally:
            self._asked -= room
            if self._dispatcher is not None:
                self._answered.set()
        outcomes = [item.outcome for item in items]
        for item in items:
            if isinstance(item, Job) and item.held:
                if not self._run_at_once(item):
                    self._engine.concurrent.let_go(item)
            elif item.outcome.status == "accepted":
                self._leave_for_later(item.outcome.event.entity)
        self._observers.outcomes(outcomes)
        return outcomes

    def _room_at_once(self) -> int:
        """How much may be wanted from an admission now. Last attempts, which run alone, are taken from the store."""
        if self._dispatcher is None or self._stopping or self._alone or self._engine.terms.max_attempts == 1:
            return 0
        return max(0, self._dispatcher.room - self._asked)

    def _run_at_once(self, job: Job) -> bool:
        if self._dispatcher is None or self._stopping:
            return False
        job.key = replace(job.key, strategy="kept")
        if job.event.entity is not None:
            self._lines[job.event.entity] = False
        self._counts["received"] += 1
        self._offer(self._dispatcher, job)
        return True

    def _offer(self, dispatcher: Dispatcher[Job], job: Job) -> None:
        self._begun = time.monotonic()
        dispatcher.offer(job)

    def _leave_for_later(self, entity: str | None) -> None:
        """What waits for something that runs here is looked for when that is done, all else now."""
        if entity in self._lines:
            self._lines[entity] = True
        elif self._dispatcher is not None:
            self._woken.set()

    @property
    def figures(self) -> Figures:
        return Figures(**self._counts, in_hand=len(self._started))

    @property
    def left_running(self) -> int:
        return self._left_running

    async def _fill(self, dispatcher: Dispatcher[Job]) -> None:
        self._woken.clear()
        alone = self._alone
        if alone:
            await self._room(dispatcher, self._at_work, self._begun + PATIENCE)
        await self._room(dispatcher, 1)
        if self._stopping:
            return
        jobs = await self._taken(1 if alone else dispatcher.room)
        last = [job for job in jobs if self._is_last(job)]
        if last and not alone and (len(jobs) > 1 or dispatcher.in_hand or self._asked):
            self._give_back(last)
            jobs = [job for job in jobs if job not in last]
        self._alone = bool(last)
        self._engine.concurrent.hold(jobs)
        for job in jobs:
            self._offer(dispatcher, job)
        if not jobs and not last:
            await self._wait()

    async def _room(self, dispatcher: Dispatcher[Job], least: int, until: float = inf) -> None:
        """Wait for room, or until a time, or until it is stopped. Alone is what has all of it to itself, with nothing
        asked for."""
        while not self._stopping and (dispatcher.room < least or (self._alone and self._asked)):
            left = until - time.monotonic()
            if left <= 0:
                break
            self._answered.clear()
            change = dispatcher.room_for(least) if dispatcher.room < least else self._answered.wait()
            await self._first(change, self._stopped.wait(), within=None if left == inf else left)

    async def _first(self, *awaited: Coroutine[Any, Any, object], within: float | None = None) -> None:
        """Wait for the first of these, at most so many seconds."""
        tasks = [asyncio.ensure_future(each) for each in awaited]
        try:
            await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _taken(self, most: int) -> list[Job]:
        try:
            jobs = await self._in_thread(most)
        except Exception as error:  # noqa: BLE001  # whatever was wrong with one look, the next may find all well
            self._observers.tell("inbox.failed", detail=str(error) if isinstance(error, StoreError) else told(error))
            self._pause = min(2 * self._pause, max(_LONGEST_PAUSE, self._look))
            return []
        self._pause = self._look
        self._counts["received"] += len(jobs)
        return jobs

    async def _in_thread(self, most: int) -> list[Job]:
        """What is taken when nobody waits for it any more is given back."""
        taking = self._thread.submit(self._engine.claimer.take, most, in_order=True)
        try:
            return await asyncio.shield(asyncio.wrap_future(taking))
        except asyncio.CancelledError:
            taking.add_done_callback(self._untake)
            raise

    def _untake(self, taken: Future[list[Job]]) -> None:
        if taken.exception() is None:
            self._let_go(taken.result())

    async def _wait(self) -> None:
        await self._first(self._woken.wait(), self._stopped.wait(), within=self._pause)

    def _is_last(self, job: Job) -> bool:
        most = self._engine.terms.max_attempts
        return most is not None and job.event.attempt >= most

    async def _run(self, job: Job) -> Next:
        self._started.add(job.key.digest)
        handed_to(self._place, [job])
        try:
            await self._engine.concurrent.run_granted(job, self._handler)
        except asyncio.CancelledError:  # by the end of the time to drain; a plain handler that has begun runs on
            if not job.started:
                self._started.discard(job.key.digest)
            raise
        except BaseException:
            self._ended(job)
            raise
        self._ended(job)
        self._observers.outcomes([job.outcome])
        if name := _COUNTED.get(job.outcome.status):
            self._counts[name] += 1
        return "go_on"

    def _ended(self, job: Job) -> None:
        """The next of its entity may be free now. What others have kept of it is looked for soon: to look after every
        event would cost more than to run it."""
        self._started.discard(job.key.digest)
        if not job.at_once or self._lines.pop(job.event.entity or "", False):
            self._woken.set()
        elif job.event.entity is not None and not self._looks_soon:
            self._looks_soon = True
            asyncio.get_running_loop().call_later(min(_SOON, self._look), self._look_soon)

    def _look_soon(self) -> None:
        self._looks_soon = False
        self._woken.set()

    def _give_back(self, jobs: Sequence[Job]) -> None:
        """In the thread, so that what is taken next finds it. What was cancelled while it ran has settled itself."""
        if unstarted := [job for job in jobs if not job.started]:
            self._thread.submit(self._let_go, unstarted)

    def _let_go(self, jobs: Sequence[Job]) -> None:
        """Until it is done, or their leases are over: an attempt that was never made must not count."""
        while jobs := self._engine.runner.give_back(jobs):
            time.sleep(_GIVE_BACK_EVERY)
