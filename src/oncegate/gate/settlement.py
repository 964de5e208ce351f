"""This module plans settlements, and writes, flushes and retries them. A settlement ends a claim.

A `SettlementPlanner` turns the result or the exception of a handler into a settlement and an outcome. Many settlements
are written together. Each settlement is written at most 50 ms after its effect.
"""

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate import forks
from oncegate.backoff import jittered
from oncegate.canonical import is_lossless
from oncegate.claims import Bury, Complete, Release, Settlement
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import Bury as BuryNow
from oncegate.errors import StoreError, Unkeepable
from oncegate.gate.handlers import error_text, failure_stack, is_unavailable, loggable_error, retry_delay_of
from oncegate.gate.job import NO_DOCUMENT, NOT_STORED, TOO_LATE, Job, UnguardedEvent, document
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Cause, Outcome
from oncegate.stores.base import Store

_FLUSH_WITHIN: Final = 0.05  # seconds
_FLUSH_EVERY: Final = _FLUSH_WITHIN / 3
_IDLE_FOR: Final = 0.5
_RETRY_AFTER: Final = (0.05, 0.25)
_RETRY_EVERY: Final = 0.25
CLOSE_WITHIN: Final = 10.0

# The store's answer to a settlement. True: accepted. False: the lease is lost. StoreError: the store did not answer, or
# it cannot hold the settlement.
Answer = bool | StoreError


class PlannedSettlement(Struct, frozen=True, gc=False):
    """The settlement to write for a job, and the outcome of the job if the store accepts the settlement."""

    job: Job
    settlement: Settlement
    outcome: Outcome


# ── what a handler's result or exception means ────────────────────────────────────────────────────────────


