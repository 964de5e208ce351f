"""Settling: how claims end, many with one write, none later than 50 ms after its effect."""

import atexit
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate import forks
from oncegate.canonical import told_apart
from oncegate.claims import Bury, Complete, Release, Settlement
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import Bury as Never
from oncegate.errors import StoreError, Unkeepable
from oncegate.gate.handlers import error_text, is_unavailable, loggable_error, retry_delay_of
from oncegate.gate.job import NO_DOCUMENT, NOT_KEPT, TOO_LATE, Job, UnguardedEvent, document
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Outcome
from oncegate.stores.base import Store

_FLUSH_WITHIN = 0.05
_LOOK_EVERY = _FLUSH_WITHIN / 3
_IDLE_FOR = 0.5
_RETRY_AFTER = (0.05, 0.25)
_RETRY_EVERY = 0.25
CLOSE_WITHIN = 10.0

# What a store says to a settlement: True accepted, False lease lost, an error if it did not answer.
Answer = bool | StoreError


class PlannedSettlement(Struct, frozen=True, gc=False):
    """How a job shall end, and its outcome if the store agrees."""

    job: Job
    settlement: Settlement
    outcome: Outcome


class SettlementBuffer:
    """The endings of one batch that are not written yet: those that wait here, and what is added to them."""

    def __init__(self, waiting: list[PlannedSettlement], write: Callable[[Sequence[PlannedSettlement]], None]) -> None:
        self._waiting = waiting
        self._write = write
        self._lock = threading.Lock()

    def flush(self) -> None:
        """Write all that waits; on return every one of them has been told."""
        with self._lock:
            endings = self._waiting[:]
            if endings:
                del self._waiting[: len(endings)]  # what has been added meanwhile stays
                self._write(endings)


def settle(store: Store, settlements: Sequence[Settlement]) -> Sequence[Answer]:
    """Settle in one write. The effects are done, so a store that stumbles is asked again before giving up; and if one
    cannot be kept, the others are settled one by one."""
    for pause in (*_RETRY_AFTER, None):
        try:
            return store.settle(settlements)
        except Unkeepable as error:
            alone = len(settlements) == 1
            return [error] if alone else [answer for each in settlements for answer in settle(store, [each])]
        except StoreError as error:
            if pause is None:
                return [error] * len(settlements)
            time.sleep(pause)
    raise AssertionError("the last try returns")


class SettlementRetrier:
    """Endings that the store did not confirm in time for their callers, tried until it does or their leases are over.

    While a lease lasts nobody else is granted its event: if the store comes back by then, the next delivery finds it
    done, and nothing is done twice. `settled` gets what is confirmed; nobody else waits for it. The thread starts with
    the first of them and ends with the last.
    """

    def __init__(self, store: Store, boot: Clock, settled: Callable[[Sequence[PlannedSettlement], int], None]) -> None:
        self._store = store
        self._boot = boot
        self._settled = settled
        self._lock = threading.Lock()
        self._left: list[PlannedSettlement] = []
        self._thread: threading.Thread | None = None
        forks.watch(self)
        _open.add(self)

    def add(self, endings: Sequence[PlannedSettlement]) -> None:
        with self._lock:
            self._left.extend(endings)
            if self._left and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="oncegate-unsettled", daemon=True)
                self._thread.start()

    def flush(self, within: float) -> None:
        """Wait until none is left, at most that long."""
        deadline = time.monotonic() + within
        while self._left and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_LOOK_EVERY, left))

    def give_up(self) -> None:
        """Try no more: the store is about to be closed."""
        with self._lock:
            self._left = []

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._left, self._thread = [], None
        self._lock.release()

    def _run(self) -> None:
        while endings := self._alive():
            with suppress(Exception):  # those who could be told are gone
                self._try(endings)
            time.sleep(_RETRY_EVERY)

    def _alive(self) -> list[PlannedSettlement]:
        """Those that are left. In a process that was frozen meanwhile the leases may be long over."""
        now = self._boot()
        with self._lock:
            self._left = [ending for ending in self._left if now < ending.job.lease.valid_until]
            if not self._left:
                self._thread = None
            return self._left[:]

    def _try(self, endings: Sequence[PlannedSettlement]) -> None:
        sent_at = self._boot()
        answers = settle(self._store, [ending.settlement for ending in endings])
        tried = list(zip(endings, answers, strict=True))
        self._settled([ending for ending, answer in tried if answer is True], sent_at)
        done = {id(ending) for ending, answer in tried if not is_passing(answer)}
        with self._lock:
            self._left = [ending for ending in self._left if id(ending) not in done]


