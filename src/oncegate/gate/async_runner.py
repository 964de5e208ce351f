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
from oncegate.gate.batch_writer import Gathered, Gatherer, Waiter
from oncegate.gate.claimer import Asking, ask_all
from oncegate.gate.handlers import AsyncHandler, Handler, is_coroutine, plain
from oncegate.gate.job import NOT_ALONE, TOO_LATE, Bare, Job, runs_alone
from oncegate.gate.leases import Lease
from oncegate.gate.limiter import PROCESS, Copies, Room, ended_by, entered, inside
from oncegate.gate.outcome import Outcome
from oncegate.gate.settlement import (
    CLOSE_WITHIN,
    Ending,
    Failed,
    failed_marked,
    failed_unguarded,
    never_started,
    ran_marked,
    ran_unguarded,
)
from oncegate.gate.state_changes import Echoes
from oncegate.gate.sync_runner import Means, Runner
from oncegate.gate.thread_pool import Threads
from oncegate.stores.base import Patient, Together


def cancelling(task: asyncio.Task[Any] | None) -> int:
    return 0 if task is None else task.cancelling()


def by_itself(error: BaseException) -> RuntimeError:
    """Nobody has cancelled the handler: that it says so is a failure like any other."""
    failure = RuntimeError("the handler cancelled itself")
    failure.__cause__ = error
    return failure


class Lost(Exception):
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
            raise Lost from None


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


class _Echo(Struct, frozen=True):
    """A joined emission that has come to its outcome."""

    job: Job


class _Admission(Struct, frozen=True):
    """An event that is to be kept."""

    job: Job


# What is gathered: a job to claim, an ending to write, what failed after it was marked as done, an emission to confirm,
# an event to keep, or nothing to write.
_Asked = Job | Ending | Failed | _Echo | _Admission | None


