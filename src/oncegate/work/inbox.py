"""The inbox: what the store keeps is taken from it, a batch at a time, and run."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from oncegate.errors import StoreError
from oncegate.gate.engine import Engine
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.jobs import Job
from oncegate.gate.observing import Observers
from oncegate.work.dispatcher import Dispatcher, Next

_DRAIN_WITHIN: Final = 25.0
_LONGEST_PAUSE: Final = 5.0


class InboxWorker:
    """Runs what waits; see `Gate.inbox`. One worker is used by one event loop.

    Which events may run beside each other is the store's to say, since others take from it too. A last attempt is taken
    and run while nothing else is in hand: an event that kills its process then takes no neighbour with it, and no
    neighbour that kills the process spends its attempt."""

    def __init__(
        self, engine: Engine, handler: AsyncHandler | Handler, observers: Observers, at_work: int, look: int
    ) -> None:
        self._engine = engine
        self._handler = handler
        self._observers = observers
        self._at_work = at_work
        self._look = look / 1e6
        self._pause = self._look
        self._alone = False
        self._stopping = False
        self._woken = asyncio.Event()

    async def work(self, drain: float = _DRAIN_WITHIN) -> None:
        """Run what waits until it is stopped; what runs then has so many seconds to end."""
        dispatcher: Dispatcher[Job] = Dispatcher(self._run, self._give_back, most=self._at_work)
        with ThreadPoolExecutor(1, thread_name_prefix="oncegate-inbox") as self._thread:
            try:
                while not self._stopping:
                    await self._fill(dispatcher)
            finally:
                await dispatcher.drain(drain)

    def stop(self) -> None:
        """Take nothing more. Called in the loop."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """Something waits now: look at once. Called in the loop."""
        self._woken.set()

    async def _fill(self, dispatcher: Dispatcher[Job]) -> None:
        self._woken.clear()
        room = await dispatcher.room_for(self._at_work if self._alone else 1)
        jobs = await self._taken(1 if self._alone else room)
        last = [job for job in jobs if self._is_last(job)]
        if last and (len(jobs) > 1 or dispatcher.in_hand):
            self._give_back(last)
            jobs = [job for job in jobs if job not in last]
        self._alone = bool(last)
        for job in jobs:
            dispatcher.offer(job)
        if not jobs and not last:
            await self._wait()

    async def _taken(self, most: int) -> list[Job]:
        try:
            jobs = await self._in_thread(most)
        except StoreError as error:
            self._observers.tell("inbox.failed", detail=str(error))
            self._pause = min(2 * self._pause, max(_LONGEST_PAUSE, self._look))
            return []
        self._pause = self._look
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
            self._engine.runner.give_back(taken.result())

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._pause):
                await self._woken.wait()
        except TimeoutError:
            return

    def _is_last(self, job: Job) -> bool:
        most = self._engine.terms.max_attempts
        return most is not None and job.event.attempt >= most

    async def _run(self, job: Job) -> Next:
        try:
            await self._engine.concurrent.run_taken(job, self._handler)
            self._observers.outcomes([job.outcome])
        finally:
            self.wake()  # the next of its entity may be free now
        return "go_on"

    def _give_back(self, jobs: Sequence[Job]) -> None:
        """In the thread, so that what is taken next finds it. What was cancelled while it ran has settled itself."""
        if unstarted := [job for job in jobs if not job.started]:
            self._thread.submit(self._engine.runner.give_back, unstarted)
