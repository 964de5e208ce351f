"""This module stores copies of conflicting, refused and failed events as dead letters, before the delivery is
acknowledged.

A copy is claimed under a separate key and buried under that claim. A completed claim never becomes a dead letter.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest
from oncegate.carriers import delivery
from oncegate.claims import (
    COMPLETED,
    Buried,
    Bury,
    Claim,
    Conflict,
    Duplicate,
    Granted,
    InFlight,
    Record,
    Verdict,
)
from oncegate.errors import StoreError, Unkeepable
from oncegate.events import Event, Key
from oncegate.gate.completion_cache import CompletionCache
from oncegate.gate.handlers import LONGEST_ERROR
from oncegate.gate.job import NO_DOCUMENT, NOT_STORED, Job, UnguardedEvent, document, summary_of, with_random_key
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Cause, Outcome, differences
from oncegate.gate.settlement import Answer, FailedAfterMark, settle
from oncegate.instances import owners
from oncegate.sources import Hints, understood
from oncegate.stores.base import Store

# A payload of this size fits into every store. DynamoDB has the lowest limit: 400 kB for an item.
_CUT_TO: Final = 256 * 1024
_CUT_END: Final = b"\n(truncated)"  # not JSON, so that a truncated event can never be read as a complete event


class _Cause(Enum):
    """Why a copy is not stored, or not stored completely."""

    BEING_STORED = "another worker is storing the same copy at this moment"
    CLAIM_LOST = "the claim on the copy was lost"
    KEY_TAKEN = "the key of the copy belongs to another record"
    CUT = "only the first part of it could be stored"
    NO_DOCUMENT = NO_DOCUMENT
    STORE = "the store did not accept the copy"
    UNKEEPABLE = "the store cannot hold this copy"


class _Problem(Struct, frozen=True):
    """Why a copy is not stored, or not stored completely. `text` is the sentence for people."""

    cause: _Cause
    text: str


def _problem(cause: _Cause) -> _Problem:
    return _Problem(cause, cause.value)


_Result = _Problem | None  # None: the copy is a dead letter


def claim_requests(jobs: Sequence[Job], config: GateConfig, *, marks: bool = False) -> list[Claim]:
    """Returns one claim for each job. Each pair of a delivery and a key gets a random owner here, before the first byte
    is sent, so every retry of the request has the same owner."""
    namespace, lease, retention = config.namespace, config.lease, config.retention
    sliding_limit = config.sliding_limit if config.sliding else 0
    return [
        Claim(
            namespace,
            job.key.digest,
            owner,
            job.payload_hash,
            lease,
            retention,
            summary_of(job.event),
            job.key.binds,
            marks,
            sliding_limit,
        )
        for job, owner in zip(jobs, owners(len(jobs)), strict=True)
    ]


def conflict_key(job: Job) -> Key:
    """Returns the key under which a conflicting event is claimed or buried: H(key, content)."""
    return keys.make("conflict", job.event, [str(job.key), job.payload_hash.hex()])


class DeadLetters:
    def __init__(
        self, store: Store, config: GateConfig, cache: CompletionCache, observers: Observers, hints: Hints
    ) -> None:
        self._store = store
        self._config = config
        self._cache = cache
        self._observers = observers
        self._hints = hints

    def keep(self, refused: Sequence[Outcome]) -> list[Outcome]:
        """Store refused events as dead letters and return their new outcomes. The key of a dead letter is made of the
        event's bytes, so equal events share one dead letter."""
        copies = [_copy_of_refused(outcome.event) for outcome in refused]
        results = self._bury_copies(copies, [outcome.error or outcome.status for outcome in refused], cut=True)
        kept = [_refused_outcome(*each) for each in zip(refused, copies, results, strict=True)]
        self._observers.kept(kept)
        return kept

    def bury_unguarded(self, item: UnguardedEvent) -> Outcome:
        """Bury an event that ran without a key and failed. Its copy has a random key: two such events may be equal.
        Returns the new outcome."""
        failed, copy = item.outcome, with_random_key(item)
        (result,) = self._bury_copies([copy], [failed.error or failed.status])
        if result is None:
            return replace(failed, status="buried", kept=copy.key, retry_after=None, cause=None)
        cause = Cause.STORE_UNAVAILABLE if result.cause is _Cause.STORE else None
        return replace(failed, error=f"{failed.error}, {NOT_STORED}: {result.text}", cause=cause)

    def bury_emissions(
        self, copies: Sequence[Job], outcomes: Sequence[Outcome], errors: Sequence[str]
    ) -> list[Outcome]:
        """Bury further emissions of a state change whose first emission is a dead letter. Returns their outcomes."""
        results = self._bury_copies(copies, errors)
        return [
            replace(outcome, error=error, kept=copy.key)
            if result is None
            else _not_stored(outcome.event, outcome.key, error, result, outcome.raised or f"dead letter {outcome.key}")
            for copy, outcome, error, result in zip(copies, outcomes, errors, results, strict=True)
        ]

    def bury_failed(self, failed: Sequence[FailedAfterMark], *salt: str) -> None:
        """Bury events that were marked as done and then failed. A completed record stays completed, so each copy gets a
        separate key. That key may already be taken by the copy of an earlier failure, if that copy was redriven or has
        different content. In this case the copy gets a random key. The copy must be stored now: further deliveries of
        the event are duplicates."""
        copies = [Job(each.job.event, _failed_key(each.job, *salt), each.job.payload_hash) for each in failed]
        taken = []
        for each, copy, result in zip(
            failed, copies, self._bury_copies(copies, [each.error for each in failed]), strict=True
        ):
            job = each.job
            if result is None:
                outcome = Outcome("buried", job.event, job.key, error=each.error, kept=copy.key, raised=each.raised)
            elif result.cause in (_Cause.BEING_STORED, _Cause.KEY_TAKEN) and not salt:
                taken.append(each)
                continue
            else:
                outcome = _not_stored(job.event, job.key, each.error, result, each.raised)
            job.outcome = replace(outcome, stack=each.stack, took=job.took)
        if taken:
            (random,) = owners(1)
            self.bury_failed(taken, random.hex())

    def bury_conflicts(self, conflicts: Sequence[tuple[Job, Conflict]], granted_bodies: Mapping[bytes, Any]) -> None:
        """Bury copies of conflicting jobs and set the outcomes of the jobs. A conflict is acknowledged only after its
        copy is a dead letter. `granted_bodies` has, by key, the bodies of the events that were granted in the same
        batch."""
        copies = [Job(job.event, conflict_key(job), job.payload_hash) for job, _ in conflicts]
        errors = [f"its key {job.key} is known with different content" for job, _ in conflicts]
        results = self._bury_copies(copies, errors)
        for (job, verdict), copy, error, result in zip(conflicts, copies, errors, results, strict=True):
            if result is not None:
                job.outcome = _not_stored(job.event, job.key, error, result)
                continue
            original = granted_bodies.get(job.key.digest) or self._body_of(job, verdict.record)
            differs = () if original is None else differences(original, job.event.body)
            job.outcome = Outcome(
                "conflict",
                job.event,
                job.key,
                original=verdict.record,
                at=verdict.at,
                kept=copy.key,
                differs=differs,
            )

    def _body_of(self, job: Job, original: Record) -> Any:
        """Returns the body of the original event; None if neither the record nor the cache of this process has it."""
        payload = self._cache.document(job) if original.payload is None else original.payload
        return None if payload is None else understood(delivery(payload), self._hints).body

    def _bury_copies(self, copies: Sequence[Job], errors: Sequence[str], *, cut: bool = False) -> list[_Result]:
        """Bury the copies. Equal copies share a dead letter. If a copy is too large for the store and `cut` is True,
        only the first part of the copy is stored, and the result is CUT."""
        contents = [(copy.key.digest, copy.payload_hash) for copy in copies]
        firsts: dict[tuple[bytes, bytes], tuple[Job, bytes, str]] = {}
        for content, copy, error in zip(contents, copies, errors, strict=True):
            if (payload := document(copy.event)) is not None:
                firsts.setdefault(content, (copy, payload, error))
        results = self._bury_each(*zip(*firsts.values(), strict=True), cut=cut) if firsts else ()
        found = dict(zip(firsts, results, strict=True))
        return [found.get(content, _problem(_Cause.NO_DOCUMENT)) for content in contents]

    def _bury_each(
        self, copies: Sequence[Job], payloads: Sequence[bytes], errors: Sequence[str], *, cut: bool
    ) -> list[_Result]:
        try:
            verdicts = self._store.claim(requests := claim_requests(copies, self._config))
        except StoreError as error:
            return [_Problem(_Cause.STORE, str(error))] * len(copies)
        results: list[_Result] = [None] * len(copies)
        burials: dict[int, Bury] = {}
        for index, (request, verdict) in enumerate(zip(requests, verdicts, strict=True)):
            if isinstance(verdict, Granted):
                burials[index] = self._burial(request, verdict, payloads[index], errors[index])
            elif cut and _is_cut(verdict, payloads[index]):
                results[index] = _problem(_Cause.CUT)
            else:
                results[index] = _not_the_copy(copies[index], verdict)
        for index, result in zip(burials, self._settle_burials(list(burials.values()), cut=cut), strict=True):
            results[index] = result
        return results

    def _settle_burials(self, burials: Sequence[Bury], *, cut: bool) -> list[_Result]:
        results: list[_Result] = []
        for burial, answer in zip(burials, settle(self._store, burials) if burials else (), strict=True):
            if cut and isinstance(answer, Unkeepable):
                (cut_answer,) = settle(self._store, [_cut(burial)])
                results.append(_result_of(cut_answer) or _problem(_Cause.CUT))
            else:
                results.append(_result_of(answer))
        return results

    def _burial(self, request: Claim, granted: Granted, payload: bytes, error: str) -> Bury:
        return Bury(
            request.namespace,
            request.key,
            request.owner,
            granted.record.fence,
            self._config.dead_letter_retention,
            payload,
            error,
        )


