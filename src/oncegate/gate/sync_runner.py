"""Running: grants to handlers, one after the other, and what becomes of them."""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import Complete, Settlement
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import SettingError, StoreError
from oncegate.gate.claimer import Claimer, StoreCall
from oncegate.gate.completion_cache import CompletionCache
from oncegate.gate.handlers import Handler, TransactionHandler, plain
from oncegate.gate.job import NO_TIME, NOT_ALONE, Job, UnguardedEvent, runs_alone
from oncegate.gate.leases import Heartbeat
from oncegate.gate.limiter import PROCESS, inside
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Outcome
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
    is_passing,
    never_started,
    ran_marked,
    ran_unguarded,
    settle,
)
from oncegate.stores.base import EffectFailed, Store, Transactional

_LOST: Final = (
    "its claim was lost to another worker before it could be settled: its handler ended here, but that is not recorded,"
    " and it runs again"
)

# How one grant that may start is attempted; None if it has come to its outcome already.
_Handle = Callable[[Job], PlannedSettlement | None]


class RunContext(Struct, frozen=True):
    """What granted events are run with, put together by the engine for those who run them."""

    store: Store
    config: GateConfig
    boot: Clock
    claimer: Claimer
    planner: SettlementPlanner
    heartbeat: Heartbeat
    cache: CompletionCache
    retrier: SettlementRetrier
    observers: Observers


