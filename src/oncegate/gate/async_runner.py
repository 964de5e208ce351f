"""Cancelling: who has cancelled a handler, and how one is that has lost its claim."""

import asyncio
import atexit
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Final, TypeGuard, cast
from weakref import WeakKeyDictionary, WeakSet

from msgspec import Struct

from oncegate.durations import spoken
from oncegate.errors import HandlerTimeout
from oncegate.events import Event
from oncegate.gate.admitter import Admitter
from oncegate.gate.batch_writer import BatchWriter, Waiter, WriteBatch
from oncegate.gate.claimer import StoreCall, execute
from oncegate.gate.handlers import AsyncHandler, Handler, is_coroutine, plain
from oncegate.gate.job import NOT_ALONE, TOO_LATE, Job, UnguardedEvent, runs_alone
from oncegate.gate.leases import Lease
from oncegate.gate.limiter import PROCESS, ConcurrencyLimit, InFlightWaiters, enter_async, inside, run_end_of
from oncegate.gate.outcome import Outcome
from oncegate.gate.settlement import (
    CLOSE_WITHIN,
    FailedAfterMark,
    PlannedSettlement,
    failed_marked,
    failed_unguarded,
    never_started,
    ran_marked,
    ran_unguarded,
)
from oncegate.gate.state_changes import StateChangeResolver
from oncegate.gate.sync_runner import RunContext, SyncRunner
from oncegate.gate.thread_pool import HandlerThreads
from oncegate.stores.base import BatchesMixedOperations, CountsQueueTime


def cancelling(task: asyncio.Task[Any] | None) -> int:
    return 0 if task is None else task.cancelling()


def by_itself(error: BaseException) -> RuntimeError:
    """Nobody has cancelled the handler: that it says so is a failure like any other."""
    failure = RuntimeError("the handler cancelled itself")
    failure.__cause__ = error
    return failure


class LeaseLost(Exception):
    """The handler was cancelled because its claim was lost."""