def _result_of(answer: Answer) -> _Result:
    if answer is True:
        return None
    if answer is False:
        return _problem(_Cause.CLAIM_LOST)
    return _Problem(_Cause.UNKEEPABLE if isinstance(answer, Unkeepable) else _Cause.STORE, str(answer))


def _cut(whole: Bury) -> Bury:
    size = len(whole.payload)
    error = f"truncated: only {_CUT_TO} of its {size} bytes are stored, the store takes no more; {whole.error}"
    return replace(whole, payload=whole.payload[:_CUT_TO] + _CUT_END, error=error[:LONGEST_ERROR])


def _is_cut(verdict: Verdict, payload: bytes) -> bool:
    """Whether an earlier, truncated copy of the same event is stored. The key is made of all bytes of the event, so the
    same key means the same event."""
    return isinstance(verdict, Buried) and verdict.record.payload not in (None, payload)


def _not_the_copy(copy: Job, verdict: Duplicate | InFlight | Conflict | Buried) -> _Result:
    """Returns why the record under the copy's key is not a stored copy. Returns None if the record is the stored copy.
    A record that was the stored copy until it was redriven and run also gives None, except for a failed event: a failed
    event needs a dead letter now."""
    match verdict:
        case InFlight():
            return _problem(_Cause.BEING_STORED)
        case Conflict():
            return _problem(_Cause.KEY_TAKEN)
        case Duplicate() if verdict.record.state == COMPLETED and copy.key.strategy == "failed":
            return _problem(_Cause.KEY_TAKEN)
        case _:
            return None