class SyncRunner:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._flusher = SettlementFlusher()
        self._bound = context.config.alone_bound
        self._within = context.config.alone_within
        self._hold = context.config.max_hold / 1e6

    def run(self, jobs: Sequence[Job], handler: Handler) -> None:
        """Run those of the jobs that hold a lease; each has its outcome afterwards.

        Those that may have killed their worker are given back and run last, each claimed alone after all others are
        settled, while no other handler of this process runs.
        """
        granted = [job for job in jobs if job.held]
        if not granted:
            return
        if self._context.config.marks_first:
            self._beside(granted, self._run_marked, handler)
        elif len(granted) == 1 and runs_alone(granted[0]):
            self._placed(granted[0], lambda job: self.run_alone(job, handler))
        else:
            suspects = [job for job in granted if job.lease.record.lost and runs_alone(job)]
            if suspects:
                self.give_back(suspects)
                granted = [job for job in granted if job.held]
            if granted:
                self._beside(granted, self._run_together, handler)
            for job in suspects:
                self._claim_alone(job, lambda job: self.run_alone(job, handler))

    def _beside(self, jobs: Sequence[Job], run: Callable[[Sequence[Job], Handler], None], handler: Handler) -> None:
        """Run beside others; while one of them runs alone, wait, with the leases renewed."""
        nested, token = inside.get(), jobs[0]
        try:  # to leave without having entered does no harm
            if not nested and not PROCESS.enter_now(token, self._hold):
                self._enter(token, jobs)
            inside.set(True)
            run(jobs, handler)
        finally:
            inside.set(nested)
            PROCESS.leave(token)

    def _enter(self, token: object, jobs: Sequence[Job]) -> None:
        leases = [] if self._context.config.marks_first else [job.lease for job in jobs]
        try:
            self._context.heartbeat.hold(leases)
            PROCESS.enter(token, self._hold)
        finally:
            self._context.heartbeat.drop(leases)

    def _placed(self, job: Job, run: Callable[[Job], None]) -> None:
        """Run one grant beside others; alone, if it may have killed its worker."""
        if not runs_alone(job):
            self._beside([job], lambda jobs, _handler: run(jobs[0]), _no_handler)
        elif not self._alone(lambda: run(job), within=0.0):
            self.give_back([job])
            self._claim_alone(job, run)

    def _claim_alone(self, job: Job, run: Callable[[Job], None]) -> None:
        """Claim one that was given back and run it, as soon as nothing else runs in this process. It is not held before
        that, since it would lose one more attempt if the process died meanwhile."""

        def claim_and_run() -> None:
            self._claim_again(job)
            if job.held:
                run(job)

        left = (job.start_by - self._context.boot()) / 1e6
        if not self._alone(claim_and_run, within=max(0.0, min(self._within, left))):
            job.outcome = Outcome("in_flight", job.event, job.key, error=NOT_ALONE)

    def _alone(self, run: Callable[[], None], within: float) -> bool:
        """Run alone, if nothing else runs in this process within so many seconds; whether it did."""
        nested = inside.get()
        token = object()
        try:
            if not PROCESS.enter_alone(token, self._hold, within=within, alone_for=self._bound):
                return False
            inside.set(True)
            run()
        finally:
            inside.set(nested)
            PROCESS.leave(token)
        return True

    def _claim_again(self, job: Job) -> None:
        if self._context.boot() < job.start_by:
            self._context.claimer.claim([job])
        else:
            job.outcome = Outcome("in_flight", job.event, job.key, error=NO_TIME)

    def run_alone(self, job: Job, handler: Handler) -> None:
        """Run one claim in progress, whatever the mode: what was taken from the store is never marked first."""
        self._run_together([job], handler)

    def run_taken(self, job: Job, handler: Handler, take: Callable[[], Sequence[Job]]) -> list[Job]:
        """Run what was taken from the store, beside others or alone; what has come to an outcome. One that must be
        alone and cannot be yet is given back, and what is taken as soon as it can be runs in its place."""
        ran: list[Job] = []

        def run(jobs: Sequence[Job]) -> None:
            for each in jobs:
                ran.append(each)
                self.run_alone(each, handler)

        if not runs_alone(job):
            self._beside([job], lambda jobs, _handler: run(jobs), handler)
        elif not self._alone(lambda: run([job]), within=0.0):
            self.give_back([job])
            self._alone(lambda: run(take()), within=self._within)
        return ran

    def run_unguarded(self, items: Sequence[Job | UnguardedEvent], handler: Handler) -> None:
        """Run what its policy lets run without a claim; a failure is only told, there is nothing to settle."""
        for item in items:
            if item.unguarded is not None:
                try:
                    ran_unguarded(item, plain(handler(item.event)))
                except Exception as error:  # noqa: BLE001  # whatever a handler raises is a failed attempt
                    failed_unguarded(item, error)

    def transact(self, job: Job, handler: TransactionHandler, connection: Any = None) -> None:
        """Run one grant in a transaction of the store that completes it too. The claim is committed before, so its
        attempt counts even if its handler fails and all is rolled back; there is no heartbeat, since nobody else can
        write."""
        self._placed(
            job,
            lambda job: self._attempt_each([job], lambda job: self._handle_in_transaction(job, handler, connection)),
        )

    def _handle_in_transaction(self, job: Job, handler: TransactionHandler, own: Any) -> PlannedSettlement | None:
        store = cast(Transactional, self._context.store)  # the gate has asked
        endings: list[PlannedSettlement] = []
        began: int | None = None

        def effect(connection: Any) -> Complete:
            nonlocal began
            began = self._context.boot()
            endings.append(self._context.planner.processed(job, plain(handler(job.event, connection))))
            complete = endings[0].settlement
            assert isinstance(complete, Complete)  # noqa: S101  # processed() completes
            return complete

        proof = job.lease.renewal(self._context.config.lease)
        sent_at = self._context.boot()
        try:
            accepted = store.transact(proof, effect) if own is None else store.transact(proof, effect, own)
        except EffectFailed as failure:
            if not isinstance(failure.cause, Exception):
                raise failure.cause from None
            return self._context.planner.failed(job, failure.cause)
        except SettingError:  # the connection will not do
            job.started = began is not None
            raise
        except StoreError as error:
            if began is None:
                return self._context.planner.untried(job, f"its transaction could not begin ({error})")
            return self._context.planner.released(job, f"its transaction was rolled back ({error})")
        finally:
            if began is not None:
                self._warn_of_holding(job, self._context.boot() - began)
        self._settled(endings or [self._context.planner.processed(job, None)], [accepted], sent_at)
        return None

    def _warn_of_holding(self, job: Job, held: int) -> None:
        """Tell of a handler that kept all others from writing for longer than a lease: theirs may have ended unrenewed,
        and what they ran runs again."""
        lease = self._context.config.lease
        if held > lease and getattr(self._context.store, "transactions_exclude_others", False):
            why = f"its handler held the store's file for {spoken(held)}, longer than the lease of {spoken(lease)}"
            detail = f"{why}: nobody else could claim, renew or complete meanwhile"
            self._context.observers.notify("transaction.held", job.event, job.key, detail=detail)

    def _run_marked(self, jobs: Sequence[Job], handler: Handler) -> None:
        """Run what is completed already. What fails, or is never started, is kept as a dead letter of its own."""
        failed: list[FailedAfterMark] = []
        try:
            for job in jobs:
                self._attempt_marked(job, handler, failed)
        finally:
            failed.extend(never_started(job) for job in jobs if not job.started)
            self._context.claimer.bury_failed(failed)

    def _attempt_marked(self, job: Job, handler: Handler, failed: list[FailedAfterMark]) -> None:
        if self._context.boot() >= job.lease.valid_until:
            return
        job.started = True
        if job.bury_reason is not None:
            failed.append(FailedAfterMark(job, job.bury_reason))
            return
        try:
            ran_marked(job, plain(handler(job.event)))
        except BaseException as error:  # kept, then raised again unless it is an ordinary failure
            failed.append(failed_marked(job, error))
            if not isinstance(error, Exception):
                raise

    def _run_together(self, jobs: Sequence[Job], handler: Handler) -> None:
        endings = self._context.planner

        def handle(job: Job) -> PlannedSettlement:
            try:
                result = handler(job.event)
                return endings.processed(job, result if result is None else plain(result))
            except Exception as error:  # noqa: BLE001  # whatever a handler raises is a failed attempt
                return endings.failed(job, error)

        leases = [job.lease for job in jobs]
        try:  # to drop what is not held does no harm
            self._context.heartbeat.hold(leases)
            self._attempt_each(jobs, handle)
        finally:
            self._context.heartbeat.drop(leases)

    def _attempt_each(self, jobs: Sequence[Job], handle: _Handle) -> None:
        """Attempt one after the other; what they come to is written within 50 ms, and all of it on return."""
        boot, endings = self._context.boot, self._context.planner
        ended: list[PlannedSettlement] = []
        settlements = SettlementBuffer(ended, self.write) if len(jobs) > 1 else None
        job: Job | None = None
        try:
            if settlements is not None:
                self._flusher.begin(settlements)
            for job in jobs:
                lease, now = job.lease, boot()
                if job.bury_reason is not None:
                    job.started = True
                    ended.append(endings.hopeless(job, job.bury_reason))
                elif now >= lease.valid_until or now >= job.start_by or lease.lost:  # here, as a call would cost more
                    job.outcome = Outcome("in_flight", job.event, job.key, error=job.too_late(now))
                else:
                    job.started = True
                    if (ending := handle(job)) is not None:
                        ended.append(ending)
        except BaseException as error:  # an interrupt fails the attempt like any error, and then goes on upwards
            if job is not None and job.started:
                ended.append(endings.failed(job, error))
            raise
        finally:
            if settlements is not None:
                self._flusher.end(settlements)
                settlements.flush()
            elif ended:
                self.write(ended)
            self.give_back([job for job in jobs if not job.started])

    # ── how it ends ───────────────────────────────────────────────────────────────────────────────────────

    def write(self, endings: Sequence[PlannedSettlement]) -> None:
        """Settle with one write, tried again if it fails; on return every job has its outcome. What the store has not
        confirmed by then has failed, and is tried on for as long as nobody else can be granted it."""
        settlements, sent_at = self._let_go(endings), self._context.boot()
        self._settled(endings, self._settle(settlements), sent_at)

    def asking(
        self, endings: Sequence[PlannedSettlement], undone: Callable[[Sequence[PlannedSettlement]], None]
    ) -> StoreCall:
        """The same, to be asked for, and tried once: `undone` gets them if the store does not answer."""
        settlements, store = self._let_go(endings), self._context.store
        return StoreCall(store.settle, settlements, endings, self._settled, lambda left, _error: undone(left))

    def _let_go(self, endings: Sequence[PlannedSettlement]) -> list[Settlement]:
        """What to ask of the store. From here on they are no longer renewed."""
        settlements = []
        for ending in endings:
            ending.job.lease.ending = True
            settlements.append(ending.settlement)
        return settlements

    def _settle(self, settlements: Sequence[Settlement]) -> Sequence[Answer]:
        return settle(self._context.store, settlements)

    def _settled(self, endings: Sequence[PlannedSettlement], answers: Sequence[Answer], sent_at: int) -> None:
        """Give the jobs their outcomes, and remember those that are completed."""
        self._context.heartbeat.drop([ending.job.lease for ending in endings])
        if answers.count(True) < len(endings):
            settled = list(zip(endings, answers, strict=True))
            if anew := [_anew(ending) for ending, answer in settled if answer is False and _is_granted_anew(ending)]:
                settled = [each for each in settled if not (each[1] is False and _is_granted_anew(each[0]))]
                self.write(anew)
            endings = [ending for ending, answer in settled if answer is True]
            for ending, answer in settled:
                if answer is not True:
                    ending.job.outcome = _not_settled(ending, answer)
            self._context.retrier.add([ending for ending, answer in settled if is_passing(answer)])
        for ending in endings:
            ending.job.outcome = ending.outcome
        self._context.cache.settled(endings, sent_at)
        if again := [ending.job for ending in endings if _is_granted_anew(ending)]:
            # The event was released, and granted to this process once more before that was known here: nobody runs it.
            self._settle([self._context.planner.unstarted(job).settlement for job in again])

    def give_back(self, jobs: Sequence[Job]) -> list[Job]:
        """Release claims whose handler never started: the attempt does not count. Those that could not be given back
        though their lease lasts are answered; else they come free when it ends."""
        if not jobs:
            return []
        self._context.heartbeat.drop([job.lease for job in jobs])
        answers = self._settle([self._context.planner.unstarted(job).settlement for job in jobs])
        for job in jobs:
            job.held = False
        now = self._context.boot()
        unanswered = [job for job, answer in zip(jobs, answers, strict=True) if not isinstance(answer, bool)]
        return [job for job in unanswered if now < job.lease.valid_until]


def _no_handler(_event: object) -> None:
    """What is run knows its own."""


def _is_granted_anew(ending: PlannedSettlement) -> bool:
    """Whether the claim was granted to this process once more after it was decided how it ends."""
    return ending.job.lease.record.fence != ending.settlement.fence


def _anew(ending: PlannedSettlement) -> PlannedSettlement:
    record = ending.job.lease.record
    return replace(ending, settlement=replace(ending.settlement, owner=record.owner, fence=record.fence))


def _not_settled(ending: PlannedSettlement, answer: Answer) -> Outcome:
    """What an ending has come to that the store did not accept."""
    error = f"the handler ran, but the store did not confirm it ({answer})" if answer else _LOST
    return Outcome("failed", ending.job.event, ending.job.key, error=error)
