"""Asking: requests to a store with what is to follow them, each kind by its verb or several kinds with one write."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Any, Final, assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest
from oncegate.carriers import delivery
from oncegate.claims import (
    COMPLETED,
    RELEASED,
    Admit,
    Buried,
    Bury,
    Claim,
    Conflict,
    Duplicate,
    Granted,
    InFlight,
    Operation,
    Record,
    Verdict,
    step,
)
from oncegate.clocks import Clock, wall
from oncegate.durations import times
from oncegate.errors import SettingError, StoreError, StoreReadOnly, StoreUnavailable, Unkeepable
from oncegate.events import Event, Key
from oncegate.gate.completion_cache import CompletionCache
from oncegate.gate.handlers import LONGEST_ERROR
from oncegate.gate.job import (
    HANDED_ON,
    NO_DOCUMENT,
    NOT_KEPT,
    STILL_RUNS,
    Job,
    document,
    is_call_reason,
    is_handed_on,
    kind_of,
    stage,
    summary_of,
)
from oncegate.gate.leases import Heartbeat, Lease
from oncegate.gate.observers import Observers
from oncegate.gate.options import MARKED_AND_PUBLISHED, GateConfig
from oncegate.gate.outcome import Outcome, differences
from oncegate.gate.settlement import Answer, FailedAfterMark, settle
from oncegate.instances import owners
from oncegate.sources import Hints, understood
from oncegate.stores.base import BatchesMixedOperations, Entry, Store, TakeRequest


class StoreCall(Struct, frozen=True):
    """Requests of one kind, and what they are for. `answered` gets that, the answers and when they were asked for;
    `failed` gets it and why there are none. Where the store takes no writes, `known` gets the requests and what they
    are for, and gives back what it could not answer by reading."""

    verb: Callable[[Sequence[Any]], Sequence[Any]]
    requests: Sequence[Operation]
    items: Sequence[Any]
    answered: Callable[[Sequence[Any], Sequence[Any], int], None]
    failed: Callable[[Sequence[Any], str], None]
    known: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] | None = None

    def ask(self, boot: Clock) -> None:
        sent_at = boot()
        try:
            answers = self.verb(self.requests)
        except StoreReadOnly as error:
            if left := self.items if self.known is None else self.known(self.requests, self.items):
                self.failed(left, str(error))
        except StoreError as error:
            self.failed(self.items, str(error))
        else:
            self.answered(self.items, answers, sent_at)


def execute(askings: Sequence[StoreCall], store: BatchesMixedOperations | None, boot: Clock) -> None:
    """All of them, in order: with one write if there is a store that can do that. If that fails, for whatever reason,
    each is asked for by itself: what is to follow differs, and what is wrong with one must not stop another."""
    if len(askings) > 1 and store is not None and _asked_together(askings, store, boot):
        return
    with ExitStack() as each_of_them:
        for asking in reversed(askings):
            each_of_them.callback(asking.ask, boot)


def _asked_together(askings: Sequence[StoreCall], store: BatchesMixedOperations, boot: Clock) -> bool:
    sent_at = boot()
    try:
        answers = iter(store.together([request for asking in askings for request in asking.requests]))
    except Exception:  # noqa: BLE001  # it is raised again by the one that it is about
        return False
    for asking in askings:
        asking.answered(asking.items, list(islice(answers, len(asking.requests))), sent_at)
    return True


# Claiming: from jobs to leases or outcomes, and copies kept of what is refused.


_UNREAD_FOR: Final = 1_000_000
_BEING_KEPT: Final = "another worker is keeping the same copy just now"
_CLAIM_LOST: Final = "the claim on the copy was lost"
_TAKEN: Final = "something else has the key of the copy"
_CUT: Final = "only the first part of it could be kept"
# What every store can keep; DynamoDB, which keeps least, has items of 400 kB.
_CUT_TO: Final = 256 * 1024
_CUT_END: Final = b"\n(truncated)"  # which is no JSON: what was cut must never read as a whole event


class Claimer:
    def __init__(
        self,
        store: Store,
        config: GateConfig,
        boot: Clock,
        memory: CompletionCache,
        observers: Observers,
        hints: Hints,
        heartbeat: Heartbeat,
    ) -> None:
        self._store = store
        self._config = config
        self._boot = boot
        self._memory = memory
        self._observers = observers
        self._hints = hints
        self._unread_until = 0
        self._heartbeat = heartbeat

    def claim(self, jobs: Sequence[Job]) -> None:
        """Claim all with one write. Each job gets a lease, a reason to run without one, or an outcome."""
        if asking := self.asking(jobs):
            asking.ask(self._boot)

    def asking(self, jobs: Sequence[Job]) -> StoreCall | None:
        """The same, to be asked for; None if all are known here."""
        if self._config.marks_first and any(job.hands_to is not None for job in jobs):
            raise SettingError(MARKED_AND_PUBLISHED)
        for job in jobs:
            if job.carried is not None:
                jobs = self._found_by_carried(jobs)
                break
        unknown = jobs if self._memory.knows_none(jobs) else [job for job in jobs if not self.recall(job)]
        if not unknown:
            return None
        requests = self._requests(unknown, marks=self._config.marks_first)
        return StoreCall(self._store.claim, requests, unknown, self._judge, self.unanswered, self.known)

    def _found_by_carried(self, jobs: Sequence[Job]) -> list[Job]:
        """Where an event was published under another key than the one it has here, because what it was made of was
        lost on the way, that key is its own if this namespace knows it. Those that can be asked for are given back."""
        asked = []
        for job in jobs:
            carried, job.carried = job.carried, None
            try:
                if carried is not None and self._store.browse(self._config.namespace, key=carried):
                    job.key = Key(carried, HANDED_ON, (carried.hex(),), job.key.binds)
                asked.append(job)
            except StoreError as error:
                self.unanswered([job], str(error))
        return asked

    def recall(self, job: Job) -> bool:
        """Answer from the memory of completions, if it can."""
        outcome = self._memory.answer(job)
        if outcome is None:
            return False
        job.outcome = outcome
        self._observers.notify("memory.hit", job.event, job.key)
        return True

    def _tell_of_loosened(self, job: Job, original: Record) -> None:
        """Other content under a known key that the policy takes for a copy."""
        if job.content_unbound and original.payload_hash != job.payload_hash:
            self._observers.notify("policy.conflict", job.event, job.key, detail="duplicate")

    def unanswered(self, jobs: Sequence[Job], error: str) -> None:
        """The store did not say what it was asked for these: each runs without a claim, if its policy lets it, or has
        failed."""
        for job in jobs:
            unguarded = self._config.unguarded(job.event) and job.bury_reason is None
            self._observers.notify(
                "policy.store_error", job.event, job.key, detail="unguarded" if unguarded else "refuse"
            )
            if unguarded:
                job.unguarded = error
            else:
                job.outcome = Outcome("failed", job.event, job.key, error=error)

    def known(self, requests: Sequence[Claim | Admit], jobs: Sequence[Job]) -> list[Job]:
        """Answer what can be known by reading from a store that takes no writes: what is done already, or buried. The
        others are given back. A store that cannot be read either is not asked again for a moment."""
        unknown = []
        for request, job in zip(requests, jobs, strict=True):
            verdict = self._found_by_reading(request)
            if verdict is None or is_handed_on(job, verdict.record.handed_to):
                unknown.append(job)
            else:
                job.outcome = _outcome(job, verdict)
                self._tell_of_loosened(job, verdict.record)
        return unknown

    def _found_by_reading(self, request: Claim | Admit) -> Duplicate | Buried | None:
        if self._boot() < self._unread_until:
            return None
        try:
            entries = self._store.browse(request.namespace, key=request.key, limit=1)
        except StoreError:
            self._unread_until = self._boot() + _UNREAD_FOR
            return None
        for entry in entries:
            # It has not expired, or it were not shown; the store's time is not told, but is no earlier than this.
            since = entry.record.completed_at or entry.record.first_seen
            verdict = step(entry.record, request, since)[1]
            if isinstance(verdict, Duplicate | Buried):
                return replace(verdict, at=max(since, wall()))
        return None

    def _judge(self, jobs: Sequence[Job], verdicts: Sequence[Verdict], sent_at: int) -> None:
        conflicts, handed_on, granted = [], [], len(jobs)
        for job, verdict in zip(jobs, verdicts, strict=True):
            if isinstance(verdict, Granted):
                granted -= not self.hold(job, verdict.record, verdict.at, sent_at)
                continue
            granted -= 1
            if isinstance(verdict, Conflict):
                conflicts.append((job, verdict))
            elif self.is_next_stage(job, verdict):
                handed_on.append(job)
            else:
                self.found(job, verdict, sent_at)
                if self._config.sliding and isinstance(verdict, Duplicate):
                    self._observers.notify("policy.sliding", job.event, job.key, detail="slid")
        self._observers.granted(granted, (job.event for job in jobs if job.held))
        if conflicts:
            beside = {job.key.digest: job.event.body for job in jobs if job.held}
            handed_on += self.answer_conflicts(conflicts, beside)
        if handed_on:
            self.claim(handed_on)

    def is_next_stage(self, job: Job, verdict: Duplicate | InFlight | Buried) -> bool:
        """Whether what the store knows was handed on to a place that this event comes from. Its key is then that of the
        next stage, and it is to be asked for under that."""
        place = verdict.record.handed_to
        if place is None or not is_handed_on(job, place):
            return False
        job.key = stage(job.key, place)
        return True

    def found(self, job: Job, verdict: Duplicate | InFlight | Buried, sent_at: int) -> None:
        """The store knows it already: that is its outcome, and is remembered."""
        job.outcome = _outcome(job, verdict)
        self._tell_of_loosened(job, verdict.record)
        self._memory.found(Lease(self._config.namespace, job.key.digest, verdict.record, verdict.at, sent_at, 0))

    def take(self, most: int = 1, *, in_order: bool = False) -> list[Job]:
        """Claim events that the store holds with their payload, as many as there are."""
        config, sent_at = self._config, self._boot()
        wants = [TakeRequest(config.namespace, owner, config.lease, in_order) for owner in owners(most)]
        taken = [self._taken(entry, sent_at) for entry in self._store.take(wants) if entry is not None]
        jobs = [job for job in taken if job.held]
        self._observers.granted(len(jobs), (job.event for job in jobs))
        return jobs

    def _taken(self, entry: Entry, sent_at: int) -> Job:
        event = understood(delivery(entry.record.payload), self._hints)
        hopeless = is_call_reason(entry.record.about) or event.problem
        job = Job(event, Key(entry.key, "kept", ()), entry.record.payload_hash, hopeless)
        self.hold(job, entry.record, entry.record.lease_until - self._config.lease, sent_at)
        return job

    def keep(self, refused: Sequence[Outcome]) -> list[Outcome]:
        """Make dead letters of refused events, each under a key made of its bytes; equal ones share theirs."""
        copies = [_kept_copy(outcome.event) for outcome in refused]
        problems = self._bury_copies(copies, [outcome.error or outcome.status for outcome in refused], cut=True)
        kept = [_kept(*each) for each in zip(refused, copies, problems, strict=True)]
        for outcome in kept:
            if outcome.kept is not None:
                self._observers.notify("event.kept", outcome.event, outcome.kept, outcome)
        return kept

    def _requests(self, jobs: Sequence[Job], *, marks: bool = False) -> list[Claim]:
        """The owner is drawn here, before the first byte is sent: one for each delivery and key."""
        config = self._config
        namespace, lease, retention = config.namespace, config.lease, config.retention
        slides = config.sliding_limit if config.sliding else 0
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
                slides,
            )
            for job, owner in zip(jobs, owners(len(jobs)), strict=True)
        ]

    def hold(self, job: Job, record: Record, at: int, sent_at: int) -> bool:
        """It was granted at the store's time `at`, to a request that was sent at `sent_at` on the boot clock. Whether
        it may run: an event whose handler still runs here is not run again, and the grant is that handler's."""
        config, key, attempt = self._config, job.key, record.attempts
        job.lease = Lease(config.namespace, key.digest, record, at, sent_at, sent_at + record.lease_until - at)
        if self._heartbeat.adopt(job.lease):
            self._observers.notify("lease.adopted", job.event, key)
            job.outcome = Outcome("in_flight", job.event, key, "concurrent", error=STILL_RUNS)
            return False
        job.held = True
        job.event = replace(job.event, key=key, attempt=attempt, fence=record.fence)
        if attempt > 1 and config.max_attempts is not None and attempt > config.max_attempts:
            job.bury_reason = _no_attempt_left(record)
        if record.completed_at is not None and record.expires_at is not None:
            job.lease.valid_until = sent_at + record.expires_at - at  # what is marked is granted to nobody else before
            self._memory.found(job.lease)
        return True

    def mark(self, job: Job) -> bool:
        """Mark one event as done, without running anything; False if it was known. Raises StoreError."""
        if self.recall(job):
            return False
        requests = self._requests([job], marks=True)
        try:
            (verdict,) = self._store.claim(requests)
        except StoreReadOnly:
            if self.known(requests, [job]):
                raise
            return False
        if isinstance(verdict, Conflict):
            if self.answer_conflicts([(job, verdict)], {}):
                return self.mark(job)
            if job.outcome.status != "conflict":
                raise StoreUnavailable(job.outcome.reason)
            return False
        if not isinstance(verdict, Granted):
            if self.is_next_stage(job, verdict):
                return self.mark(job)
            self._tell_of_loosened(job, verdict.record)
            return False
        if job.bury_reason is not None:
            self.bury_failed([FailedAfterMark(job, job.bury_reason)])
            return False
        return True

    def mark_emissions(self, own: Sequence[Job]) -> None:
        """Record as done the keys that emissions had by themselves, so that late copies are known by them alone. What
        cannot be recorded now is still known by its timeline."""
        with suppress(StoreError):
            self._store.claim(self._requests(own, marks=True))

    def bury_emissions(self, own: Sequence[Job], outcomes: Sequence[Outcome], errors: Sequence[str]) -> list[Outcome]:
        """Keep emissions as dead letters of their own; their outcomes then."""
        problems = self._bury_copies(own, errors)
        return [
            replace(outcome, error=error, kept=copy.key)
            if problem is None
            else _unkept(outcome.event, outcome.key, error, problem, outcome.raised or f"see dead letter {outcome.key}")
            for copy, outcome, error, problem in zip(own, outcomes, errors, problems, strict=True)
        ]

    def bury_failed(self, failed: Sequence[FailedAfterMark], *apart: str) -> None:
        """Keep what was marked as done and was not: as dead letters of their own, since done is never undone. Where the
        key of one is that of an earlier failure, redriven or of other content, it is kept under one that nothing has:
        it is not delivered again, or as a duplicate only."""
        copies = [Job(each.job.event, _failed_key(each.job, *apart), each.job.payload_hash) for each in failed]
        problems = self._bury_copies(copies, [each.error for each in failed])
        taken = []
        for each, copy, problem in zip(failed, copies, problems, strict=True):
            job = each.job
            if problem is None:
                job.outcome = Outcome("buried", job.event, job.key, error=each.error, kept=copy.key, raised=each.raised)
            elif problem in (_BEING_KEPT, _TAKEN) and not apart:
                taken.append(each)
            else:
                job.outcome = _unkept(job.event, job.key, each.error, problem, each.raised)
        if taken:
            (random,) = owners(1)
            self.bury_failed(taken, random.hex())

    def answer_conflicts(self, conflicts: Sequence[tuple[Job, Conflict]], beside: Mapping[bytes, Any]) -> list[Job]:
        """A conflict is judged again under the key H(key, content), by the policy: those that are to be asked for once
        more, under that key, are given back. `beside` are the bodies that were granted at the same time, by key."""
        policy = self._config.on_conflict
        for job, _ in conflicts:
            self._observers.notify("policy.conflict", job.event, job.key, detail=policy)
        if policy == "bury":
            self._bury_conflicts(conflicts, beside)
            return []
        for job, _ in conflicts:
            job.key = _copy_key(job)
        return [job for job, _ in conflicts]

    def _bury_conflicts(self, conflicts: Sequence[tuple[Job, Conflict]], beside: Mapping[bytes, Any]) -> None:
        """A conflict is acknowledged only once a copy of it is a dead letter."""
        copies = [Job(job.event, _copy_key(job), job.payload_hash) for job, _ in conflicts]
        errors = [f"its key {job.key} is known with other content" for job, _ in conflicts]
        problems = self._bury_copies(copies, errors)
        for (job, verdict), copy, error, problem in zip(conflicts, copies, errors, problems, strict=True):
            if problem is None:
                original = beside.get(job.key.digest) or self._body(job, verdict.record)
                differs = () if original is None else differences(original, job.event.body)
                job.outcome = _conflict(job, verdict, copy.key, differs)
            else:
                job.outcome = _unkept(job.event, job.key, error, problem)

    def _body(self, job: Job, original: Record) -> Any:
        """What the original said, if the record has it or this process still knows; else None."""
        document = self._memory.document(job) if original.payload is None else original.payload
        return None if document is None else understood(delivery(document), self._hints).body

    def _bury_copies(self, copies: Sequence[Job], errors: Sequence[str], *, cut: bool = False) -> list[str | None]:
        """Make dead letters of them; for each None, or why it could not be kept. Equal ones share theirs. With `cut`,
        the first part is kept of what is too large for the store, and `_CUT` is the answer."""
        same = [(copy.key.digest, copy.payload_hash) for copy in copies]
        firsts: dict[tuple[bytes, bytes], tuple[Job, bytes, str]] = {}
        for each, copy, error in zip(same, copies, errors, strict=True):
            if (payload := document(copy.event)) is not None:
                firsts.setdefault(each, (copy, payload, error))
        problems = self._bury_each(*zip(*firsts.values(), strict=True), cut=cut) if firsts else ()
        found = dict(zip(firsts, problems, strict=True))
        return [found.get(each, NO_DOCUMENT) for each in same]

    def _bury_each(
        self, copies: Sequence[Job], payloads: Sequence[bytes], errors: Sequence[str], *, cut: bool
    ) -> list[str | None]:
        try:
            verdicts = self._store.claim(requests := self._requests(copies))
        except StoreError as error:
            return [str(error)] * len(copies)
        problems: list[str | None] = [None] * len(copies)
        burials: dict[int, Bury] = {}
        for index, (request, verdict) in enumerate(zip(requests, verdicts, strict=True)):
            if isinstance(verdict, Granted):
                burials[index] = self._burial(request, verdict, payloads[index], errors[index])
            elif cut and _is_cut(verdict, payloads[index]):
                problems[index] = _CUT
            else:
                problems[index] = _not_there(copies[index], verdict)
        answers = settle(self._store, list(burials.values())) if burials else ()
        for index, answer in zip(burials, answers, strict=True):
            if cut and isinstance(answer, Unkeepable):
                problems[index] = self._bury_cut(burials[index])
            else:
                problems[index] = _problem(answer)
        return problems

    def _bury_cut(self, whole: Bury) -> str:
        size = len(whole.payload)
        error = f"truncated: only {_CUT_TO} of its {size} bytes are kept, the store takes no more; {whole.error}"
        cut = replace(whole, payload=whole.payload[:_CUT_TO] + _CUT_END, error=error[:LONGEST_ERROR])
        (answer,) = settle(self._store, [cut])
        return _problem(answer) or _CUT

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


