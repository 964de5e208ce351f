"""The sync runner passes granted events to their handlers, one after the other, and settles each event."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, cast

from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import Complete, Settlement
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import SettingError, StoreError
from oncegate.events import Event
from oncegate.gate.claimer import Claimer, StoreCall
from oncegate.gate.completion_cache import CompletionCache
from oncegate.gate.dead_letters import DeadLetters
from oncegate.gate.handlers import Handler, TransactionHandler, checked_result
from oncegate.gate.job import NO_TIME, NOT_ALONE, Job, UnguardedEvent
from oncegate.gate.leases import Heartbeat
from oncegate.gate.limiter import PROCESS, inside
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.gate.settlement import (
    Answer,
    FailedAfterMark,
    PlannedSettlement,
    SettlementBuffer,
    SettlementFlusher,
    SettlementPlanner,
    SettlementRetrier,
    failed_marked,
    failed_unguarded,
    may_be_retried,
    never_started,
    ran_marked,
    ran_unguarded,
    settle,
)
from oncegate.stores.base import EffectFailed, Store, Transactional

_LEASE_LOST: Final = (
    "its claim was lost to another worker before the claim could be settled: the handler ended here, but its end is not"
    " recorded, and the event runs again"
)

# Runs one job that may start, and returns the settlement to write. Returns None if the job already has its outcome. The
# second argument is the current time (boot clock).
_RunOne = Callable[[Job, int], PlannedSettlement | None]


class RunContext(Struct, frozen=True):
    """The objects that both runners share. The engine creates this context."""

    store: Store
    config: GateConfig
    boot: Clock
    claimer: Claimer
    dead_letters: DeadLetters
    planner: SettlementPlanner
    heartbeat: Heartbeat
    cache: CompletionCache
    retrier: SettlementRetrier
    observers: Observers


class SyncRunner:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._flusher = SettlementFlusher()
        self._alone_bound = context.config.alone_bound
        self._alone_within = context.config.alone_within
        self._max_hold = context.config.max_hold / 1e6

    def run(self, jobs: Sequence[Job], handler: Handler) -> None:
        """Run the jobs that are held, and set their outcomes.

        Jobs that may have killed their worker run last. They are released first. After all other jobs are settled, each
        of them is claimed again, and runs while no other handler of this process runs.
        """
        held = [job for job in jobs if job.held]
        if not held:
            return
        if self._context.config.marks_first:
            self._beside_others(held, lambda: self._run_marked(held, handler))
            return
        if len(held) == 1 and held[0].runs_alone:
            self._run_one(held[0], lambda job: self._run_together([job], handler))
            return
        suspects = [job for job in held if job.lease.record.lost and job.runs_alone]
        if suspects:
            self.release_unstarted(suspects)
            held = [job for job in held if job.held]
        if held:
            self._beside_others(held, lambda: self._run_together(held, handler))
        for job in suspects:
            self._claim_and_run_alone(job, lambda job: self._run_together([job], handler))

    def run_taken(self, job: Job, handler: Handler, take: Callable[[], Sequence[Job]]) -> list[Job]:
        """Run a job that was taken from the store, concurrently with other handlers or alone. Returns the jobs that
        were run. If the job must run alone, and this is not possible now, the job is released. As soon as running alone
        is possible, `take` is called, and the jobs that `take` returns are run instead."""
        ran: list[Job] = []

        def run(jobs: Sequence[Job]) -> None:
            for each in jobs:
                ran.append(each)
                self._run_together([each], handler)  # in every mode: a taken event is never marked first

        if not job.runs_alone:
            self._beside_others([job], lambda: run([job]))
        elif not self._alone(lambda: run([job]), within=0.0):
            self.release_unstarted([job])
            self._alone(lambda: run(take()), within=self._alone_within)
        return ran

    def run_unguarded(self, items: Sequence[Job | UnguardedEvent], handler: Handler) -> None:
        """Run the events that a policy allows to run without a claim. These events are not settled."""
        for item in items:
            if item.unguarded is not None:
                began = self._context.boot()
                try:
                    result = checked_result(handler(item.event))
                    item.took = self._context.boot() - began
                    ran_unguarded(item, result)
                except Exception as error:  # noqa: BLE001  # any exception of a handler is a failed attempt
                    item.took = self._context.boot() - began
                    failed_unguarded(item, error)

    def bury_unrun(self, jobs: Sequence[Job]) -> None:
        """Claim and bury the jobs that have a reason not to run."""
        if jobs:
            self._context.claimer.claim(jobs)
            self.run(jobs, _never)
            for job in jobs:
                job.held = False

    def admit_call(self, jobs: Sequence[Job]) -> StoreCall | None:
        """Returns the admission of these jobs as a call to execute. Jobs that have a reason not to run are not
        admitted: they are buried at once."""
        self.bury_unrun([job for job in jobs if job.bury_reason is not None])
        return self._context.claimer.admit_call([job for job in jobs if job.bury_reason is None])

    # ── beside others, or alone in this process ───────────────────────────────────────────────────────────

    def _beside_others(self, jobs: Sequence[Job], run: Callable[[], None]) -> None:
        """Call `run` while other handlers may run. If an event runs alone in this process, wait until that event has
        ended. The leases of the jobs are renewed during this wait."""
        nested, token = inside.get(), jobs[0]
        try:  # leave() without enter() does nothing
            if not nested and not PROCESS.enter_now(token, self._max_hold):
                self._wait_to_enter(token, jobs)
            inside.set(True)
            run()
        finally:
            inside.set(nested)
            PROCESS.leave(token)

    def _wait_to_enter(self, token: object, jobs: Sequence[Job]) -> None:
        leases = [] if self._context.config.marks_first else [job.lease for job in jobs]
        try:
            self._context.heartbeat.hold(leases)
            PROCESS.enter(token, self._max_hold)
        finally:
            self._context.heartbeat.drop(leases)

    def _run_one(self, job: Job, run: Callable[[Job], None]) -> None:
        """Run one granted job concurrently with other handlers, or alone if it may have killed its worker."""
        if not job.runs_alone:
            self._beside_others([job], lambda: run(job))
        elif not self._alone(lambda: run(job), within=0.0):
            self.release_unstarted([job])
            self._claim_and_run_alone(job, run)

    def _claim_and_run_alone(self, job: Job, run: Callable[[Job], None]) -> None:
        """Claim a released job again and run it, as soon as no other handler runs in this process. The job is not held
        while it waits. If it were held and the process died, the event would lose one more attempt."""

        def claim_and_run() -> None:
            if self._context.boot() >= job.start_by:
                job.outcome = job.not_run(NO_TIME)
                return
            self._context.claimer.claim([job])
            if job.held:
                run(job)

        left = (job.start_by - self._context.boot()) / 1e6
        if not self._alone(claim_and_run, within=max(0.0, min(self._alone_within, left))):
            job.outcome = job.not_run(NOT_ALONE)

    def _alone(self, run: Callable[[], None], within: float) -> bool:
        """Call `run` while no other handler runs in this process. Returns False if `run` could not start within
        `within` seconds."""
        nested, token = inside.get(), object()
        try:
            if not PROCESS.enter_alone(token, self._max_hold, within=within, alone_for=self._alone_bound):
                return False
            inside.set(True)
            run()
        finally:
            inside.set(nested)
            PROCESS.leave(token)
        return True

    # ── in lease mode ─────────────────────────────────────────────────────────────────────────────────────

    def _run_together(self, jobs: Sequence[Job], handler: Handler) -> None:
        planner, boot = self._context.planner, self._context.boot

        def run_one(job: Job, began: int) -> PlannedSettlement:
            try:
                result = handler(job.event)
                job.took = boot() - began
                return planner.processed(job, result if result is None else checked_result(result))
            except Exception as error:  # noqa: BLE001  # any exception of a handler is a failed attempt
                job.took = boot() - began
                return planner.failed(job, error)

        leases = [job.lease for job in jobs]
        try:  # drop() without hold() does nothing
            self._context.heartbeat.hold(leases)
            self._attempt_each(jobs, run_one)
        finally:
            self._context.heartbeat.drop(leases)

    def _attempt_each(self, jobs: Sequence[Job], run_one: _RunOne) -> None:
        """Attempt one job after the other. Each settlement is written within 50 ms, and all settlements are written
        before this method returns."""
        boot, planner = self._context.boot, self._context.planner
        planned: list[PlannedSettlement] = []
        buffer = SettlementBuffer(planned, self.write) if len(jobs) > 1 else None
        job: Job | None = None
        try:
            if buffer is not None:
                self._flusher.begin(buffer)
            for job in jobs:
                now = boot()
                if job.bury_reason is not None:
                    job.started = True
                    planned.append(planner.buried_unrun(job, job.bury_reason))
                elif now < job.lease.valid_until and now < job.start_by and not job.lease.lost:  # may_start, inlined
                    job.started = True
                    if (settlement := run_one(job, now)) is not None:
                        planned.append(settlement)
                else:
                    job.outcome = job.not_run(job.late_reason(now))
        except BaseException as error:  # an interrupt fails the attempt like any error; it is raised again
            if job is not None and job.started:
                planned.append(planner.failed(job, error))
            raise
        finally:
            if buffer is not None:
                self._flusher.end(buffer)
                buffer.flush()
            elif planned:
                self.write(planned)
            self.release_unstarted([job for job in jobs if not job.started])

    # ── in mark_first mode ────────────────────────────────────────────────────────────────────────────────

    def _run_marked(self, jobs: Sequence[Job], handler: Handler) -> None:
        """Run jobs that are already marked as done. A job that fails, or never starts, becomes a dead letter."""
        failed: list[FailedAfterMark] = []
        try:
            for job in jobs:
                self._attempt_marked(job, handler, failed)
        finally:
            failed.extend(never_started(job) for job in jobs if not job.started)
            self._context.dead_letters.bury_failed(failed)

    def _attempt_marked(self, job: Job, handler: Handler, failed: list[FailedAfterMark]) -> None:
        if job.bury_reason is not None:
            job.started = True
            failed.append(FailedAfterMark(job, job.bury_reason))
            return
        if not job.may_start(self._context.boot()):
            return
        job.started, began = True, self._context.boot()
        try:
            result = checked_result(handler(job.event))
            job.took = self._context.boot() - began
            ran_marked(job, result)
        except BaseException as error:  # the job is buried; an interrupt or exit is raised again
            job.took = self._context.boot() - began
            failed.append(failed_marked(job, error))
            if not isinstance(error, Exception):
                raise

    # ── in transaction mode ───────────────────────────────────────────────────────────────────────────────

    def transact(self, job: Job, handler: TransactionHandler, connection: Any = None) -> None:
        """Run one granted job in a transaction of the store. The same transaction also completes the job. The claim was
        committed before this transaction, so the attempt counts even if the handler fails and the transaction is rolled
        back. The lease is not renewed here, because on SQLite no other connection can write during the transaction."""

        def run(job: Job) -> None:
            self._attempt_each([job], lambda job, _now: self._run_in_transaction(job, handler, connection))

        self._run_one(job, run)

    def _run_in_transaction(
        self, job: Job, handler: TransactionHandler, user_connection: Any
    ) -> PlannedSettlement | None:
        context, store = self._context, cast(Transactional, self._context.store)  # the gate has checked the type
        planned: list[PlannedSettlement] = []
        began: int | None = None

        def effect(connection: Any) -> Complete:
            nonlocal began
            began = context.boot()
            try:
                result = checked_result(handler(job.event, connection))
            finally:
                job.took = context.boot() - began
            planned.append(context.planner.processed(job, result))
            return cast(Complete, planned[0].settlement)

        proof = job.lease.renewal(context.config.lease)
        sent_at = context.boot()
        try:
            accepted = (
                store.transact(proof, effect)
                if user_connection is None
                else store.transact(proof, effect, user_connection)
            )
        except EffectFailed as failure:
            if not isinstance(failure.cause, Exception):
                raise failure.cause from None
            return context.planner.failed(job, failure.cause)
        except SettingError:  # the user's connection cannot be used
            job.started = began is not None
            raise
        except StoreError as error:
            if began is None:
                return context.planner.failed_before_start(job, f"its transaction could not begin ({error})")
            return context.planner.released(job, f"its transaction was rolled back ({error})")
        finally:
            if began is not None:
                self._warn_of_long_transaction(job, context.boot() - began)
        self._settled(planned or [context.planner.processed(job, None)], [accepted], sent_at)
        return None

    def _warn_of_long_transaction(self, job: Job, took: int) -> None:
        """Notify observers if a handler blocked all other writes to the store for longer than a lease. During this time
        leases could not be renewed. Leases that ended because of this make their events run again."""
        lease = self._context.config.lease
        if took > lease and getattr(self._context.store, "transactions_exclude_others", False):
            detail = (
                f"its handler held the store's write lock for {spoken(took)}, longer than the lease of {spoken(lease)}:"
                " no other worker could claim, renew or complete meanwhile"
            )
            self._context.observers.notify("transaction.held", job.event, job.key, detail=detail)

    # ── settlement ────────────────────────────────────────────────────────────────────────────────────────

    def write(self, planned: Sequence[PlannedSettlement]) -> None:
        """Settle the jobs with one write, and set their outcomes. The write is retried if it fails. If the store does
        not confirm a settlement after these retries, the outcome is "failed", and the settlement is retried in the
        background until the lease ends."""
        settlements, sent_at = _settlements_of(planned), self._context.boot()
        self._settled(planned, settle(self._context.store, settlements), sent_at)

    def settle_call(
        self, planned: Sequence[PlannedSettlement], on_unanswered: Callable[[Sequence[PlannedSettlement]], None]
    ) -> StoreCall:
        """Returns the settlement of these jobs as a call to execute. The call is tried only once. If the store does not
        answer, `on_unanswered` is called with the settlements."""
        verb, settlements = self._context.store.settle, _settlements_of(planned)
        return StoreCall(verb, settlements, planned, self._settled, lambda left, _error: on_unanswered(left))

    def _settled(self, planned: Sequence[PlannedSettlement], answers: Sequence[Answer], sent_at: int) -> None:
        """Set the outcomes of the jobs, and put completions into the cache."""
        context = self._context
        context.heartbeat.drop([each.job.lease for each in planned])
        if answers.count(True) < len(planned):
            planned = self._not_all_settled(list(zip(planned, answers, strict=True)))
        for each in planned:
            each.job.outcome = each.outcome
        context.cache.add_settled(planned, sent_at)
        if regranted := [each.job for each in planned if _is_regranted(each)]:
            # The store released the event and granted it to this process again, before this process received the answer
            # to the release. No handler runs for the new grant, so the new grant is released too.
            settle(context.store, [context.planner.unstarted(job).settlement for job in regranted])

    def _not_all_settled(self, answered: list[tuple[PlannedSettlement, Answer]]) -> list[PlannedSettlement]:
        """Handle the settlements that the store did not accept. Returns the accepted settlements."""
        if regranted := [each for each, answer in answered if answer is False and _is_regranted(each)]:
            answered = [(each, answer) for each, answer in answered if each not in regranted]
            self.write([_under_new_grant(each) for each in regranted])
        for each, answer in answered:
            if answer is not True:
                error = f"the handler ran, but the store did not confirm it ({answer})" if answer else _LEASE_LOST
                each.job.outcome = each.job.failed(error)
        self._context.retrier.add([each for each, answer in answered if may_be_retried(answer)])
        return [each for each, answer in answered if answer is True]

    def release_unstarted(self, jobs: Sequence[Job]) -> list[Job]:
        """Release claims whose handler never started. The attempts do not count. Returns the jobs for which the store
        did not answer and whose lease has not ended: the caller may release these jobs again. A job that is never
        released can be claimed again when its lease ends."""
        if not jobs:
            return []
        self._context.heartbeat.drop([job.lease for job in jobs])
        answers = settle(self._context.store, [self._context.planner.unstarted(job).settlement for job in jobs])
        for job in jobs:
            job.held = False
        now = self._context.boot()
        unanswered = [job for job, answer in zip(jobs, answers, strict=True) if not isinstance(answer, bool)]
        return [job for job in unanswered if now < job.lease.valid_until]


def refuse_unguarded(jobs: Sequence[Job]) -> None:
    """Set the outcome "failed" for jobs that the store did not answer and that a policy allows to run unguarded. No
    event runs unguarded in an admission or a transaction. An event that could not be stored would not run later
    either."""
    for job in jobs:
        if job.unguarded is not None:
            job.outcome = job.failed(job.unguarded)


def _settlements_of(planned: Sequence[PlannedSettlement]) -> list[Settlement]:
    """Returns the settlements to send, and stops the renewal of their leases. The store would refuse to renew a settled
    claim, and this would look like a lost lease."""
    settlements = []
    for each in planned:
        each.job.lease.ending = True
        settlements.append(each.settlement)
    return settlements


def _is_regranted(planned: PlannedSettlement) -> bool:
    """Whether the claim was granted to this process again after its settlement was planned."""
    return planned.job.lease.record.fence != planned.settlement.fence


def _under_new_grant(planned: PlannedSettlement) -> PlannedSettlement:
    record = planned.job.lease.record
    return replace(planned, settlement=replace(planned.settlement, owner=record.owner, fence=record.fence))


def _never(event: Event) -> NoReturn:
    """The handler of jobs that are buried instead of run."""
    raise AssertionError(event)
