"""Claiming: from jobs to leases or outcomes, and copies kept of what is refused."""

import os
from collections.abc import Sequence
from typing import assert_never

import msgspec
from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest
from oncegate.carriers import delivery
from oncegate.claims import (
    Buried,
    Bury,
    Claim,
    Conflict,
    Duplicate,
    Granted,
    InFlight,
    Record,
    Renew,
)
from oncegate.clocks import Clock
from oncegate.errors import StoreError
from oncegate.events import Event, Key
from oncegate.gate.jobs import Job, about, kind_of
from oncegate.gate.leases import Lease
from oncegate.gate.outcome import Outcome
from oncegate.gate.settling import Settled, settle
from oncegate.gate.terms import Terms
from oncegate.sources import understood
from oncegate.stores.base import Store, Want

_OWNER_SIZE = 16


class Claimer:
    def __init__(self, store: Store, terms: Terms, boot: Clock) -> None:
        self._store = store
        self._terms = terms
        self._boot = boot

    def claim(self, jobs: Sequence[Job]) -> None:
        """Claim all with one write. Each job gets a lease or an outcome."""
        if not jobs:
            return
        sent_at = self._boot()
        try:
            verdicts = self._store.claim(self._requests(jobs, marks=self._terms.marks_first))
        except StoreError as error:
            for job in jobs:
                job.outcome = Outcome("failed", job.event, job.key, error=str(error))
            return
        conflicts = []
        for job, verdict in zip(jobs, verdicts, strict=True):
            if isinstance(verdict, Granted):
                self._hold(job, verdict.record, sent_at, verdict.lease_left)
            elif isinstance(verdict, Conflict):
                conflicts.append((job, verdict))
            else:
                job.outcome = _outcome(job, verdict)
        self._answer_conflicts(conflicts)

    def take(self) -> Job | None:
        """Claim one event that the store holds with its payload, if there is one."""
        sent_at = self._boot()
        (entry,) = self._store.take([Want(self._terms.namespace, os.urandom(_OWNER_SIZE), self._terms.lease)])
        if entry is None:
            return None
        event = understood(delivery(entry.record.payload))
        job = Job(event, Key(entry.key, "kept", ()), entry.record.payload_hash)
        self._hold(job, entry.record, sent_at, self._terms.lease)
        return job

    def keep(self, refused: Sequence[Outcome]) -> list[Outcome]:
        """Make dead letters of refused events, each under a key made of its bytes; equal ones share theirs."""
        known = [_kept_key(outcome.event) for outcome in refused]
        firsts = dict(zip(reversed(known), reversed(refused), strict=True))
        copies = [Job(outcome.event, key, digest(outcome.event.raw)) for key, outcome in firsts.items()]
        errors = [outcome.error or outcome.status for outcome in firsts.values()]
        problems = dict(zip(firsts, self._bury_copies(copies, errors), strict=True))
        return [_kept(outcome, key, problems[key]) for outcome, key in zip(refused, known, strict=True)]

    def _requests(self, jobs: Sequence[Job], *, marks: bool = False) -> list[Claim]:
        """The owner is drawn here, before the first byte is sent: one for each delivery and key."""
        terms = self._terms
        entropy = os.urandom(_OWNER_SIZE * len(jobs))
        return [
            Claim(
                terms.namespace,
                job.key.digest,
                entropy[index * _OWNER_SIZE : (index + 1) * _OWNER_SIZE],
                job.payload_hash,
                terms.lease,
                terms.retention,
                about(job.event),
                job.key.binds,
                marks,
            )
            for index, job in enumerate(jobs)
        ]

    def _hold(self, job: Job, record: Record, sent_at: int, left: int) -> None:
        proof = Renew(self._terms.namespace, job.key.digest, record.owner, record.fence, self._terms.lease)
        job.lease = Lease(proof, sent_at, left)
        job.event = replace(job.event, key=job.key, attempt=record.attempts, fence=record.fence)

    def mark(self, job: Job) -> bool:
        """Mark one event as done, without running anything; False if it was known. Raises StoreError."""
        (verdict,) = self._store.claim(self._requests([job], marks=True))
        if isinstance(verdict, Conflict):
            other = Job(job.event, _copy_key(job), job.payload_hash)
            (verdict,) = self._store.claim(self._requests([other], marks=True))
        return isinstance(verdict, Granted)

    def bury_failed(self, jobs: Sequence[Job], errors: Sequence[str]) -> None:
        """Keep what was marked as done and was not: as dead letters of their own, since done is never undone."""
        copies = [Job(job.event, _failed_key(job), job.payload_hash) for job in jobs]
        problems = self._bury_copies(copies, errors)
        for job, copy, error, problem in zip(jobs, copies, errors, problems, strict=True):
            if problem is None:
                job.outcome = Outcome("buried", job.event, job.key, error=error, kept=copy.key)
            else:
                job.outcome = _unkept(job.event, job.key, error, problem)

    def _answer_conflicts(self, conflicts: Sequence[tuple[Job, Conflict]]) -> None:
        """A conflict is acknowledged only once a copy of it is a dead letter, under the key H(key, content)."""
        copies = [Job(job.event, _copy_key(job), job.payload_hash) for job, _ in conflicts]
        errors = [f"its key {job.key} is known with other content" for job, _ in conflicts]
        problems = self._bury_copies(copies, errors)
        for (job, verdict), copy, error, problem in zip(conflicts, copies, errors, problems, strict=True):
            if problem is None:
                job.outcome = Outcome(
                    "conflict", job.event, job.key, original=verdict.record, at=verdict.at, kept=copy.key
                )
            else:
                job.outcome = _unkept(job.event, job.key, error, problem)

    def _bury_copies(self, copies: Sequence[Job], errors: Sequence[str]) -> list[str | None]:
        if not copies:
            return []
        try:
            verdicts = self._store.claim(requests := self._requests(copies))
        except StoreError as error:
            return [str(error)] * len(copies)
        problems: list[str | None] = [None] * len(copies)
        waiting = []
        for index, (request, verdict) in enumerate(zip(requests, verdicts, strict=True)):
            if isinstance(verdict, Granted):
                bury = self._burial(request, verdict, copies[index].event, errors[index])
                waiting.append((bury, _noting(problems, index)))
            elif isinstance(verdict, InFlight):
                problems[index] = "another worker is keeping the same copy just now"
        if waiting:
            settle(self._store, waiting)
        return problems

    def _burial(self, request: Claim, granted: Granted, event: Event, error: str) -> Bury:
        return Bury(
            request.namespace,
            request.key,
            request.owner,
            granted.record.fence,
            self._terms.dead_letter_retention,
            event.raw,
            error,
        )