def _refused_outcome(refused: Outcome, copy: Job, result: _Result) -> Outcome:
    if result is None or result.cause is _Cause.CUT:
        return replace(refused, kept=copy.key, cut=result is not None)
    return _not_stored(refused.event, None, refused.error, result, refused.raised)


def _not_stored(
    event: Event, key: Key | None, error: str | None, problem: _Problem, raised: str | None = None
) -> Outcome:
    """Returns the outcome of an event whose copy is not stored: "in_flight" if another worker is storing the copy and
    no handler has run, otherwise "failed"."""
    suffix = f"{NOT_STORED}: {problem.text}"
    error = f"{error}, {suffix}"
    raised = None if raised is None else f"{raised}, {suffix}"
    if problem.cause in (_Cause.BEING_STORED, _Cause.CLAIM_LOST) and not event.attempt:
        return Outcome("in_flight", event, key, "concurrent", error=error, raised=raised)
    cause = Cause.STORE_UNAVAILABLE if problem.cause is _Cause.STORE and not event.attempt else None
    return Outcome("failed", event, key, error=error, raised=raised, cause=cause)


def _copy_of_refused(event: Event) -> Job:
    content = digest(document(event) or b"")
    return Job(event, keys.make("kept", event, [content.hex()], binds=False), content)


def _failed_key(job: Job, *salt: str) -> Key:
    return keys.make("failed", job.event, [str(job.key), *salt])