class SettlementPlanner:
    def __init__(self, config: GateConfig, boot: Clock) -> None:
        self._config = config
        self._boot = boot

    def processed(self, job: Job, result: Any) -> PlannedSettlement:
        stored, problem = (b"null", None) if result is None else self._stored(result)
        lease, config = job.lease, self._config
        record = lease.record
        complete = Complete(
            config.namespace, lease.key, record.owner, record.fence, config.retention, stored, problem, job.hands_to
        )
        outcome = Outcome("processed", job.event, job.key, None, result, problem, took=job.took)
        return PlannedSettlement(job, complete, outcome)

    def failed(self, job: Job, error: BaseException) -> PlannedSettlement:
        """Plan the settlement of a failed attempt. The event is released and retried. It is buried if this was the last
        attempt, or if the handler raised `Bury`. If the store or a bus holds the event, and a service that the handler
        calls is unavailable, the attempt does not count."""
        config, raised = self._config, loggable_error(error)
        max_attempts, is_held = config.max_attempts, job.is_stored or config.owns_retries
        if config.retry_for is not None and is_held and is_unavailable(error):
            planned = self._unavailable(job, error, raised, config.retry_for)
        elif isinstance(error, BuryNow) or (max_attempts is not None and job.event.attempt >= max_attempts):
            planned = self.buried(job, error_text(error), raised)
        else:
            planned = self.released(job, error_text(error), raised, retry_delay_of(error))
        stack = failure_stack(error)
        return planned if stack is None else replace(planned, outcome=replace(planned.outcome, stack=stack))

    def _unavailable(self, job: Job, error: BaseException, raised: str, retry_for: int) -> PlannedSettlement:
        """Plan the settlement of an event whose handler calls a service that is unavailable. The event is retried for
        up to `retry_for`, and then buried. Each pause is as long as the service has been unavailable so far, but not
        shorter than `backoff` and not longer than `backoff_limit`, with jitter."""
        lease, config, text = job.lease, self._config, error_text(error)
        now = lease.granted_at + self._boot() - lease.held_since
        since = lease.record.unavailable_since
        past = 0 if since is None else max(0, now - since)
        if past >= retry_for and config.max_attempts is not None:
            over = f"; retried for {spoken(past)}, and retry_for is {spoken(retry_for)}"
            return self.buried(job, text + over, raised + over)
        delay = int(jittered(min(max(past, config.backoff), config.backoff_limit)))
        if config.max_attempts is not None:  # the last retry is not delayed beyond `retry_for`
            delay = min(delay, max(retry_for - past, config.backoff))
        after = retry_delay_of(error)
        release = Release(*self._proof(job), text, delay=max(delay, after or 0), unavailable=True)
        note = f" (for another {spoken(max(0, retry_for - past))} at most, retries use up no attempt)"
        return PlannedSettlement(job, release, job.failed(text + note, raised + note, after))

    def released(
        self, job: Job, error: str, raised: str | None = None, retry_after: int | None = None
    ) -> PlannedSettlement:
        release = Release(*self._proof(job), error, delay=max(self._delay(job), retry_after or 0))
        return PlannedSettlement(job, release, job.failed(error, raised, retry_after))

    def buried(self, job: Job, error: str, raised: str | None = None) -> PlannedSettlement:
        payload = document(job.event)
        if payload is None:
            why = f"{NOT_STORED}: {NO_DOCUMENT}"
            return self.released(job, f"{error}, {why}", raised and f"{raised}, {why}")
        bury = Bury(*self._proof(job), self._config.dead_letter_retention, payload, error)
        outcome = Outcome("buried", job.event, job.key, error=error, raised=raised, took=job.took)
        return PlannedSettlement(job, bury, outcome)

    def buried_unrun(self, job: Job, reason: str) -> PlannedSettlement:
        """Plan to bury an event without running it. If no attempt was left, the reason may quote the error of the
        record. This error must not be logged, so the outcome gets the record as its `original`."""
        planned, record, max_attempts = self.buried(job, reason), job.lease.record, self._config.max_attempts
        if record.error is None or max_attempts is None or record.attempts <= max_attempts:
            return planned
        return replace(planned, outcome=replace(planned.outcome, original=record, at=job.lease.granted_at))

    def unstarted(self, job: Job, reason: str = TOO_LATE) -> PlannedSettlement:
        """Plan to release a job whose handler never started. The attempt does not count."""
        return PlannedSettlement(job, Release(*self._proof(job), unstarted=True), job.not_run(reason))

    def failed_before_start(self, job: Job, error: str) -> PlannedSettlement:
        """Plan to release a job whose attempt failed before the handler could start. The attempt does not count."""
        return PlannedSettlement(job, Release(*self._proof(job), error, unstarted=True), job.failed(error))

    def _delay(self, job: Job) -> int:
        """Returns the delay before the next attempt, in microseconds; 0 for an event that the store does not hold."""
        return int(jittered(self._config.pause_after(job.event.attempt))) if job.is_stored else 0

    def _proof(self, job: Job) -> tuple[str, bytes, bytes, int]:
        lease = job.lease
        return self._config.namespace, lease.key, lease.record.owner, lease.record.fence

    def _stored(self, result: Any) -> tuple[bytes | None, str | None]:
        """Returns the result as JSON, or the reason why the result is not stored. The effect is done, so the event has
        not failed if its result cannot be stored."""
        try:
            stored = msgspec.json.encode(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return None, f"its result was not stored, because it is not a JSON value ({error})"
        if not is_lossless(result, stored):
            return None, "its result was not stored, because nan and infinity are not JSON values"
        if len(stored) > self._config.max_result:
            return None, (
                f"its result was not stored, because {len(stored)} bytes are more than"
                f" max_result={self._config.max_result}; return less, or store it elsewhere and return its address"
            )
        return stored, None


# ── without a claim to settle ─────────────────────────────────────────────────────────────────────────────


class FailedAfterMark(Struct, frozen=True):
    """A job that was marked as done and then failed. `raised` is the part of the error that a log may contain. `stack`
    is the place at which its handler raised the error."""

    job: Job
    error: str
    raised: str | None = None
    stack: str | None = None


def never_started(job: Job) -> FailedAfterMark:
    return FailedAfterMark(job, "it was marked as done but never started")


def failed_marked(job: Job, error: BaseException) -> FailedAfterMark:
    return FailedAfterMark(job, error_text(error), loggable_error(error), failure_stack(error))


def ran_marked(job: Job, result: Any) -> None:
    job.outcome = Outcome("processed", job.event, job.key, result=result, took=job.took)


def failed_unguarded(item: Job | UnguardedEvent, error: BaseException) -> None:
    """Set the outcome of an event that ran without a claim and failed. No record counts its attempts: a worker of a bus
    counts them itself, and has to know the cause."""
    text, raised, retry_after = error_text(error), loggable_error(error), retry_delay_of(error)
    cause = Cause.SERVICE_UNAVAILABLE if is_unavailable(error) else None
    item.outcome = Outcome(
        "failed",
        item.event,
        item.key,
        error=text,
        raised=raised,
        retry_after=retry_after,
        cause=Cause.BURY if isinstance(error, BuryNow) else cause,
        stack=failure_stack(error),
        took=item.took,
    )


def ran_unguarded(item: Job | UnguardedEvent, result: Any) -> None:
    raised = item.refusal.raised if isinstance(item, UnguardedEvent) else None
    item.outcome = Outcome(
        "unguarded", item.event, item.key, None, result, item.unguarded, raised=raised, took=item.took
    )


# ── writing settlements ───────────────────────────────────────────────────────────────────────────────────


def settle(store: Store, settlements: Sequence[Settlement]) -> Sequence[Answer]:
    """Write these settlements with one write, and return the store's answers. The effects are done, so the write is
    retried twice if the store fails. If the store cannot hold one of the settlements, each settlement is written
    separately."""
    for pause in (*_RETRY_AFTER, None):
        try:
            return store.settle(settlements)
        except Unkeepable as error:
            if len(settlements) == 1:
                return [error]
            return [answer for each in settlements for answer in settle(store, [each])]
        except StoreError as error:
            if pause is None:
                return [error] * len(settlements)
            time.sleep(pause)
    raise AssertionError("the last try returns")


def may_be_retried(answer: Answer) -> bool:
    """Whether the store did not answer a settlement, but may answer if the settlement is sent again."""
    return not isinstance(answer, bool | Unkeepable)


class SettlementBuffer:
    """The settlements of one batch that are not written yet. The batch appends to `waiting` while it runs."""

    def __init__(self, waiting: list[PlannedSettlement], write: Callable[[Sequence[PlannedSettlement]], None]) -> None:
        self._waiting = waiting
        self._write = write
        self._lock = threading.Lock()

    def flush(self) -> None:
        """Write all waiting settlements. Afterwards each of their jobs has its outcome."""
        with self._lock:
            planned = self._waiting[:]
            if planned:
                del self._waiting[: len(planned)]  # the batch may have appended more since the copy
                self._write(planned)


class SettlementFlusher:
    """Flushes the buffers of running batches, because one handler of a batch may run for a long time.

    Every 17 ms a thread flushes the buffers that already existed at its previous round. So a batch that ends before
    this is written with one write. A batch needs only two dict operations for this. Waking a thread for each batch was
    rejected: it would take longer than some events of the batch. The thread starts with the first batch, and ends soon
    after the last batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: dict[SettlementBuffer, None] = {}
        self._thread: threading.Thread | None = None
        forks.watch(self)

    def begin(self, buffer: SettlementBuffer) -> None:
        with self._lock:
            self._buffers[buffer] = None
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="oncegate-flusher", daemon=True)
                self._thread.start()

    def end(self, buffer: SettlementBuffer) -> None:
        self._buffers.pop(buffer, None)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._buffers, self._thread = {}, None
        self._lock.release()

    def _run(self) -> None:
        seen: list[SettlementBuffer] = []
        last = time.monotonic()
        while seen or time.monotonic() - last < _IDLE_FOR or not self._has_ended():
            time.sleep(_FLUSH_EVERY)
            for buffer in seen:
                buffer.flush()
            seen = list(self._buffers)
            if seen:
                last = time.monotonic()

    def _has_ended(self) -> bool:
        with self._lock:
            if self._buffers:
                return False
            self._thread = None
            return True


class SettlementRetrier:
    """Retries settlements in a thread until the store confirms them or the lease ends. The callers of these settlements
    do not wait any more: they already have the outcome "failed".

    While a lease lasts, the store grants its event to no other worker. If the store confirms the settlement before the
    lease ends, the next delivery finds the event completed, and the effect is not repeated. `on_settled` is called with
    the confirmed settlements and the time at which they were sent. The thread starts with the first settlement, and
    ends when no settlement is left.
    """

    def __init__(
        self, store: Store, boot: Clock, on_settled: Callable[[Sequence[PlannedSettlement], int], None]
    ) -> None:
        self._store = store
        self._boot = boot
        self._on_settled = on_settled
        self._lock = threading.Lock()
        self._left: list[PlannedSettlement] = []
        self._thread: threading.Thread | None = None
        forks.watch(self)
        _open.add(self)

    def add(self, planned: Sequence[PlannedSettlement]) -> None:
        with self._lock:
            self._left.extend(planned)
            if self._left and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="oncegate-unsettled", daemon=True)
                self._thread.start()

    def flush(self, within: float) -> None:
        """Wait until no settlement is left, for at most `within` seconds."""
        deadline = time.monotonic() + within
        while self._left and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_FLUSH_EVERY, left))

    def give_up(self) -> None:
        """Stop retrying. To be called before the store is closed."""
        with self._lock:
            self._left = []

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._left, self._thread = [], None
        self._lock.release()

    def _run(self) -> None:
        while planned := self._with_live_lease():
            with suppress(Exception):  # no caller waits for this exception
                self._retry(planned)
            time.sleep(_RETRY_EVERY)

    def _with_live_lease(self) -> list[PlannedSettlement]:
        """Drop the settlements whose lease has ended, for example because the process was frozen. Returns the other
        settlements."""
        now = self._boot()
        with self._lock:
            self._left = [each for each in self._left if now < each.job.lease.valid_until]
            if not self._left:
                self._thread = None
            return self._left[:]

    def _retry(self, planned: Sequence[PlannedSettlement]) -> None:
        sent_at = self._boot()
        answers = settle(self._store, [each.settlement for each in planned])
        answered = list(zip(planned, answers, strict=True))
        self._on_settled([each for each, answer in answered if answer is True], sent_at)
        done = {id(each) for each, answer in answered if not may_be_retried(answer)}
        with self._lock:
            self._left = [each for each in self._left if id(each) not in done]


# A process may end right after it has reported a failed settlement, although the effect is done. So the exit of the
# process waits for the store to confirm the settlement.
_open: WeakSet[SettlementRetrier] = WeakSet()


@atexit.register
def _flush_all() -> None:
    deadline = time.monotonic() + CLOSE_WITHIN
    for retrier in list(_open):
        retrier.flush(deadline - time.monotonic())
