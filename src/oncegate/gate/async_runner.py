"""The async runner takes the events of many coroutines through one gate. Concurrent coroutines share their writes.

The rules are the same as in the sync runner. The difference is where the work is done. The claims and settlements of
concurrent callers go into common batches, and a thread writes these batches. Async handlers run in the event loop of
their caller. Plain handlers run in a pool of threads.
"""

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

from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import HandlerTimeout
from oncegate.events import Event
from oncegate.gate.batch_writer import BatchWriter, Waiter, WriteBatch
from oncegate.gate.claimer import StoreCall, execute_all
from oncegate.gate.handlers import AsyncHandler, Handler, checked_result, is_coroutine
from oncegate.gate.job import NOT_ALONE, TOO_LATE, Identified, Job, RejectedEvent, UnguardedEvent, storable
from oncegate.gate.leases import Lease
from oncegate.gate.limiter import PROCESS, ConcurrencyLimit, InFlightWaiters, enter_async, inside, run_end_of
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
from oncegate.gate.sync_runner import RunContext, SyncRunner, refuse_unguarded
from oncegate.handler_threads import HandlerThreads
from oncegate.stores.base import BatchesMixedOperations

MOST_IN_A_BATCH: Final = 256
# The ids of the async runners whose async handler awaits the current code (`_awaiting`), and of the async runners whose
# plain handler runs the current code in a thread (`_in_thread`).
_awaiting: ContextVar[frozenset[int]] = ContextVar("oncegate_inside", default=frozenset())
_in_thread: ContextVar[frozenset[int]] = ContextVar("oncegate_in_thread", default=frozenset())
_LEASE_LOST: Final = "its claim was lost while the handler ran, so the handler was cancelled"
_STILL_RUNS: Final = (
    "its handler was started {} ago and has not returned, so it may have taken effect; it is not started again while it"
    " runs"
)
_CANCELLED: Final = "it was cancelled, or its process was stopped, while the handler ran"


class _JoinedEmission(Struct, frozen=True):
    """An emission that was joined to another emission and has its outcome. Its own key must still be marked as done."""

    job: Job


class _Admission(Struct, frozen=True):
    """An event to store until it is run."""

    job: Job


# An item of a common batch is a job to claim, a settlement, a failed event to bury, an emission to mark as done, or an
# event to admit. None means that there is nothing to write.
_Write = Job | PlannedSettlement | FailedAfterMark | _JoinedEmission | _Admission | None