class CancelledOnLoss:
    """Cancels the task that runs in it when the lease is lost, as `asyncio.timeout` does when the time is over."""

    __slots__ = ("_cancelling", "_fired", "_lease", "_task")

    def __init__(self, lease: Lease | None, task: asyncio.Task[Any] | None) -> None:
        self._lease = None if task is None else lease
        self._task = cast("asyncio.Task[Any]", task)
        self._fired = False

    def __enter__(self) -> None:
        if self._lease is None:
            return
        self._cancelling = self._task.cancelling()
        self._lease.on_lost = self._call_soon
        if self._lease.lost:
            self._cancel()

    def _call_soon(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the task gone with it
            self._task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._lease is not None and self._lease.on_lost is not None:
            self._fired = self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is None:
            return
        self._lease.on_lost = None
        if self._fired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise LeaseLost from None


# Concurrent running: many coroutines through one gate, with shared writes.
#
# The rules are those of `running`; what differs is who waits. Claims and endings of concurrent callers go into
# common batches, async handlers run in their caller's loop and plain ones in a pool of threads.


MOST_AT_A_TIME: Final = 256
# The gates whose handlers are being awaited around what runs here, and those one of whose threads it takes.
_inside: ContextVar[frozenset[int]] = ContextVar("oncegate_inside", default=frozenset())
_in_thread: ContextVar[frozenset[int]] = ContextVar("oncegate_in_thread", default=frozenset())
_LOST: Final = "its claim was lost while the handler ran, so the handler was cancelled"
_NOT_STARTED: Final = (
    "its handler was started {} ago and has not returned, so it may have taken effect; it is not started again while it"
    " runs"
)
_CANCELLED: Final = "it was cancelled, or its process was stopped, while the handler ran"


class _JoinedEmission(Struct, frozen=True):
    """A joined emission that has come to its outcome."""

    job: Job


class _Admission(Struct, frozen=True):
    """An event that is to be kept."""

    job: Job


# What is gathered: a job to claim, an ending to write, what failed after it was marked as done, an emission to confirm,
# an event to keep, or nothing to write.
_Write = Job | PlannedSettlement | FailedAfterMark | _JoinedEmission | _Admission | None


class AsyncRunner:
    def __init__(
        self, context: RunContext, runner: SyncRunner, state_changes: StateChangeResolver, admitter: Admitter
    ) -> None:
        self._context = context
        self._runner = runner
        self._state_changes = state_changes
        self._admitter = admitter
        self._together = context.store if isinstance(context.store, BatchesMixedOperations) else None
        self._waited = context.store.waited if isinstance(context.store, CountsQueueTime) else _waited_anyway
        self._writer: BatchWriter[_Write] = BatchWriter(
            "oncegate-writer", self._write, self._settle, self._orphaned, MOST_AT_A_TIME
        )
        self.copies = InFlightWaiters(context.config.max_in_hand // 2)
        self._bound = context.config.alone_bound
        self._within = context.config.alone_within
        self._hold = context.config.max_hold / 1e6
        self._rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, ConcurrencyLimit] = WeakKeyDictionary()
        self._timeout = context.config.handler_timeout
        self.threads = HandlerThreads(context.config, context.observers)
        _open.add(self)

    async def run(self, item: Job | UnguardedEvent, handler: AsyncHandler | Handler) -> None:
        """Take one through the gate; it has its outcome afterwards."""
        room = self._room()
        if not room.enter_now():
            await room.enter()
        try:
            if isinstance(item, Job) and (item.key.change is not None or not self._context.claimer.recall(item)):
                await self._run_claimed(item, handler)
            if item.unguarded is not None:
                way = _HandlerCall(partial(ran_unguarded, item), partial(failed_unguarded, item))
                await self._called(item.event, handler, way)
            if isinstance(item, Job) and item.emission is not None:
                await self._writer.done(_JoinedEmission(item))
        finally:
            room.leave()

    async def admit(self, jobs: Sequence[Job]) -> None:
        """Have these kept; each has its outcome afterwards."""
        unknown = [job for job in jobs if job.key.change is not None or not self._context.claimer.recall(job)]
        try:
            if unknown:
                await self._writer.done(*map(_Admission, unknown))
        except BaseException:
            for job in unknown:
                self.let_go(job)
            raise

    def hold(self, jobs: Sequence[Job]) -> None:
        """Renew what was taken from now on, whether it runs yet or not."""
        self._context.heartbeat.hold([job.lease for job in jobs])

    def let_go(self, job: Job) -> None:
        """Give back what is held and will not be run here. Nobody waits for that: one who does can be cancelled, and
        what is to be given back next would stay behind."""
        if job.held:
            job.held = False
            self._writer.post(self._unstarted(job))

    def close(self) -> None:
        """Let plain handlers come to their end, and write what is left to write. Those that come meanwhile have threads
        of their own."""
        self.threads.close()
        deadline = time.monotonic() + CLOSE_WITHIN
        self._writer.flush(CLOSE_WITHIN)
        self._context.retrier.flush(deadline - time.monotonic())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _room(self) -> ConcurrencyLimit:
        """One for each loop. What a handler asks of its own gate has one to itself: it would wait for its own end."""
        if id(self) in _inside.get() or id(self) in _in_thread.get():
            return ConcurrencyLimit(1)
        loop = asyncio.get_running_loop()
        room = self._rooms.get(loop)
        if room is None:
            room = self._rooms[loop] = ConcurrencyLimit(self._context.config.max_in_hand)
        return room

    # ── one claim ─────────────────────────────────────────────────────────────────────────────────────────

    async def _run_claimed(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """Claim, run and settle one beside others. One that may have killed its worker is given back first, and then
        claimed, run and settled while no other handler of this process runs."""
        if inside.get():  # a handler runs it in its own place
            await self._writer.done(job)
            if job.held:
                await self._run_watched(job, handler)
            return
        token = object()
        try:  # to leave without having entered does no harm
            if not PROCESS.enter_now(token, self._hold):
                await enter_async(token, self._hold)
            await self._writer.done(job)
            if not job.held:
                return
            if self._context.config.marks_first or not runs_alone(job):
                await self._run_watched(job, handler)
                return
            await self._writer.done(self._context.planner.unstarted(job))
            job.held = False
        finally:
            PROCESS.leave(token)
        await self._run_alone(job, handler)

    async def _run_alone(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """It is not held while it waits, since it would lose one more attempt if the process died meanwhile."""
        token = object()
        try:
            if not await enter_async(token, self._hold, alone_for=self._bound, within=self._within):
                job.outcome = Outcome("in_flight", job.event, job.key, error=NOT_ALONE)
                return
            await self._writer.done(job)
            if job.held:
                await self._run_watched(job, handler)
        finally:
            PROCESS.leave(token)

    async def _run_watched(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """Run what is held; copies that come meanwhile may wait for its end."""
        digest = job.key.digest
        first = self.copies.begin(digest)
        try:
            await self.run_granted(job, handler)
        finally:
            if first:
                self.copies.end(digest, run_end_of(job.outcome))

    async def run_granted(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """Run what is held, however it was granted; it has its outcome afterwards."""
        try:
            plan = self._planned(job)
            await (
                self._called(job.event, handler, plan) if isinstance(plan, _HandlerCall) else self._writer.done(plan)
            )
        except BaseException:
            if not job.started:
                self._writer.post(self._unstarted(job))
            raise

    def _planned(self, job: Job) -> "_HandlerCall | PlannedSettlement | FailedAfterMark":
        """How its handler is to be called; or what to write, if it is not."""
        marked = self._context.config.marks_first
        if job.bury_reason is not None:
            job.started = True
            return (
                FailedAfterMark(job, job.bury_reason)
                if marked
                else self._context.planner.hopeless(job, job.bury_reason)
            )
        if (late := job.too_late(self._context.boot())) is not None:
            return self._unstarted(job, late)
        if (age := self.threads.still_runs(job.key.digest)) is not None:
            job.started = True
            return self._context.planner.failed(job, HandlerTimeout(_NOT_STARTED.format(age)))
        if marked:
            return _HandlerCall(partial(ran_marked, job), partial(failed_marked, job), job)
        return _HandlerCall(partial(self._context.planner.processed, job), partial(self._failed, job), job)

    def _failed(self, job: Job, error: BaseException) -> PlannedSettlement:
        """The caller's going away is no fault of the event: it is released, at the last attempt too."""
        if isinstance(error, LeaseLost):
            return self._context.planner.released(job, _LOST)
        if isinstance(error, asyncio.CancelledError):
            return self._context.planner.released(job, _CANCELLED, "CancelledError")
        return self._context.planner.failed(job, error)

    # ── calling the handler ───────────────────────────────────────────────────────────────────────────────

    def _called(self, event: Event, handler: AsyncHandler | Handler, way: "_HandlerCall") -> Coroutine[Any, Any, None]:
        if is_async(handler):
            return self._call_here(event, handler, way)
        return self._call_in_thread(event, handler, way)

    async def _call_here(self, event: Event, handler: AsyncHandler, way: "_HandlerCall") -> None:
        way.start()
        task = asyncio.current_task()
        before = cancelling(task)
        gates, within = _inside.set(_inside.get() | {id(self)}), inside.set(True)
        try:
            with CancelledOnLoss(way.lease, task):
                asked = way.ran(plain(await self._in_time(handler, event)))
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is a failed attempt
            asked = way.failed(error)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) or cancelling(task) > before:
                self._writer.post(way.failed(error))
                raise
            asked = way.failed(by_itself(error))
        finally:
            inside.reset(within)
            _inside.reset(gates)
        if asked is not None:
            await self._writer.done(asked)

    async def _in_time(self, handler: AsyncHandler, event: Event) -> Any:
        if self._timeout is None:
            return await handler(event)
        try:
            async with asyncio.timeout(self._timeout / 1e6) as bound:
                return await handler(event)
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise self._timed_out() from error

    def _timed_out(self) -> HandlerTimeout:
        return HandlerTimeout(f"its handler did not return within handler_timeout={spoken(self._timeout or 0)}")

    async def _call_in_thread(self, event: Event, handler: Handler, way: "_HandlerCall") -> None:
        """The thread hands in what comes of it, and goes on to the end also when nobody waits any more."""
        waiter = asyncio.get_running_loop().create_future()
        submitted = self._submitted(event, handler, way, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not submitted.cancel():
                way.start()  # it has begun, or is about to: it is no longer to be given back
                PROCESS.add(waiter, self._hold)  # it runs on: an event that must run alone waits for it
                if way.ended:
                    PROCESS.leave(waiter)
            raise

    def _work(self, event: Event, handler: Handler, way: "_HandlerCall", waiter: Waiter) -> None:
        """In a thread that may have been long in coming: by now the lease may be over."""
        if (late := self._late(way)) is not None:
            self._writer.post(late, waiter)
            return
        way.start()
        run = self.threads.begin(event, lambda: self._writer.post(way.failed(self._timed_out()), waiter))
        gates, within = _in_thread.set(_in_thread.get() | {id(self)}), inside.set(True)
        try:
            ended = partial(way.ran, plain(handler(event)))
        except asyncio.CancelledError as error:
            ended = partial(way.failed, by_itself(error))
        except BaseException as error:  # noqa: BLE001  # a thread has nobody above it to raise to
            ended = partial(way.failed, error)
        finally:
            inside.reset(within)
            _in_thread.reset(gates)
            way.ended = True
            PROCESS.leave(waiter)
        if self.threads.end(run):
            self._writer.post(ended(), waiter)

    def _late(self, way: "_HandlerCall") -> PlannedSettlement | FailedAfterMark | None:
        if way.job is None or (late := way.job.too_late(self._context.boot())) is None:
            return None
        return self._unstarted(way.job, late)

    def _submitted(self, *work: Any) -> "Future[None]":
        """What a handler in a thread asks of its own gate has a thread to itself: it would wait for its own end."""
        if id(self) in _in_thread.get():
            own = ThreadPoolExecutor(1, thread_name_prefix="oncegate-handler")
            submitted = own.submit(self._work, *work)
            own.shutdown(wait=False)
            return submitted
        return self.threads.submit(self._work, *work)

    # ── in the thread that writes ─────────────────────────────────────────────────────────────────────────

    def _write(self, gathered: WriteBatch[_Write]) -> None:
        with self._waited(gathered.waited):
            self._write_all(gathered.asked, gathered.again)

    def _write_all(self, asked: Sequence[_Write], undone: list[_Write]) -> None:
        """Endings first: their effects are done, and copies among the claims then find them completed. They are tried
        once here, since who begins must not wait for all the tries that they are worth."""
        endings = [each for each in asked if isinstance(each, PlannedSettlement)]
        beginnings = [each for each in asked if not isinstance(each, PlannedSettlement)]
        ended = [self._runner.asking(endings, undone.extend)] if endings else []
        if not all(map(_is_quick, beginnings)):
            execute(ended, None, self._context.boot)
            ended = []
        admissions = [each.job for each in beginnings if isinstance(each, _Admission)]
        jobs = [each for each in beginnings if isinstance(each, Job)]
        try:
            self._write_the_rest(beginnings)
            asked_for = (self._admitter.asking_apart(admissions), self._asking_claims(jobs))
        except BaseException:
            execute(ended, None, self._context.boot)
            raise
        execute(ended + [asking for asking in asked_for if asking], self._together, self._context.boot)
        self._admitter.confirm_apart(admissions)
        if not self._context.config.marks_first:
            self._context.heartbeat.hold([job.lease for job in (*jobs, *admissions) if job.held])

    def _settle(self, gathered: WriteBatch[_Write]) -> None:
        """In a thread of its own: what could not be settled at the first try."""
        self._runner.write([each for each in gathered.asked if isinstance(each, PlannedSettlement)])

    def _write_the_rest(self, asked: Sequence[_Write]) -> None:
        if failed := [each for each in asked if isinstance(each, FailedAfterMark)]:
            self._context.claimer.bury_failed(failed)
        if state_changes := [each.job for each in asked if isinstance(each, _JoinedEmission)]:
            self._state_changes.confirm(state_changes)

    def _asking_claims(self, jobs: Sequence[Job]) -> StoreCall | None:
        if echoing := [job for job in jobs if job.key.change is not None and job.emission is None]:
            self._state_changes.resolve(echoing)
        return self._context.claimer.asking([job for job in jobs if not job.answered])

    def _orphaned(self, asked: _Write) -> None:
        """A claim for a caller that is gone is given back."""
        job = asked.job if isinstance(asked, _Admission) else asked
        if isinstance(job, Job):
            self.let_go(job)

    def _unstarted(self, job: Job, why: str = TOO_LATE) -> PlannedSettlement | FailedAfterMark:
        return never_started(job) if self._context.config.marks_first else self._context.planner.unstarted(job, why)


def _waited_anyway(_seconds: float) -> AbstractContextManager[None]:
    return nullcontext()


def _is_quick(asked: _Write) -> bool:
    """Whether what has ended may wait for it: it takes no writes of its own, such as to a timeline or to bury."""
    job = asked.job if isinstance(asked, _Admission) else asked
    return job is None or (isinstance(job, Job) and job.key.change is None and job.bury_reason is None)


class _HandlerCall:
    """How a handler is called for an item: what is to be written when it ran or failed, and under which claim."""

    __slots__ = ("ended", "failed", "job", "ran")

    def __init__(
        self, ran: Callable[[Any], _Write], failed: Callable[[BaseException], _Write], job: Job | None = None
    ) -> None:
        self.ran = ran
        self.failed = failed
        self.job = job
        self.ended = False  # its handler, in a thread

    @property
    def lease(self) -> Lease | None:
        return None if self.job is None else self.job.lease

    def start(self) -> None:
        if self.job is not None:
            self.job.started = True


def is_async(handler: AsyncHandler | Handler) -> TypeGuard[AsyncHandler]:
    if is_coroutine(handler):
        return True
    return iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


# At the end of a process threads that only wait are not waited for, so what they have left to write is asked for here.
_open: WeakSet[AsyncRunner] = WeakSet()


@atexit.register
def _close_all() -> None:
    for each in list(_open):
        each.close()
