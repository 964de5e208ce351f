"""Endings: what a handler's answer or failure means for its claim and its outcome."""

import random
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate.canonical import told_apart
from oncegate.claims import Bury, Complete, Release
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import Bury as Never
from oncegate.gate.handlers import is_unavailable, not_before, said, told
from oncegate.gate.jobs import NO_DOCUMENT, NOT_KEPT, TOO_LATE, Bare, Job, document
from oncegate.gate.outcome import Outcome
from oncegate.gate.settling import Ending
from oncegate.gate.terms import Terms


class Endings:
    def __init__(self, terms: Terms, boot: Clock) -> None:
        self._terms = terms
        self._boot = boot

    def processed(self, job: Job, result: Any) -> Ending:
        terms, lease = self._terms, job.lease
        record = lease.record
        if result is None:
            complete = Complete(
                terms.namespace, lease.key, record.owner, record.fence, terms.retention, b"null", None, job.hands_to
            )
            return Ending(job, complete, Outcome("processed", job.event, job.key))
        stored, problem = self._stored(result)
        complete = Complete(
            terms.namespace, lease.key, record.owner, record.fence, terms.retention, stored, problem, job.hands_to
        )
        return Ending(job, complete, Outcome("processed", job.event, job.key, None, result, problem))

    def failed(self, job: Job, error: BaseException) -> Ending:
        """A failed attempt: the last one buries, and so does one whose handler says that none can work. Of what the
        store holds, one that blames something unavailable does not count."""
        most = self._terms.max_attempts
        raised = told(error)
        if self._terms.retry_for is not None and job.lease.record.payload is not None and is_unavailable(error):
            return self._unavailable(job, error, raised, self._terms.retry_for)
        if isinstance(error, Never) or (most is not None and job.event.attempt >= most):
            return self.buried(job, said(error), raised)
        return self.released(job, said(error), raised, not_before(error))

    def _unavailable(self, job: Job, error: BaseException, raised: str, retry_for: int) -> Ending:
        """It is tried again, later and later, for as long as `retry_for`; then it is buried."""
        lease = job.lease
        now = lease.granted_at + self._boot() - lease.held_since
        since = lease.record.unavailable_since
        past = 0 if since is None else max(0, now - since)
        if past >= retry_for and self._terms.max_attempts is not None:
            over = f"; it was tried for {spoken(past)}, and retry_for is {spoken(retry_for)}"
            return self.buried(job, said(error) + over, raised + over)
        after = not_before(error)
        bound = min(max(past, self._terms.backoff), self._terms.backoff_limit)
        delay = _some_of(bound)
        if self._terms.max_attempts is not None:  # the last try is not put off past the end
            delay = min(delay, max(retry_for - past, self._terms.backoff))
        release = Release(*self._proof(job), said(error), delay=max(delay, after or 0), unavailable=True)
        on = f" (this uses up no attempt for up to {spoken(max(0, retry_for - past))} more)"
        outcome = Outcome("failed", job.event, job.key, error=said(error) + on, raised=raised + on, retry_after=after)
        return Ending(job, release, outcome)

    def released(self, job: Job, error: str, raised: str | None = None, retry_after: int | None = None) -> Ending:
        outcome = Outcome("failed", job.event, job.key, error=error, raised=raised, retry_after=retry_after)
        return Ending(job, Release(*self._proof(job), error, delay=max(self._delay(job), retry_after or 0)), outcome)

    def buried(self, job: Job, error: str, raised: str | None = None) -> Ending:
        payload = document(job.event)
        if payload is None:
            why = f"{NOT_KEPT}: {NO_DOCUMENT}"
            return self.released(job, f"{error}, {why}", raised and f"{raised}, {why}")
        bury = Bury(*self._proof(job), self._terms.dead_letter_retention, payload, error)
        return Ending(job, bury, Outcome("buried", job.event, job.key, error=error, raised=raised))

    def hopeless(self, job: Job, why: str) -> Ending:
        """Buried without being run. Beyond the last attempt its record may have told why, which is not for logs."""
        ending, record, most = self.buried(job, why), job.lease.record, self._terms.max_attempts
        if record.error is None or most is None or record.attempts <= most:
            return ending
        return replace(ending, outcome=replace(ending.outcome, original=record, at=job.lease.granted_at))

    def unstarted(self, job: Job, why: str = TOO_LATE) -> Ending:
        """Its handler never started, so the attempt does not count."""
        outcome = Outcome("in_flight", job.event, job.key, error=why)
        return Ending(job, Release(*self._proof(job), unstarted=True), outcome)

    def untried(self, job: Job, error: str) -> Ending:
        """It failed before its handler could start, so the attempt does not count either."""
        outcome = Outcome("failed", job.event, job.key, error=error)
        return Ending(job, Release(*self._proof(job), error, unstarted=True), outcome)

    def _delay(self, job: Job) -> int:
        """How long an event that the store holds is left alone."""
        return 0 if job.lease.record.payload is None else _some_of(self._terms.pause_after(job.event.attempt))

    def _proof(self, job: Job) -> tuple[str, bytes, bytes, int]:
        lease = job.lease
        return self._terms.namespace, lease.key, lease.record.owner, lease.record.fence

    def _stored(self, result: Any) -> tuple[bytes | None, str | None]:
        """The result as JSON. The effect is done, so a result that cannot be kept is no failure of the event."""
        try:
            stored = msgspec.json.encode(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return None, f"its result was not kept, because it is no JSON value ({error})"
        if not told_apart(result, stored):
            return None, "its result was not kept, because nan and infinity are no JSON values"
        if len(stored) > self._terms.max_result:
            return None, (
                f"its result was not kept, because {len(stored)} bytes are more than"
                f" max_result={self._terms.max_result}; return less, or keep it elsewhere and return where"
            )
        return stored, None


def _some_of(pause: int) -> int:
    """A pause, less by up to half, so that what failed together does not come back together."""
    return int(pause * random.uniform(0.5, 1.0))  # noqa: S311  # only a pause


# ── without a claim to settle ─────────────────────────────────────────────────────────────────────────────


class Failed(Struct, frozen=True):
    """A job that was marked as done and was not, with the error and what a log may say of it."""

    job: Job
    error: str
    raised: str | None = None


def never_started(job: Job) -> Failed:
    return Failed(job, "it was marked as done but never started")


def failed_marked(job: Job, error: BaseException) -> Failed:
    return Failed(job, said(error), told(error))


def ran_marked(job: Job, result: Any) -> None:
    job.outcome = Outcome("processed", job.event, job.key, result=result)


def failed_unguarded(item: Job | Bare, error: BaseException) -> None:
    """There is nothing to settle: the failure is only told."""
    text, raised, retry_after = said(error), told(error), not_before(error)
    item.outcome = Outcome("failed", item.event, item.key, error=text, raised=raised, retry_after=retry_after)


def ran_unguarded(item: Job | Bare, result: Any) -> None:
    raised = item.refusal.raised if isinstance(item, Bare) else None
    item.outcome = Outcome("unguarded", item.event, item.key, None, result, item.unguarded, raised=raised)
