"""Running: grants to handlers, and what becomes of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from oncegate.claims import Bury, Complete, Release, Settlement
from oncegate.clocks import Clock
from oncegate.durations import times
from oncegate.errors import SettingError, StoreError
from oncegate.events import Event
from oncegate.gate.claiming import Claimer
from oncegate.gate.jobs import Job
from oncegate.gate.leases import Heartbeat, Lease
from oncegate.gate.outcome import Outcome
from oncegate.gate.settling import Flusher, Settled, Settlements, settle
from oncegate.gate.terms import Terms
from oncegate.stores.base import EffectFailed, Store, Transactional

Handler = Callable[[Event], Any]
TransactionHandler = Callable[[Event, Any], Any]
_Handle = Callable[[Job, Settlements], None]

_TOO_LATE = "its lease ran out before the handler could start"
_LONGEST_ERROR = 2_000
_ASYNC_OR_GENERATOR = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR


class Runner:
    def __init__(self, store: Store, terms: Terms, boot: Clock, claimer: Claimer) -> None:
        self._store = store
        self._terms = terms
        self._boot = boot
        self._claimer = claimer
        self._heartbeat = Heartbeat(store, terms.lease, terms.max_hold, boot)
        self._flusher = Flusher()

    def run(self, jobs: Sequence[Job], handler: Handler) -> None:
        """Run those of the jobs that hold a lease; each has its outcome afterwards.

        In a batch, an event that was tried before may be what killed its worker then. Those are given back
        and run last, each claimed alone after all others are settled, the least tried first.
        """
        granted = [job for job in jobs if job.lease is not None]
        if self._terms.marks_first:
            self._run_marked(granted, handler)
            return
        if len(granted) == 1:
            self.run_alone(granted[0], handler)
            return
        again = [job for job in granted if job.event.attempt > 1]
        self.give_back(again)
        self._run_together([job for job in granted if job.event.attempt == 1], handler)
        for job in sorted(again, key=_attempt):
            self._claimer.claim([job])
            if job.lease is not None:
                self.run_alone(job, handler)

    def run_alone(self, job: Job, handler: Handler) -> None:
        """Run one claim in progress, whatever the mode: what was taken from the store is never marked first."""
        self._run_together([job], handler)

    def transact(self, job: Job, handler: TransactionHandler) -> None:
        """Run one grant in a transaction of the store that completes it too. The claim is committed before, so its
        attempt counts even if the transaction is rolled back; there is no heartbeat, since nobody else can write."""
        self._attempt_each([job], partial(self._handle_in_transaction, handler))

    def _handle_in_transaction(self, handler: TransactionHandler, job: Job, settlements: Settlements) -> None:
        assert isinstance(self._store, Transactional)  # noqa: S101  # the gate has asked
        outcomes: list[Outcome] = []

        def effect(connection: Any) -> Complete:
            complete, outcome = self._completion(job, _plain(handler(job.event, connection)))
            outcomes.append(outcome)
            return complete

        try:
            accepted = self._store.transact(lease_of(job).proof, effect)
        except EffectFailed as failure:
            self._fail(job, _text(failure.cause), settlements)
            if not isinstance(failure.cause, Exception):
                raise failure.cause from None
        except StoreError as error:
            self._release(job, f"its transaction was rolled back ({error})", settlements)
        else:
            _ending(job, outcomes[0] if outcomes else Outcome("processed", job.event, job.key))(accepted)

    def _run_marked(self, jobs: Sequence[Job], handler: Handler) -> None:
        """Run what is completed already. What fails, or is never started, is kept as a dead letter of its own."""
        failed: list[tuple[Job, str]] = []
        try:
            for job in jobs:
                self._attempt_marked(job, handler, failed)
        finally:
            unstarted = [(job, "it was marked as done but never started") for job in jobs if not job.started]
            kept, errors = zip(*failed, *unstarted, strict=True) if failed or unstarted else ((), ())
            self._claimer.bury_failed(kept, errors)

    def _attempt_marked(self, job: Job, handler: Handler, failed: list[tuple[Job, str]]) -> None:
        if self._boot() >= lease_of(job).valid_until:
            return
        job.started = True
        try:
            result = _plain(handler(job.event))
        except BaseException as error:  # kept, then raised again unless it is an ordinary failure
            failed.append((job, _text(error)))
            if not isinstance(error, Exception):
                raise
        else:
            job.outcome = Outcome("processed", job.event, job.key, result=result)

    def _run_together(self, jobs: Sequence[Job], handler: Handler) -> None:
        with self._heartbeat.holding([lease_of(job) for job in jobs]):
            self._attempt_each(jobs, partial(self._handle, handler))

    def _attempt_each(self, jobs: Sequence[Job], handle: _Handle) -> None:
        settlements = Settlements(self._store, self._flusher)
        try:
            for job in jobs:
                settlements.hurry()
                self._attempt(job, handle, settlements)
        finally:
            settlements.flush()
            self.give_back([job for job in jobs if not job.started])

    def _attempt(self, job: Job, handle: _Handle, settlements: Settlements) -> None:
        """Run one grant, and say how it shall be settled."""
        lease = lease_of(job)
        if (hopeless := self._hopeless(job)) is not None:
            job.started = True
            self._bury(job, hopeless, settlements)
        elif lease.lost or self._boot() >= lease.valid_until:
            job.outcome = Outcome("in_flight", job.event, job.key, error=_TOO_LATE)
        else:
            job.started = True
            handle(job, settlements)

    def _hopeless(self, job: Job) -> str | None:
        most = self._terms.max_attempts
        if most is not None and job.event.attempt > most:
            return f"its worker did not come back from {times(most, 'attempt')}"
        return job.event.problem

    def _handle(self, handler: Handler, job: Job, settlements: Settlements) -> None:
        try:
            result = _plain(handler(job.event))
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is a failed attempt
            self._fail(job, _text(error), settlements)
        except BaseException as error:
            self._fail(job, _text(error), settlements)
            raise
        else:
            complete, outcome = self._completion(job, result)
            settlements.add(complete, _ending(job, outcome))

    # ── how it ends ───────────────────────────────────────────────────────────────────────────────────────

    def _completion(self, job: Job, result: Any) -> tuple[Complete, Outcome]:
        """How to complete a job, and its outcome if that is accepted."""
        stored, problem = self._stored(result)
        complete = Complete(*_proof(job), self._terms.retention, stored, problem)
        return complete, Outcome("processed", job.event, job.key, result=result, error=problem)

    def _fail(self, job: Job, error: str, settlements: Settlements) -> None:
        most = self._terms.max_attempts
        if most is not None and job.event.attempt >= most:
            self._bury(job, error, settlements)
        else:
            self._release(job, error, settlements)

    def _release(self, job: Job, error: str, settlements: Settlements) -> None:
        outcome = Outcome("failed", job.event, job.key, error=error)
        settlements.add(Release(*_proof(job), error), _ending(job, outcome))

    def _bury(self, job: Job, error: str, settlements: Settlements) -> None:
        settlement = Bury(*_proof(job), self._terms.dead_letter_retention, job.event.raw, error)
        outcome = Outcome("buried", job.event, job.key, error=error)
        settlements.add(settlement, _ending(job, outcome))

    def give_back(self, jobs: Sequence[Job]) -> None:
        """Release claims whose handler never started: the attempt does not count."""
        waiting: list[tuple[Settlement, Settled]] = []
        for job in jobs:
            waiting.append((Release(*_proof(job), unstarted=True), _ignore))
            job.lease = None
        if waiting:
            settle(self._store, waiting)

    def _stored(self, result: Any) -> tuple[bytes | None, str | None]:
        """The result as JSON. The effect is done, so a result that cannot be kept is no failure of the event."""
        try:
            stored = msgspec.json.encode(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return None, f"its result was not kept, because it is no JSON value ({error})"
        if len(stored) > self._terms.max_result:
            return None, (
                f"its result was not kept, because {len(stored)} bytes are more than"
                f" max_result={self._terms.max_result}; return less, or keep it elsewhere and return where"
            )
        return stored, None


def lease_of(job: Job) -> Lease:
    assert job.lease is not None  # noqa: S101  # only grants are run
    return job.lease


def _proof(job: Job) -> tuple[str, bytes, bytes, int]:
    proof = lease_of(job).proof
    return proof.namespace, proof.key, proof.owner, proof.fence


def _ending(job: Job, accepted: Outcome) -> Settled:
    """Give the job its outcome when the store has answered."""

    def end(answer: bool | StoreError) -> None:
        if answer is True:
            job.outcome = accepted
        elif answer is False:
            error = "its claim was lost to another worker before it could be settled"
            job.outcome = Outcome("failed", job.event, job.key, error=error)
        else:
            error = f"the handler ran, but the store did not confirm it ({answer})"
            job.outcome = Outcome("failed", job.event, job.key, error=error)

    return end


def _ignore(answer: bool | StoreError) -> None:
    """A claim that could not be given back comes free when its lease ends."""


def _attempt(job: Job) -> int:
    return job.event.attempt


def check_handler(handler: Callable[..., Any]) -> None:
    """Refuse at once what could never do its work when it is called."""
    if not callable(handler):
        raise SettingError(f"handler={handler!r} cannot be called")
    code = getattr(handler, "__code__", None)
    if code is not None and code.co_flags & _ASYNC_OR_GENERATOR:
        raise SettingError(f"{handler.__name__} is async or a generator; the handler must be a plain function")


def _plain(result: Any) -> Any:
    """The result, unless it is work that was only described: a coroutine or a generator has done nothing yet."""
    if any(hasattr(type(result), method) for method in ("__await__", "send", "asend")):
        if hasattr(result, "close"):
            result.close()
        raise TypeError("the handler returned a coroutine or a generator, which nobody runs; give a plain function")
    return result


def _text(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception as failure:  # noqa: BLE001  # an exception that cannot say what it is must not stop us
        said = f"(its text could not be read: {type(failure).__name__})"
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()[:_LONGEST_ERROR]