def _outcome(job: Job, verdict: Duplicate | InFlight | Buried) -> Outcome:
    record, at = verdict.record, verdict.at
    match verdict:
        case Duplicate() if job.published and record.state == RELEASED:
            # Its publisher does not know yet that it was sent, and will try again; a queue may drop that as a copy.
            return Outcome("in_flight", job.event, job.key, "concurrent", original=record, at=at)
        case Duplicate():
            result = None if record.result is None else msgspec.json.decode(record.result)
            kind = kind_of(job, record, at)
            return Outcome("duplicate", job.event, job.key, kind, result, record.error, record, at)
        case InFlight():
            return Outcome("in_flight", job.event, job.key, "concurrent", original=record, at=at)
        case Buried():
            kind = kind_of(job, record, at)
            return Outcome("buried", job.event, job.key, kind, None, record.error, record, at)
        case _:
            assert_never(verdict)


def _no_attempt_left(record: Record) -> str:
    """Why a grant beyond the last attempt is not run. What the record says may be of an attempt before the last."""
    last = record.attempts - 1
    if record.lost > 1:
        alone = times(record.lost - 1, "time")
        return f"its worker died, or was stopped for longer than its lease, {alone} while it ran alone"
    if record.error is None:
        return f"its worker did not come back from attempt {last}"
    return f"no attempt is left after attempt {last}; the last error on record: {record.error}"[:LONGEST_ERROR]


