"""The inbox: what the store keeps is taken from it, a batch at a time, and run."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Final

from msgspec.structs import asdict

from oncegate.durations import spoken
from oncegate.errors import StoreError
from oncegate.events import Event
from oncegate.gate.async_runner import is_async
from oncegate.gate.engine import Engine
from oncegate.gate.handlers import AsyncHandler, Handler, loggable_error, publish_target_of
from oncegate.gate.job import Identified, Job, RejectedEvent, handed_to
from oncegate.gate.limiter import PROCESS, enter_async, first_of
from oncegate.gate.observers import Observers
from oncegate.gate.outcome import STATUSES, Outcome
from oncegate.ingress.dispatcher import Dispatcher, Next
from oncegate.ingress.handler_wrappers import logged
from oncegate.ingress.supervision import OutageLogger, stopped_by_signals
from oncegate.ingress.worker import Figures

_LONGEST_PAUSE: Final = 5.0
_GIVE_BACK_EVERY: Final = 0.2
_SOON: Final = 0.02
_TURN: Final = 1.0  # seconds that suspects run at a time
_OTHERS_TURN: Final = 10  # how much longer others go on than suspects have waited in vain
_LOOK_AMONG_SUSPECTS: Final = 0.5
_CROWDED: Final = "other handlers ran for longer than {}, so suspects that must run alone wait for another turn"


class InboxWorker:
    """Runs what waits; see `Gate.inbox`, and `oncegate.ingress.worker.Worker` for what can be asked of it.

    Which events may run beside each other is the store's to say, since others take from it too. Suspects, whose last
    attempt was never settled, are given back as soon as they are taken. In turns of their own they are taken again and
    run, one at a time, while no other handler of this process runs. Such a turn lasts about a second, or as long as one
    handler takes, and all others have at least as long a turn after it. If the handlers that run do not end within
    `Terms.alone_within`, the others go on for ten times as long, and the suspects then wait twice as long, up to
    `Terms.alone_bound`: so others are held up for a tenth of the time at most."""

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
        self._place = publish_target_of(handler)
        self._plain = not is_async(handler)
        self._store = OutageLogger(engine.boot)
        self._observers = observers
        # Of those that have to wait for a thread a few are enough: what waits here nobody else can run.
        self._at_work = at_work if is_async(handler) else min(at_work, 2 * engine.config.threads)
        # Places that only admissions fill, so that a new event need not wait behind thousands that are tried again.
        self._reserved = self._at_work // 8
        self._look = look / 1e6
        self._drain = drain / 1e6
        self._pause = self._look
        self._bound = engine.config.alone_bound
        self._hold = engine.config.max_hold / 1e6
        self._suspects = 0  # how many were seen at the last look
        self._next_turn = 0.0  # when suspects may run next
        self._within = self._patience = engine.config.alone_within
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
        self._woken, self._stopped = asyncio.Event(), asyncio.Event()
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
            given_up = self._engine.concurrent.threads.given_up
            self._left_running = 0 if is_async(self._handler) else len(self._started) + given_up
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
        room, token = min(self._room_at_once(), len(events)), object()
        if room and not PROCESS.enter_now(token, self._hold):
            room = 0
        self._asked += room
        try:
            identified = handed_to(self._place, [self._identify(event) for event in events])
            items = await self._engine.aadmit(identified, room)
            outcomes = [item.outcome for item in items]
            self._run_admitted(items)
        finally:
            self._asked -= room
            PROCESS.leave(token)
        self._observers.outcomes(outcomes)
        return outcomes

    def _run_admitted(self, items: Sequence[Job | RejectedEvent]) -> None:
        for item in items:
            if isinstance(item, Job) and item.held:
                if not self._run_at_once(item):
                    self._engine.concurrent.let_go(item)
            elif item.outcome.status == "accepted":
                self._leave_for_later(item.outcome.event.entity)

    def _room_at_once(self) -> int:
        """How much may be wanted from an admission now."""
        if self._dispatcher is None or self._stopping or self._has_no_thread:
            return 0
        return max(0, self._dispatcher.room - self._asked)

    def _run_at_once(self, job: Job) -> bool:
        if self._dispatcher is None or self._stopping:
            return False
        if job.event.entity is not None:
            self._lines[job.event.entity] = False
        self._counts["received"] += 1
        self._offer(self._dispatcher, job)
        return True

    def _offer(self, dispatcher: Dispatcher[Job], job: Job) -> None:
        PROCESS.add(job, self._hold)
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
    def _has_no_thread(self) -> bool:
        """Whether handlers that hang have taken every thread: nothing that is taken could start."""
        return self._plain and self._engine.threads_left == 0

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

    async def _fill(self, dispatcher: Dispatcher[Job]) -> None:
        self._woken.clear()
        if self._suspects and time.monotonic() >= self._next_turn:
            await self._run_suspects(dispatcher)
        await self._room(dispatcher, 1 + self._reserved)
        if self._has_no_thread and not self._stopping:  # another process can run what waits
            await self._wait()
            return
        token = object()
        try:
            if not PROCESS.enter_now(token, self._hold) and not await enter_async(
                token, self._hold, unless=self._stopped
            ):
                return
            room = max(0, dispatcher.room - self._reserved)
            if self._stopping or not room:
                return
            jobs = await self._taken(room + self._suspects, apart=True)
            self._give_back(jobs[room:])
            self._begin(dispatcher, jobs[:room])
        finally:
            PROCESS.leave(token)
        if self._suspects:
            await self._wait_between(dispatcher, nothing_else=not jobs)
        elif not jobs:
            await self._wait()

    def _begin(self, dispatcher: Dispatcher[Job], jobs: Sequence[Job]) -> None:
        self._engine.concurrent.hold(jobs)
        for job in jobs:
            self._offer(dispatcher, job)

    async def _wait_between(self, dispatcher: Dispatcher[Job], *, nothing_else: bool) -> None:
        """Every look takes the suspects and gives them back, so while there are some it looks less often. Their turn
        comes at once if nothing else is to be done."""
        if nothing_else and not dispatcher.in_hand and not self._asked and self._patience == self._within:
            self._next_turn = 0.0
            return
        left = min(_LOOK_AMONG_SUSPECTS, max(0.0, self._next_turn - time.monotonic()))
        await first_of(self._stopped.wait(), within=left)

    async def _run_suspects(self, dispatcher: Dispatcher[Job]) -> None:
        begun, token, pause = time.monotonic(), object(), 0.0
        try:
            alone_for = self._bound + _TURN
            if await enter_async(token, self._hold, alone_for=alone_for, within=self._patience, unless=self._stopped):
                self._patience = self._within
                await self._turn(dispatcher, begun)
            elif not self._stopping:
                self._observers.notify("inbox.crowded", detail=_CROWDED.format(spoken(int(self._patience * 1e6))))
                pause = _OTHERS_TURN * self._patience
                self._patience = min(2 * self._patience, self._bound)
        finally:
            PROCESS.leave(token)
        now = time.monotonic()
        self._next_turn = now + max(now - begun, pause)

    async def _turn(self, dispatcher: Dispatcher[Job], begun: float) -> None:
        """Run suspects one after the other. One that does not end within the bound runs on beside others."""
        while self._suspects and not self._stopping:
            jobs = await self._taken(1)
            self._begin(dispatcher, jobs)
            self._suspects = self._suspects - 1 if jobs else 0
            await self._room(dispatcher, self._at_work, time.monotonic() + self._bound)
            if dispatcher.in_hand or time.monotonic() - begun >= _TURN:
                break

    async def _room(self, dispatcher: Dispatcher[Job], least: int, until: float = inf) -> None:
        """Wait for room, or until a time, or until it is stopped."""
        while not self._stopping and dispatcher.room < least:
            left = until - time.monotonic()
            if left <= 0:
                break
            await first_of(dispatcher.room_for(least), self._stopped.wait(), within=None if left == inf else left)

    async def _taken(self, most: int, *, apart: bool = False) -> list[Job]:
        """What may run now; suspects too, unless they are to be kept apart."""
        try:
            jobs = await self._in_thread(most, apart)
        except Exception as error:  # noqa: BLE001  # whatever was wrong with one look, the next may find all well
            why = str(error) if isinstance(error, StoreError) else loggable_error(error)
            self._observers.notify("inbox.failed", detail=why)
            self._store.met(f"events that wait cannot be taken from the store ({why})")
            self._pause = min(2 * self._pause, max(_LONGEST_PAUSE, self._look))
            return []
        self._pause = self._look
        self._store.over("events that wait can be taken from the store")
        self._counts["received"] += len(jobs)
        return jobs

    async def _in_thread(self, most: int, apart: bool) -> list[Job]:
        """What is taken when nobody waits for it any more is given back."""
        taking = self._thread.submit(self._take, most, apart)
        try:
            return await asyncio.shield(asyncio.wrap_future(taking))
        except asyncio.CancelledError:
            taking.add_done_callback(self._untake)
            raise

    def _take(self, most: int, apart: bool) -> list[Job]:
        """Suspects are given back at once: one that is held while the process dies loses one more attempt."""
        jobs = self._engine.claimer.take(most, in_order=True)
        if not apart:
            return jobs
        suspects = [job for job in jobs if job.runs_alone]
        self._suspects = len(suspects)
        self._let_go(suspects)
        return [job for job in jobs if not job.runs_alone] if suspects else jobs

    def _untake(self, taken: Future[list[Job]]) -> None:
        if taken.exception() is None:
            self._let_go(taken.result())

    async def _wait(self) -> None:
        await first_of(self._woken.wait(), self._stopped.wait(), within=self._pause)

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
        finally:
            PROCESS.leave(job)
        self._ended(job)
        self._observers.outcomes([job.outcome])
        if name := STATUSES[job.outcome.status].figure:
            self._counts[name] += 1
        return "go_on"

    def _ended(self, job: Job) -> None:
        """The next of its entity may be free now. What others have kept of it is looked for soon: to look after every
        event would cost more than to run it."""
        self._started.discard(job.key.digest)
        if not job.run_now or self._lines.pop(job.event.entity or "", False):
            self._woken.set()
        elif job.event.entity is not None and not self._looks_soon:
            self._looks_soon = True
            asyncio.get_running_loop().call_later(min(_SOON, self._look), self._look_soon)

    def _look_soon(self) -> None:
        self._looks_soon = False
        self._woken.set()

    def _give_back(self, jobs: Sequence[Job]) -> None:
        """In the thread, so that what is taken next finds it. What was cancelled while it ran has settled itself."""
        for job in jobs:
            PROCESS.leave(job)
        if unstarted := [job for job in jobs if not job.started]:
            self._thread.submit(self._let_go, unstarted)

    def _let_go(self, jobs: Sequence[Job]) -> None:
        """Until it is done, or their leases are over: an attempt that was never made must not count."""
        while jobs := self._engine.runner.release_unstarted(jobs):
            time.sleep(_GIVE_BACK_EVERY)


# Several inboxes worked off by one process: one for each namespace, with a gate and a handler of its own.


class Inboxes:
    """Runs its workers in one event loop; see `oncegate.ingress.worker.Worker` for what can be asked of it."""

    def __init__(self, workers: Sequence[InboxWorker]) -> None:
        self._workers = workers

    def run(self) -> None:
        asyncio.run(self._run_until_stopped())

    async def _run_until_stopped(self) -> None:
        with stopped_by_signals(self.stop):
            tasks = [asyncio.create_task(worker.work()) for worker in self._workers]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.stop()  # one that ended was stopped, or has failed: then the others end too
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    @property
    def figures(self) -> Figures:
        each = [asdict(worker.figures) for worker in self._workers]
        return Figures(**{name: sum(figures[name] for figures in each) for name in asdict(Figures())})

    @property
    def left_running(self) -> int:
        return sum(worker.left_running for worker in self._workers)
