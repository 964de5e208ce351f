"""Endings: what a handler's answer or failure means for its claim and its outcome."""

import random
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate.canonical import told_apart
from oncegate.claims import Bury, Complete, Release
from oncegate.errors import Bury as Never
from oncegate.gate.handlers import not_before, said, told
from oncegate.gate.jobs import NO_DOCUMENT, NOT_KEPT, TOO_LATE, Bare, Job, document
from oncegate.gate.outcome import Outcome
from oncegate.gate.settling import Ending
from oncegate.gate.terms import Terms

_MOST_DOUBLINGS: Final = 40


class Endings:
    def __init__(self, terms: Terms) -> None:
        self._terms = terms

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
        """A failed attempt: the last one buries, and so does one whose handler says that none can work."""
        most = self._terms.max_attempts
        raised = told(error)
        if isinstance(error, Never) or (most is not None and job.event.attempt >= most):
            return self.buried(job, said(error), raised)
        return self.released(job, said(error), raised, not_before(error))

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
        """How long an event that the store holds is left alone: twice as long after each attempt. By chance up to half
        of that is left out, so that what failed together does not come back together."""
        if job.lease.record.payload is None:
            return 0
        doubled = self._terms.backoff << min(job.event.attempt - 1, _MOST_DOUBLINGS)
        return int(min(doubled, self._terms.backoff_limit) * random.uniform(0.5, 1.0))  # noqa: S311  # only a pause

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