class AsyncRunner:
    def __init__(self, context: RunContext, runner: SyncRunner, state_changes: StateChangeResolver) -> None:
        config = context.config
        self._context = context
        self._runner = runner
        self._state_changes = state_changes
        self._mixed_store = context.store if isinstance(context.store, BatchesMixedOperations) else None
        self._queue_time: Callable[[float], AbstractContextManager[None]] = getattr(
            context.store, "waited", lambda _seconds: nullcontext()
        )
        self._writer: BatchWriter[_Write] = BatchWriter(
            "oncegate-writer", self._write, self._settle, self._release_orphan, MOST_IN_A_BATCH
        )
        self.in_flight_waiters = InFlightWaiters(config.max_in_hand // 2)
        self._marks_first = config.marks_first
        self._has_previous = config.previous is not None
        self._alone_bound = config.alone_bound
        self._alone_within = config.alone_within
        self._max_hold = config.max_hold / 1e6
        self._limits: WeakKeyDictionary[asyncio.AbstractEventLoop, ConcurrencyLimit] = WeakKeyDictionary()
        self._timeout = config.handler_timeout
        self.threads = HandlerThreads(
            config.threads,
            (config.handler_timeout or config.max_hold) / 1e6,
            gives_up=config.handler_timeout is not None,
            on_hung=self._notify_hung,
        )
        _open.add(self)

    async def run(self, item: Job | UnguardedEvent, handler: AsyncHandler | Handler) -> None:
        """Take one event through the gate. Sets `item.outcome`."""
        limit = self._limit()
        if not limit.enter_now():
            await limit.enter()
        try:
            if isinstance(item, Job) and (item.key.change is not None or not self._context.claimer.recall(item)):
                if self._has_previous:
                    await self._look_up([item])
                if not item.answered:
                    await self._claim_and_run(item, handler)
            if item.unguarded is not None:
                call = _HandlerCall(
                    item, self._context.boot, partial(ran_unguarded, item), partial(failed_unguarded, item)
                )
                await self._call(item.event, handler, call)
            if isinstance(item, Job) and item.emission is not None:
                await self._writer.write(_JoinedEmission(item))
        finally:
            limit.leave()

    async def admit(self, identified: Sequence[Identified], run_now: int = 0) -> list[Job | RejectedEvent]:
        """Store these events until they are run, and set the outcome of each. The store may grant up to `run_now` of
        them at once: these jobs are `held`, and the caller runs them here."""
        items = storable(identified)
        jobs = [item for item in items if isinstance(item, Job)]
        for job in jobs[:run_now]:
            job.run_now = True
        unknown = [job for job in jobs if job.key.change is not None or not self._context.claimer.recall(job)]
        if self._has_previous:
            await self._look_up(unknown)
            unknown = [job for job in unknown if not job.answered]
        try:
            if unknown:
                await self._writer.write(*map(_Admission, unknown))
        except BaseException:
            for job in unknown:
                self.release_held(job)
            raise
        return items

    async def _look_up(self, jobs: Sequence[Job]) -> None:
        """Ask the place that `previous` names, in a thread that writes nothing else: a slow answer delays only these
        events."""
        await asyncio.to_thread(self._context.claimer.look_up, jobs)

    def hold(self, jobs: Sequence[Job]) -> None:
        """Renew the leases of taken jobs from now on, whether they run yet or not."""
        self._context.heartbeat.hold([job.lease for job in jobs])

    def release_held(self, job: Job) -> None:
        """Release a held job that will not run here. The caller does not wait for this write. A coroutine that waits
        could be cancelled, and the jobs that it should release next would stay held."""
        if job.held:
            job.held = False
            self._writer.post(self._unstarted(job))

    def close(self) -> None:
        """Wait until the plain handlers have returned, and then write the items that are still queued. Calls that
        arrive during close() get new threads."""
        self.threads.close()
        deadline = time.monotonic() + CLOSE_WITHIN
        self._writer.flush(CLOSE_WITHIN)
        self._context.retrier.flush(deadline - time.monotonic())

    def _limit(self) -> ConcurrencyLimit:
        """Returns the limit of the current event loop. An event that a handler passes to the gate that runs this
        handler is not limited: the handler would wait for its own end."""
        if id(self) in _awaiting.get() or id(self) in _in_thread.get():
            return ConcurrencyLimit(1)
        loop = asyncio.get_running_loop()
        limit = self._limits.get(loop)
        if limit is None:
            limit = self._limits[loop] = ConcurrencyLimit(self._context.config.max_in_hand)
        return limit

    # ── one claim ─────────────────────────────────────────────────────────────────────────────────────────

    async def _claim_and_run(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """Claim, run and settle one job while other jobs run. A job that may have killed its worker is released. It is
        then claimed again and run while no other handler of this process runs."""
        if inside.get():  # a handler passes this event to the gate while the handler itself runs
            await self._writer.write(job)
            if job.held:
                await self._run_watched(job, handler)
            return
        token = object()
        try:  # leave() without enter() does nothing
            if not PROCESS.enter_now(token, self._max_hold):
                await enter_async(token, self._max_hold)
            await self._writer.write(job)
            if not job.held:
                return
            if self._marks_first or not job.runs_alone:
                await self._run_watched(job, handler)
                return
            await self._writer.write(self._context.planner.unstarted(job))
            job.held = False
        finally:
            PROCESS.leave(token)
        await self._claim_and_run_alone(job, handler)

    async def _claim_and_run_alone(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """Claim and run one job while no other handler of this process runs. The job is not held while it waits for
        the other handlers to end. If it were held and the process died, the event would lose one more attempt."""
        token = object()
        try:
            if not await enter_async(token, self._max_hold, alone_for=self._alone_bound, within=self._alone_within):
                job.outcome = job.not_run(NOT_ALONE)
                return
            await self._writer.write(job)
            if job.held:
                await self._run_watched(job, handler)
        finally:
            PROCESS.leave(token)

    async def _run_watched(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """Run a held job. Copies of the event that arrive during the run may wait until the run ends."""
        digest = job.key.digest
        first = self.in_flight_waiters.begin(digest)
        try:
            await self.run_granted(job, handler)
        finally:
            if first:
                self.in_flight_waiters.end(digest, run_end_of(job.outcome))

    async def run_granted(self, job: Job, handler: AsyncHandler | Handler) -> None:
        """Run a held job that was granted by a claim, a take or an admission. Sets `job.outcome`."""
        try:
            if (write := self._without_run(job)) is not None:
                await self._writer.write(write)
            else:
                await self._call(job.event, handler, self._handler_call(job))
        except BaseException:
            if not job.started:
                self._writer.post(self._unstarted(job))
            raise

    def _without_run(self, job: Job) -> PlannedSettlement | FailedAfterMark | None:
        """Returns what to write for a job whose handler must not be called. Returns None if the handler must be
        called."""
        context = self._context
        if job.bury_reason is not None:
            job.started = True
            if self._marks_first:
                return FailedAfterMark(job, job.bury_reason)
            return context.planner.buried_unrun(job, job.bury_reason)
        if not job.may_start(now := context.boot()):
            return self._unstarted(job, job.late_reason(now))
        if (age := self.threads.still_runs(job.key.digest)) is not None:
            job.started = True
            return context.planner.failed(job, HandlerTimeout(_STILL_RUNS.format(age)))
        return None

    def _handler_call(self, job: Job) -> "_HandlerCall":
        if self._marks_first:
            return _HandlerCall(job, self._context.boot, partial(ran_marked, job), partial(failed_marked, job))
        return _HandlerCall(
            job, self._context.boot, partial(self._context.planner.processed, job), partial(self._failed, job)
        )

    def _failed(self, job: Job, error: BaseException) -> PlannedSettlement:
        """Plan the settlement of a failed run. If the caller was cancelled or the lease was lost, the event did not
        cause the failure. So the event is released, even at the last attempt."""
        if isinstance(error, LeaseLost):
            return self._context.planner.released(job, _LEASE_LOST)
        if isinstance(error, asyncio.CancelledError):
            return self._context.planner.released(job, _CANCELLED, "CancelledError")
        return self._context.planner.failed(job, error)

    # ── calling the handler ───────────────────────────────────────────────────────────────────────────────

    def _call(self, event: Event, handler: AsyncHandler | Handler, call: "_HandlerCall") -> Coroutine[Any, Any, None]:
        if is_async(handler):
            return self._call_here(event, handler, call)
        return self._call_in_thread(event, handler, call)

    async def _call_here(self, event: Event, handler: AsyncHandler, call: "_HandlerCall") -> None:
        call.start()
        task = asyncio.current_task()
        cancels_before = _cancel_requests(task)
        gates, within = _awaiting.set(_awaiting.get() | {id(self)}), inside.set(True)
        try:
            with _CancelOnLeaseLost(call.lease, task):
                write = call.ran(checked_result(await self._await_handler(handler, event)))
        except Exception as error:  # noqa: BLE001  # any exception of a handler is a failed attempt
            write = call.failed(error)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) or _cancel_requests(task) > cancels_before:
                self._writer.post(call.failed(error))
                raise
            write = call.failed(_cancelled_itself(error))
        finally:
            inside.reset(within)
            _awaiting.reset(gates)
        if write is not None:
            await self._writer.write(write)

    async def _await_handler(self, handler: AsyncHandler, event: Event) -> Any:
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

    async def _call_in_thread(self, event: Event, handler: Handler, call: "_HandlerCall") -> None:
        """Run the handler in a thread and wait for the thread. The thread queues its settlement itself. If the caller
        is cancelled, the thread still runs to its end."""
        waiter = asyncio.get_running_loop().create_future()
        submitted = self._submit(event, handler, call, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not submitted.cancel():
                call.start()  # the handler has started or will start at once, so its claim must not be released
                # The handler still runs. An event that must run alone has to wait for this handler.
                PROCESS.add(waiter, self._max_hold)
                if call.ended:
                    PROCESS.leave(waiter)
            raise

    def _run_in_thread(self, event: Event, handler: Handler, call: "_HandlerCall", waiter: Waiter) -> None:
        """Run the handler, and queue its settlement. If the job waited so long for a thread that its handler may not
        start any more, queue its release instead."""
        now = self._context.boot()
        if call.job is not None and not call.job.may_start(now):
            self._writer.post(self._unstarted(call.job, call.job.late_reason(now)), waiter)
            return
        call.start()
        run = self.threads.begin(event, lambda: self._writer.post(call.failed(self._timed_out()), waiter))
        gates, within = _in_thread.set(_in_thread.get() | {id(self)}), inside.set(True)
        try:
            write = partial(call.ran, checked_result(handler(event)))
        except asyncio.CancelledError as error:
            write = partial(call.failed, _cancelled_itself(error))
        except BaseException as error:  # noqa: BLE001  # a thread has nothing above it to raise to
            write = partial(call.failed, error)
        finally:
            inside.reset(within)
            _in_thread.reset(gates)
            call.ended = True
            PROCESS.leave(waiter)
        if self.threads.end(run):
            self._writer.post(write(), waiter)

    def _submit(self, *arguments: Any) -> "Future[None]":
        """Run `_run_in_thread` in a thread of the pool. An event that a plain handler passes to the gate that runs this
        handler gets a new thread: if it waited for a thread of the pool, the handler could wait for its own thread."""
        if id(self) in _in_thread.get():
            extra = ThreadPoolExecutor(1, thread_name_prefix="oncegate-handler")
            submitted = extra.submit(self._run_in_thread, *arguments)
            extra.shutdown(wait=False)
            return submitted
        return self.threads.submit(self._run_in_thread, *arguments)

    def _notify_hung(self, event: Event, age: str) -> None:
        self._context.observers.notify("handler.hung", event, event.key, detail=age)

    # ── in the thread that writes ─────────────────────────────────────────────────────────────────────────

    def _write(self, batch: WriteBatch[_Write]) -> None:
        with self._queue_time(batch.queue_time):
            self._write_all(batch.items, batch.failed)

    def _write_all(self, writes: Sequence[_Write], failed: list[_Write]) -> None:
        """Write settlements before claims and admissions. The effects of settled events are done, and a claim of a copy
        in the same batch then finds the completed record. Settlements are tried only once here, so that new events do
        not wait for the retries of a settlement. Settlements that could not be written are appended to `failed`."""
        context = self._context
        planned = [each for each in writes if isinstance(each, PlannedSettlement)]
        others = [each for each in writes if not isinstance(each, PlannedSettlement)]
        calls = [self._runner.settle_call(planned, failed.extend)] if planned else []
        if not all(map(_is_quick, others)):
            execute_all(calls, None, context.boot)
            calls = []
        admissions = [each.job for each in others if isinstance(each, _Admission)]
        jobs = [each for each in others if isinstance(each, Job)]
        try:
            self._write_failures_and_emissions(others)
            new_calls = [self._admit_call(admissions) if admissions else None, self._claim_call(jobs) if jobs else None]
        except BaseException:
            execute_all(calls, None, context.boot)
            raise
        execute_all(calls + [call for call in new_calls if call], self._mixed_store, context.boot)
        if any(job.unguarded is not None for job in admissions):
            refuse_unguarded(admissions)
        if emissions := [job for job in admissions if job.emission is not None]:
            self._state_changes.confirm(emissions)
        if not self._marks_first:
            context.heartbeat.hold([job.lease for job in (*jobs, *admissions) if job.held])

    def _settle(self, batch: WriteBatch[_Write]) -> None:
        """Write the settlements that failed at the first try. Runs in the retry thread of the batch writer."""
        self._runner.write([each for each in batch.items if isinstance(each, PlannedSettlement)])

    def _write_failures_and_emissions(self, writes: Sequence[_Write]) -> None:
        if failed := [each for each in writes if isinstance(each, FailedAfterMark)]:
            self._context.dead_letters.bury_failed(failed)
        if emissions := [each.job for each in writes if isinstance(each, _JoinedEmission)]:
            self._state_changes.confirm(emissions)

    def _claim_call(self, jobs: Sequence[Job]) -> StoreCall | None:
        self._resolve_changes(jobs)
        return self._context.claimer.claim_call([job for job in jobs if not job.answered])

    def _admit_call(self, jobs: Sequence[Job]) -> StoreCall | None:
        """Returns the admission of these jobs as a call to execute; None if nothing is left to send. The jobs come from
        different callers and are not merged here. If two jobs have the same key, the store decides which job was
        first."""
        self._resolve_changes(jobs)
        jobs = [job for job in jobs if not job.answered]
        if any(job.bury_reason is not None for job in jobs):
            return self._runner.admit_call(jobs)
        return self._context.claimer.admit_call(jobs)

    def _resolve_changes(self, jobs: Sequence[Job]) -> None:
        if changes := [job for job in jobs if job.key.change is not None and job.emission is None]:
            self._state_changes.resolve(changes)

    def _release_orphan(self, write: _Write) -> None:
        """Release a claim whose caller has been cancelled."""
        job = write.job if isinstance(write, _Admission) else write
        if isinstance(job, Job):
            self.release_held(job)

    def _unstarted(self, job: Job, reason: str = TOO_LATE) -> PlannedSettlement | FailedAfterMark:
        return never_started(job) if self._marks_first else self._context.planner.unstarted(job, reason)


def _is_quick(write: _Write) -> bool:
    """Whether this write may share one store call with settlements. A write is quick if it needs no other write first,
    such as a write to a timeline or the burial of an event."""
    job = write.job if isinstance(write, _Admission) else write
    return job is None or (isinstance(job, Job) and job.key.change is None and job.bury_reason is None)


class _HandlerCall:
    """One call of a handler. `job` holds the claim under which the handler runs; None if it runs without a claim."""

    __slots__ = ("_began", "_boot", "_failed", "_item", "_ran", "ended")

    def __init__(
        self,
        item: Job | UnguardedEvent,
        boot: Clock,
        ran: Callable[[Any], _Write],
        failed: Callable[[BaseException], _Write],
    ) -> None:
        self._item = item
        self._boot = boot
        self._ran = ran
        self._failed = failed
        self._began: int | None = None
        self.ended = False  # set only for a handler that runs in a thread

    @property
    def job(self) -> Job | None:
        item = self._item
        return item if isinstance(item, Job) and item.unguarded is None else None

    @property
    def lease(self) -> Lease | None:
        return None if self.job is None else self.job.lease

    def start(self) -> None:
        self._began = self._boot()
        if self.job is not None:
            self.job.started = True

    def ran(self, result: Any) -> _Write:
        """Returns what to write after the handler has returned."""
        self._measure()
        return self._ran(result)

    def failed(self, error: BaseException) -> _Write:
        """Returns what to write after the handler has raised an exception, or has not returned in time."""
        self._measure()
        return self._failed(error)

    def _measure(self) -> None:
        if self._began is not None:
            self._item.took = self._boot() - self._began


def is_async(handler: AsyncHandler | Handler) -> TypeGuard[AsyncHandler]:
    if is_coroutine(handler):
        return True
    return iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


# ── cancel a handler whose lease is lost ──────────────────────────────────────────────────────────────────


class LeaseLost(Exception):
    """The handler was cancelled because its lease was lost."""


class _CancelOnLeaseLost:
    """Cancels the current task when the lease is lost. `asyncio.timeout` does the same when the timeout passes."""

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
        with suppress(RuntimeError):  # the loop is closed, and the task has ended with it
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


def _cancel_requests(task: asyncio.Task[Any] | None) -> int:
    return 0 if task is None else task.cancelling()


def _cancelled_itself(error: BaseException) -> RuntimeError:
    """Returns the error for a handler that raised CancelledError although its task was not cancelled. Such a handler
    has failed like a handler that raised any other exception."""
    failure = RuntimeError("the handler cancelled itself")
    failure.__cause__ = error
    return failure


# A process does not wait for its daemon threads when it exits. So `_close_all` writes the items that these threads have
# not written yet.
_open: WeakSet[AsyncRunner] = WeakSet()


@atexit.register
def _close_all() -> None:
    for runner in list(_open):
        runner.close()