def is_passing(answer: Answer) -> bool:
    """Whether the store has not answered, and may do so yet."""
    return not isinstance(answer, bool | Unkeepable)


# A process that ends right after it was told of a failure has still done the effect.
_open: WeakSet[SettlementRetrier] = WeakSet()


@atexit.register
def _flush_all() -> None:
    deadline = time.monotonic() + CLOSE_WITHIN
    for each in list(_open):
        each.flush(deadline - time.monotonic())


class SettlementFlusher:
    """Flushes what batches under way have left waiting, as their own thread may be busy with one event for long.

    A thread looks at all of them every 17 ms and flushes those that it has seen before, so that a batch that is over
    sooner is written in one piece. To be looked at takes a batch two steps on a dict; to wake a thread for each would
    take longer than some of its events. The thread starts with the first batch and ends soon after the last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[SettlementBuffer, None] = {}
        self._thread: threading.Thread | None = None
        forks.watch(self)

    def begin(self, settlements: SettlementBuffer) -> None:
        with self._lock:
            self._under_way[settlements] = None
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="oncegate-flusher", daemon=True)
                self._thread.start()

    def end(self, settlements: SettlementBuffer) -> None:
        self._under_way.pop(settlements, None)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._under_way, self._thread = {}, None
        self._lock.release()

    def _run(self) -> None:
        seen: list[SettlementBuffer] = []
        last = time.monotonic()
        while seen or time.monotonic() - last < _IDLE_FOR or not self._ended():
            time.sleep(_LOOK_EVERY)
            for settlements in seen:
                settlements.flush()
            seen = list(self._under_way)
            if seen:
                last = time.monotonic()

    def _ended(self) -> bool:
        with self._lock:
            if self._under_way:
                return False
            self._thread = None
            return True


# Endings: what a handler's answer or failure means for its claim and its outcome.


class SettlementPlanner:
    def __init__(self, config: GateConfig, boot: Clock) -> None:
        self._config = config
        self._boot = boot

    def processed(self, job: Job, result: Any) -> PlannedSettlement:
        config, lease = self._config, job.lease
        record = lease.record
        if result is None:
            complete = Complete(
                config.namespace, lease.key, record.owner, record.fence, config.retention, b"null", None, job.hands_to
            )
            return PlannedSettlement(job, complete, Outcome("processed", job.event, job.key))
        stored, problem = self._stored(result)
        complete = Complete(
            config.namespace, lease.key, record.owner, record.fence, config.retention, stored, problem, job.hands_to
        )
        return PlannedSettlement(job, complete, Outcome("processed", job.event, job.key, None, result, problem))

    def failed(self, job: Job, error: BaseException) -> PlannedSettlement:
        """A failed attempt: the last one buries, and so does one whose handler says that none can work. Of what the
        store holds, one that blames something unavailable does not count."""
        most = self._config.max_attempts
        raised = loggable_error(error)
        if self._config.retry_for is not None and job.lease.record.payload is not None and is_unavailable(error):
            return self._unavailable(job, error, raised, self._config.retry_for)
        if isinstance(error, Never) or (most is not None and job.event.attempt >= most):
            return self.buried(job, error_text(error), raised)
        return self.released(job, error_text(error), raised, retry_delay_of(error))

    def _unavailable(self, job: Job, error: BaseException, raised: str, retry_for: int) -> PlannedSettlement:
        """It is tried again, later and later, for as long as `retry_for`; then it is buried."""
        lease = job.lease
        now = lease.granted_at + self._boot() - lease.held_since
        since = lease.record.unavailable_since
        past = 0 if since is None else max(0, now - since)
        if past >= retry_for and self._config.max_attempts is not None:
            over = f"; it was tried for {spoken(past)}, and retry_for is {spoken(retry_for)}"
            return self.buried(job, error_text(error) + over, raised + over)
        after = retry_delay_of(error)
        bound = min(max(past, self._config.backoff), self._config.backoff_limit)
        delay = _some_of(bound)
        if self._config.max_attempts is not None:  # the last try is not put off past the end
            delay = min(delay, max(retry_for - past, self._config.backoff))
        release = Release(*self._proof(job), error_text(error), delay=max(delay, after or 0), unavailable=True)
        on = f" (this uses up no attempt for up to {spoken(max(0, retry_for - past))} more)"
        outcome = Outcome(
            "failed", job.event, job.key, error=error_text(error) + on, raised=raised + on, retry_after=after
        )
        return PlannedSettlement(job, release, outcome)

    def released(
        self, job: Job, error: str, raised: str | None = None, retry_after: int | None = None
    ) -> PlannedSettlement:
        outcome = Outcome("failed", job.event, job.key, error=error, raised=raised, retry_after=retry_after)
        return PlannedSettlement(
            job, Release(*self._proof(job), error, delay=max(self._delay(job), retry_after or 0)), outcome
        )

    def buried(self, job: Job, error: str, raised: str | None = None) -> PlannedSettlement:
        payload = document(job.event)
        if payload is None:
            why = f"{NOT_KEPT}: {NO_DOCUMENT}"
            return self.released(job, f"{error}, {why}", raised and f"{raised}, {why}")
        bury = Bury(*self._proof(job), self._config.dead_letter_retention, payload, error)
        return PlannedSettlement(job, bury, Outcome("buried", job.event, job.key, error=error, raised=raised))

    def hopeless(self, job: Job, why: str) -> PlannedSettlement:
        """Buried without being run. Beyond the last attempt its record may have told why, which is not for logs."""
        ending, record, most = self.buried(job, why), job.lease.record, self._config.max_attempts
        if record.error is None or most is None or record.attempts <= most:
            return ending
        return replace(ending, outcome=replace(ending.outcome, original=record, at=job.lease.granted_at))

    def unstarted(self, job: Job, why: str = TOO_LATE) -> PlannedSettlement:
        """Its handler never started, so the attempt does not count."""
        outcome = Outcome("in_flight", job.event, job.key, error=why)
        return PlannedSettlement(job, Release(*self._proof(job), unstarted=True), outcome)

    def untried(self, job: Job, error: str) -> PlannedSettlement:
        """It failed before its handler could start, so the attempt does not count either."""
        outcome = Outcome("failed", job.event, job.key, error=error)
        return PlannedSettlement(job, Release(*self._proof(job), error, unstarted=True), outcome)

    def _delay(self, job: Job) -> int:
        """How long an event that the store holds is left alone."""
        return 0 if job.lease.record.payload is None else _some_of(self._config.pause_after(job.event.attempt))

    def _proof(self, job: Job) -> tuple[str, bytes, bytes, int]:
        lease = job.lease
        return self._config.namespace, lease.key, lease.record.owner, lease.record.fence

    def _stored(self, result: Any) -> tuple[bytes | None, str | None]:
        """The result as JSON. The effect is done, so a result that cannot be kept is no failure of the event."""
        try:
            stored = msgspec.json.encode(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return None, f"its result was not kept, because it is no JSON value ({error})"
        if not told_apart(result, stored):
            return None, "its result was not kept, because nan and infinity are no JSON values"
        if len(stored) > self._config.max_result:
            return None, (
                f"its result was not kept, because {len(stored)} bytes are more than"
                f" max_result={self._config.max_result}; return less, or keep it elsewhere and return where"
            )
        return stored, None


def _some_of(pause: int) -> int:
    """A pause, less by up to half, so that what failed together does not come back together."""
    return int(pause * random.uniform(0.5, 1.0))  # noqa: S311  # only a pause


# ── without a claim to settle ─────────────────────────────────────────────────────────────────────────────


class FailedAfterMark(Struct, frozen=True):
    """A job that was marked as done and was not, with the error and what a log may say of it."""

    job: Job
    error: str
    raised: str | None = None


def never_started(job: Job) -> FailedAfterMark:
    return FailedAfterMark(job, "it was marked as done but never started")


def failed_marked(job: Job, error: BaseException) -> FailedAfterMark:
    return FailedAfterMark(job, error_text(error), loggable_error(error))


def ran_marked(job: Job, result: Any) -> None:
    job.outcome = Outcome("processed", job.event, job.key, result=result)


def failed_unguarded(item: Job | UnguardedEvent, error: BaseException) -> None:
    """There is nothing to settle: the failure is only told."""
    text, raised, retry_after = error_text(error), loggable_error(error), retry_delay_of(error)
    item.outcome = Outcome("failed", item.event, item.key, error=text, raised=raised, retry_after=retry_after)


def ran_unguarded(item: Job | UnguardedEvent, result: Any) -> None:
    raised = item.refusal.raised if isinstance(item, UnguardedEvent) else None
    item.outcome = Outcome("unguarded", item.event, item.key, None, result, item.unguarded, raised=raised)