def _outcome(job: Job, verdict: Duplicate | InFlight | Buried) -> Outcome:
    record, at = verdict.record, verdict.at
    match verdict:
        case Duplicate():
            result = None if record.result is None else msgspec.json.decode(record.result)
            kind = kind_of(job.event, record)
            return Outcome("duplicate", job.event, job.key, kind, result, record.error, record, at)
        case InFlight():
            return Outcome("in_flight", job.event, job.key, "concurrent", original=record, at=at)
        case Buried():
            kind = kind_of(job.event, record)
            return Outcome("buried", job.event, job.key, kind, None, record.error, record, at)
        case _:
            assert_never(verdict)


def _kept(refused: Outcome, key: Key, problem: str | None) -> Outcome:
    if problem is None:
        return replace(refused, kept=key)
    return _unkept(refused.event, None, refused.error, problem)


def _unkept(event: Event, key: Key | None, error: str | None, problem: str) -> Outcome:
    return Outcome("failed", event, key, error=f"{error}, and no copy could be kept: {problem}")


def _kept_key(event: Event) -> Key:
    return keys.make("kept", event, [digest(event.raw).hex()], binds=False)


def _failed_key(job: Job) -> Key:
    return keys.make("failed", job.event, [str(job.key)], binds=False)


def _copy_key(job: Job) -> Key:
    return keys.make("conflict", job.event, [str(job.key), job.payload_hash.hex()])


def _noting(problems: list[str | None], index: int) -> Settled:
    def note(answer: bool | StoreError) -> None:
        if answer is not True:
            problems[index] = str(answer) if answer else "the claim on the copy was lost"

    return note