class Concurrent:
    def __init__(self, means: Means, runner: Runner, echoes: Echoes, admitter: Admitter) -> None:
        self._means = means
        self._runner = runner
        self._echoes = echoes
        self._admitter = admitter
        self._together = means.store if isinstance(means.store, Together) else None
        self._waited = means.store.waited if isinstance(means.store, Patient) else _waited_anyway
        self._gatherer: Gatherer[_Asked] = Gatherer(
            "oncegate-writer", self._write, self._settle, self._orphaned, MOST_AT_A_TIME
        )
        self.copies = Copies(means.terms.max_in_hand // 2)
        self._bound = means.terms.alone_bound
        self._within = means.terms.alone_within
        self._hold = means.terms.max_hold / 1e6
        self._rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, Room] = WeakKeyDictionary()
        self._timeout = means.terms.handler_timeout
        self.threads = Threads(means.terms, means.observers)
        _open.add(self)

    async def run(self, item: Job | Bare, handler: AsyncHandler | Handler) -> None:
        """Take one through the gate; it has its outcome afterwards."""
        room = self._room()
        if not room.enter_now():
            await room.enter()
        try:
            if isinstance(item, Job) and (item.key.change is not None or not self._means.claimer.recall(item)):
                await self._run_claimed(item, handler)
            if item.unguarded is not None:
                way = _Way(partial(ran_unguarded, item), partial(failed_unguarded, item))
                await self._called(item.event, handler, way)
            if isinstance(item, Job) and item.emission is not None:
                await self._gatherer.done(_Echo(item))
        finally:
            room.leave()

    async def admit(self, jobs: Sequence[Job]) -> None:
        """Have these kept; each has its outcome afterwards."""
        unknown = [job for job in jobs if job.key.change is not None or not self._means.claimer.recall(job)]
        try:
            if unknown:
                await self._gatherer.done(*map(_Admission, unknown))
        except BaseException:
            for job in unknown:
                self.let_go(job)
            raise

    def hold(self, jobs: Sequence[Job]) -> None:
        """Renew what was taken from now on, whether it runs yet or not."""
        self._means.heartbeat.hold([job.lease for job in jobs])

    def let_go(self, job: Job) -> None:
        """Give back what is held and will not be run here. Nobody waits for that: one who does can be cancelled, and
        what is to be given back next would stay behind."""
        if job.held:
            job.held = False
            self._gatherer.post(self._unstarted(job))

    def close(self) -> None:
        """Let plain handlers come to their end, and write what is left to write. Those that come meanwhile have threads
        of their own."""
        self.threads.close()
        deadline = time.monotonic() + CLOSE_WITHIN
        self._gatherer.flush(CLOSE_WITHIN)
        self._means.unsettled.flush(deadline - time.monotonic())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _room(self) -> Room:
        """One for each loop. What a handler asks of its own gate has one to itself: it would wait for its own end."""
        if id(self) in _inside.get() or id(self) in _in_thread.get():
            return Room(1)
        loop = asyncio.get_running_loop()
        room = self._rooms.get(loop)
        if room is None:
            room = self._rooms[loop] = Room(self._means.terms.max_in_hand)
        return room

    # ── one claim ─────────────────────────────────────────────────────────────────────────────────────────

    async def _run_claimed(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """Claim, run and settle one beside others. One that may have killed its worker is given back first, and then
        claimed, run and settled while no other handler of this process runs."""
        if inside.get():  # a handler runs it in its own place
            await self._gatherer.done(job)
            if job.held:
                await self._run_watched(job, handler)
            return
        token = object()
        try:  # to leave without having entered does no harm
            if not PROCESS.enter_now(token, self._hold):
                await entered(token, self._hold)
            await self._gatherer.done(job)
            if not job.held:
                return
            if self._means.terms.marks_first or not runs_alone(job):
                await self._run_watched(job, handler)
                return
            await self._gatherer.done(self._means.endings.unstarted(job))
            job.held = False
        finally:
            PROCESS.leave(token)
        await self._run_alone(job, handler)

    async def _run_alone(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """It is not held while it waits, since it would lose one more attempt if the process died meanwhile."""
        token = object()
        try:
            if not await entered(token, self._hold, alone_for=self._bound, within=self._within):
                job.outcome = Outcome("in_flight", job.event, job.key, error=NOT_ALONE)
                return
            await self._gatherer.done(job)
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
                self.copies.end(digest, ended_by(job.outcome))

    async def run_granted(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """Run what is held, however it was granted; it has its outcome afterwards."""
        try:
            plan = self._planned(job)
            await (self._called(job.event, handler, plan) if isinstance(plan, _Way) else self._gatherer.done(plan))
        except BaseException:
            if not job.started:
                self._gatherer.post(self._unstarted(job))
            raise

    def _planned(self, job: Job) -> "_Way | Ending | Failed":
        """How its handler is to be called; or what to write, if it is not."""
        marked = self._means.terms.marks_first
        if job.hopeless is not None:
            job.started = True
            return Failed(job, job.hopeless) if marked else self._means.endings.hopeless(job, job.hopeless)
        if (late := job.too_late(self._means.boot())) is not None:
            return self._unstarted(job, late)
        if (age := self.threads.still_runs(job.key.digest)) is not None:
            job.started = True
            return self._means.endings.failed(job, HandlerTimeout(_NOT_STARTED.format(age)))
        if marked:
            return _Way(partial(ran_marked, job), partial(failed_marked, job), job)
        return _Way(partial(self._means.endings.processed, job), partial(self._failed, job), job)

    def _failed(self, job: Job, error: BaseException) -> Ending:
        """The caller's going away is no fault of the event: it is released, at the last attempt too."""
        if isinstance(error, Lost):
            return self._means.endings.released(job, _LOST)
        if isinstance(error, asyncio.CancelledError):
            return self._means.endings.released(job, _CANCELLED, "CancelledError")
        return self._means.endings.failed(job, error)

    # ── calling the handler ───────────────────────────────────────────────────────────────────────────────

    def _called(self, event: Event, handler: AsyncHandler | Handler, way: "_Way") -> Coroutine[Any, Any, None]:
        if is_async(handler):
            return self._call_here(event, handler, way)
        return self._call_in_thread(event, handler, way)

    async def _call_here(self, event: Event, handler: AsyncHandler, way: "_Way") -> None:
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
                self._gatherer.post(way.failed(error))
                raise
            asked = way.failed(by_itself(error))
        finally:
            inside.reset(within)
            _inside.reset(gates)
        if asked is not None:
            await self._gatherer.done(asked)

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

    async def _call_in_thread(self, event: Event, handler: Handler, way: "_Way") -> None:
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

    def _work(self, event: Event, handler: Handler, way: "_Way", waiter: Waiter) -> None:
        """In a thread that may have been long in coming: by now the lease may be over."""
        if (late := self._late(way)) is not None:
            self._gatherer.post(late, waiter)
            return
        way.start()
        run = self.threads.begin(event, lambda: self._gatherer.post(way.failed(self._timed_out()), waiter))
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
            self._gatherer.post(ended(), waiter)

    def _late(self, way: "_Way") -> Ending | Failed | None:
        if way.job is None or (late := way.job.too_late(self._means.boot())) is None:
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

    def _write(self, gathered: Gathered[_Asked]) -> None:
        with self._waited(gathered.waited):
            self._write_all(gathered.asked, gathered.again)

    def _write_all(self, asked: Sequence[_Asked], undone: list[_Asked]) -> None:
        """Endings first: their effects are done, and copies among the claims then find them completed. They are tried
        once here, since who begins must not wait for all the tries that they are worth."""
        endings = [each for each in asked if isinstance(each, Ending)]
        beginnings = [each for each in asked if not isinstance(each, Ending)]
        ended = [self._runner.asking(endings, undone.extend)] if endings else []
        if not all(map(_is_quick, beginnings)):
            ask_all(ended, None, self._means.boot)
            ended = []
        admissions = [each.job for each in beginnings if isinstance(each, _Admission)]
        jobs = [each for each in beginnings if isinstance(each, Job)]
        try:
            self._write_the_rest(beginnings)
            asked_for = (self._admitter.asking_apart(admissions), self._asking_claims(jobs))
        except BaseException:
            ask_all(ended, None, self._means.boot)
            raise
        ask_all(ended + [asking for asking in asked_for if asking], self._together, self._means.boot)
        self._admitter.confirm_apart(admissions)
        if not self._means.terms.marks_first:
            self._means.heartbeat.hold([job.lease for job in (*jobs, *admissions) if job.held])

    def _settle(self, gathered: Gathered[_Asked]) -> None:
        """In a thread of its own: what could not be settled at the first try."""
        self._runner.write([each for each in gathered.asked if isinstance(each, Ending)])

    def _write_the_rest(self, asked: Sequence[_Asked]) -> None:
        if failed := [each for each in asked if isinstance(each, Failed)]:
            self._means.claimer.bury_failed(failed)
        if echoes := [each.job for each in asked if isinstance(each, _Echo)]:
            self._echoes.confirm(echoes)

    def _asking_claims(self, jobs: Sequence[Job]) -> Asking | None:
        if echoing := [job for job in jobs if job.key.change is not None and job.emission is None]:
            self._echoes.resolve(echoing)
        return self._means.claimer.asking([job for job in jobs if not job.answered])

    def _orphaned(self, asked: _Asked) -> None:
        """A claim for a caller that is gone is given back."""
        job = asked.job if isinstance(asked, _Admission) else asked
        if isinstance(job, Job):
            self.let_go(job)

    def _unstarted(self, job: Job, why: str = TOO_LATE) -> Ending | Failed:
        return never_started(job) if self._means.terms.marks_first else self._means.endings.unstarted(job, why)


def _waited_anyway(_seconds: float) -> AbstractContextManager[None]:
    return nullcontext()


def _is_quick(asked: _Asked) -> bool:
    """Whether what has ended may wait for it: it takes no writes of its own, such as to a timeline or to bury."""
    job = asked.job if isinstance(asked, _Admission) else asked
    return job is None or (isinstance(job, Job) and job.key.change is None and job.hopeless is None)


class _Way:
    """How a handler is called for an item: what is to be written when it ran or failed, and under which claim."""

    __slots__ = ("ended", "failed", "job", "ran")

    def __init__(
        self, ran: Callable[[Any], _Asked], failed: Callable[[BaseException], _Asked], job: Job | None = None
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
_open: WeakSet[Concurrent] = WeakSet()


@atexit.register
def _close_all() -> None:
    for each in list(_open):
        each.close()