def _conflict(job: Job, verdict: Conflict, kept: Key, differs: tuple[str, ...]) -> Outcome:
    record, at = verdict.record, verdict.at
    return Outcome("conflict", job.event, job.key, original=record, at=at, kept=kept, differs=differs)


def _kept(refused: Outcome, copy: Job, problem: str | None) -> Outcome:
    if problem in (None, _CUT):
        return replace(refused, kept=copy.key, cut=problem is _CUT)
    return _unkept(refused.event, None, refused.error, problem, refused.raised)


def _unkept(event: Event, key: Key | None, error: str | None, problem: str, raised: str | None = None) -> Outcome:
    """That another worker is or was at it is no failure of the store, nor, where none has run, of a handler."""
    elsewhere = problem in (_BEING_KEPT, _CLAIM_LOST) and not event.attempt
    why = f"{error}, {NOT_KEPT}: {problem}"
    told = None if raised is None else f"{raised}, {NOT_KEPT}: {problem}"
    if elsewhere:
        return Outcome("in_flight", event, key, "concurrent", error=why, raised=told)
    return Outcome("failed", event, key, error=why, raised=told)


def _kept_copy(event: Event) -> Job:
    content = digest(document(event) or b"")
    return Job(event, keys.make("kept", event, [content.hex()], binds=False), content)


def _problem(answer: Answer) -> str | None:
    """Why a burial is none; None if it is one."""
    if answer is True:
        return None
    return str(answer) if answer else _CLAIM_LOST


def _is_cut(verdict: Verdict, payload: bytes) -> bool:
    """Whether it was kept before, but not as a whole: its key is made of all of its bytes."""
    return isinstance(verdict, Buried) and verdict.record.payload not in (None, payload)


def _failed_key(job: Job, *apart: str) -> Key:
    return keys.make("failed", job.event, [str(job.key), *apart])


def _not_there(copy: Job, verdict: Duplicate | InFlight | Conflict | Buried) -> str | None:
    """Why what the store knows under its key is no copy of it; None if it is, or was until it was redriven and run. To
    have been run is not enough for what has failed since."""
    match verdict:
        case InFlight():
            return _BEING_KEPT
        case Conflict():
            return _TAKEN
        case Duplicate() if verdict.record.state == COMPLETED and copy.key.strategy == "failed":
            return _TAKEN
        case _:
            return None


def _copy_key(job: Job) -> Key:
    return keys.make("conflict", job.event, [str(job.key), job.payload_hash.hex()])
