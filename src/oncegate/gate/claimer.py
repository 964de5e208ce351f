"""The claimer sends claims, admissions and takes of jobs to the store, and turns the store's verdicts into leases or
outcomes."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, assert_never, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate.carriers import delivery
from oncegate.claims import (
    RELEASED,
    Address,
    Admission,
    Admit,
    Admitted,
    Buried,
    Claim,
    Conflict,
    Duplicate,
    Granted,
    InFlight,
    Operation,
    Record,
    Renew,
    Settlement,
    Verdict,
    matches_content,
    step,
)
from oncegate.clocks import Clock, wall
from oncegate.durations import times
from oncegate.errors import PreviousUnavailable, SettingError, StoreError, StoreReadOnly, StoreUnavailable
from oncegate.events import Key
from oncegate.gate.completion_cache import CompletionCache
from oncegate.gate.dead_letters import DeadLetters, claim_requests, conflict_key
from oncegate.gate.handlers import LONGEST_ERROR
from oncegate.gate.job import (
    CALL,
    HANDED_ON,
    STILL_RUNS,
    Job,
    is_call_reason,
    is_handed_on,
    kind_of,
    stage,
    summary_of,
)
from oncegate.gate.leases import Heartbeat, Lease
from oncegate.gate.observers import Observers
from oncegate.gate.options import MARKED_AND_PUBLISHED, GateConfig
from oncegate.gate.outcome import Cause, Outcome
from oncegate.gate.settlement import FailedAfterMark
from oncegate.instances import owners
from oncegate.sources import Hints, understood
from oncegate.stores.base import (
    BatchesMixedOperations,
    Change,
    Document,
    Entry,
    Inbox,
    Store,
    TakeRequest,
)
from oncegate.stores.circuit_breaker import CircuitBreaker

if TYPE_CHECKING:
    from oncegate.previous.lookup import PreviousPlace

_NO_READS_FOR: Final = 1_000_000  # microseconds

_Known = Duplicate | InFlight | Buried


class StoreCall(Struct, frozen=True):
    """A batch of requests of one kind to the store, and the callbacks for its result.

    `answered` is called with the items, the answers and the time of sending (boot clock). `failed` is called with the
    items and the error text. If the store is read-only, `known` answers the items that can be answered by reading, and
    returns the other items.
    """

    verb: Callable[[Sequence[Any]], Sequence[Any]]
    requests: Sequence[Operation]
    items: Sequence[Any]
    answered: Callable[[Sequence[Any], Sequence[Any], int], None]
    failed: Callable[[Sequence[Any], str], None]
    known: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] | None = None

    def execute(self, boot: Clock) -> None:
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


def execute_all(calls: Sequence[StoreCall], store: BatchesMixedOperations | None, boot: Clock) -> None:
    """Execute the calls in order. If there are several calls and the store can mix operations, they are sent with one
    write. If that write fails, each call is executed separately, so that the error of one call does not fail the other
    calls."""
    if len(calls) > 1 and store is not None and _try_together(calls, store, boot):
        return
    with ExitStack() as stack:  # each call runs even if the previous call raised
        for call in reversed(calls):
            stack.callback(call.execute, boot)


def _try_together(calls: Sequence[StoreCall], store: BatchesMixedOperations, boot: Clock) -> bool:
    """Execute all calls with one write. Returns False if that write fails."""
    sent_at = boot()
    try:
        answers = iter(store.together([request for call in calls for request in call.requests]))
    except Exception:  # noqa: BLE001  # the failing call raises again when it is executed separately
        return False
    for call in calls:
        call.answered(call.items, list(islice(answers, len(call.requests))), sent_at)
    return True


class GuardedStore:
    """A remote store behind a circuit breaker: every verb that a gate uses goes through the breaker.

    While the breaker is open, claims fail at once. Settlements and renewals are always sent to the store: their
    handlers have run or are running, and an event whose settlement is not recorded would run again.
    """

    def __init__(self, store: Store, breaker: CircuitBreaker) -> None:
        self._store = store
        self._breaker = breaker

    def claim(self, requests: Sequence[Claim]) -> list[Verdict]:
        with self._breaker.watch(len(requests)):
            return self._store.claim(requests)

    def admit(self, requests: Sequence[Admit]) -> list[Admission]:
        with self._breaker.watch(len(requests)):
            return cast(Inbox, self._store).admit(requests)

    def take(self, requests: Sequence[TakeRequest]) -> list[Entry | None]:
        with self._breaker.watch(len(requests)):
            return self._store.take(requests)

    def load(self, addresses: Sequence[Address]) -> list[Document]:
        with self._breaker.watch(len(addresses), reads=True):
            return self._store.load(addresses)

    def swap(self, changes: Sequence[Change]) -> list[bool]:
        with self._breaker.watch(len(changes)):
            return self._store.swap(changes)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        with self._breaker.watch(len(settlements), always=True):
            return self._store.settle(settlements)

    def renew(self, leases: Sequence[Renew]) -> list[bool]:
        with self._breaker.watch(len(leases), always=True):
            return self._store.renew(leases)

    def __getattr__(self, name: str) -> Any:
        """All other methods, such as those that operators use for reading, are called on the store directly."""
        return getattr(self._store, name)


class _GuardedMixedStore(GuardedStore):
    """A guarded store that can also mix operations. It is a separate class because isinstance() looks for the methods
    of a protocol on the class (Python 3.12+)."""

    def together(self, operations: Sequence[Operation]) -> list[Any]:
        with self._breaker.watch(len(operations)):
            return cast(BatchesMixedOperations, self._store).together(operations)


def guarded(store: Store, breaker: CircuitBreaker) -> Store:
    """Put the store behind a circuit breaker. The result can mix operations in one batch if the store can."""
    kind = _GuardedMixedStore if isinstance(store, BatchesMixedOperations) else GuardedStore
    return cast(Store, kind(store, breaker))


class Claimer:
    def __init__(
        self,
        store: Store,
        config: GateConfig,
        boot: Clock,
        cache: CompletionCache,
        observers: Observers,
        hints: Hints,
        heartbeat: Heartbeat,
        dead_letters: DeadLetters,
        previous: "PreviousPlace | None" = None,
    ) -> None:
        self._store = store
        self._config = config
        self._previous = previous
        self._boot = boot
        self._cache = cache
        self._observers = observers
        self._hints = hints
        self._heartbeat = heartbeat
        self._dead_letters = dead_letters
        self._no_reads_until = 0

    # ── claim, admit, take ────────────────────────────────────────────────────────────────────────────────

    def claim(self, jobs: Sequence[Job]) -> None:
        """Claim all jobs with one write. Afterwards each job has a lease, a reason to run without a lease, or an
        outcome."""
        if call := self.claim_call(jobs):
            call.execute(self._boot)

    def claim_call(self, jobs: Sequence[Job]) -> StoreCall | None:
        """Returns the claim of these jobs as a call to execute; None if no job is left to send to the store."""
        if self._config.marks_first and any(job.hands_to is not None for job in jobs):
            raise SettingError(MARKED_AND_PUBLISHED)
        for job in jobs:
            if job.carried is not None:
                jobs = self._find_by_carried_key(jobs, self.unanswered)
                break
        unknown = jobs if self._cache.has_none_of(jobs) else [job for job in jobs if not self.recall(job)]
        if not unknown:
            return None
        requests = claim_requests(unknown, self._config, marks=self._config.marks_first)
        if self._previous is not None:
            requests = self._with_marks(unknown, requests)
        return StoreCall(self._store.claim, requests, unknown, self._claimed, self.unanswered, self._answer_by_reading)

    def admit(self, jobs: Sequence[Job]) -> None:
        """Store these events with one write, until they are run."""
        if call := self.admit_call(jobs):
            call.execute(self._boot)

    def admit_call(self, jobs: Sequence[Job]) -> StoreCall | None:
        """Returns the admission of these jobs as a call to execute; None if the cache answers all jobs."""
        if any(job.carried is not None for job in jobs):
            jobs = self._find_by_carried_key(jobs, self._not_admitted)
        unknown = [job for job in jobs if not self.recall(job)]
        if self._previous is not None and (marked := [job for job in unknown if job.marked_for is not None]):
            self.claim(marked)  # an event that earlier code has processed is not stored to be run
            unknown = [job for job in unknown if job.marked_for is None]
        if not unknown:
            return None
        verb, requests = cast(Inbox, self._store).admit, self._admissions(unknown)
        return StoreCall(verb, requests, unknown, self._admitted, self._not_admitted, self._answer_by_reading)

    def take(self, limit: int = 1, *, in_order: bool = False) -> list[Job]:
        """Claim up to `limit` events that the store holds with their payload."""
        config, sent_at = self._config, self._boot()
        requests = [TakeRequest(config.namespace, owner, config.lease, in_order) for owner in owners(limit)]
        jobs = [self._taken(entry, sent_at) for entry in self._store.take(requests) if entry is not None]
        held = [job for job in jobs if job.held]
        self._observers.granted(len(held), (job.event for job in held))
        return held

    def recall(self, job: Job) -> bool:
        """Set the outcome of a duplicate from the completion cache. Returns False if the cache cannot answer the
        job."""
        outcome = self._cache.answer(job)
        if outcome is None:
            return False
        job.outcome = outcome
        self._observers.notify("memory.hit", job.event, job.key)
        return True

    def _find_by_carried_key(self, jobs: Sequence[Job], failed: Callable[[Sequence[Job], str], None]) -> list[Job]:
        """Give each job the key under which its event was published, if this namespace has a record under that key.
        The published key may differ from the key computed here, because parts of the key were lost when the event was
        wrapped. Returns the jobs that can be claimed. `failed` is called with a job if the store could not be
        read."""
        claimable = []
        for job in jobs:
            carried, job.carried = job.carried, None
            try:
                if carried is not None and self._store.browse(self._config.namespace, key=carried):
                    job.key = Key(carried, HANDED_ON, (carried.hex(),), job.key.binds)
                claimable.append(job)
            except StoreError as error:
                failed([job], str(error))
        return claimable

    def _admissions(self, jobs: Sequence[Job]) -> list[Admit]:
        config = self._config
        return [
            Admit(
                config.namespace,
                job.key.digest,
                owner,
                job.payload_hash,
                job.event.raw,
                summary_of(job.event),
                job.key.binds,
                config.lease if job.run_now else 0,
            )
            for job, owner in zip(jobs, owners(len(jobs)), strict=True)
        ]

    # ── events that earlier code has processed ────────────────────────────────────────────────────────────

    def look_up(self, jobs: Sequence[Job]) -> None:
        """Ask the place that `previous` names which of these events earlier code has processed. Sets `marked_for` of
        those jobs. If the place does not answer, the jobs are answered: an event that may be marked must not run."""
        if self._previous is None:
            return
        asked = [job for job in jobs if self._may_be_marked(job)]
        if not asked:
            return
        try:
            found = self._previous.find([job.event for job in asked])
        except PreviousUnavailable as error:
            self._answer_without_look_up(asked, str(error))
            return
        for job, left in zip(asked, found, strict=True):
            job.marked_for = left

    def _may_be_marked(self, job: Job) -> bool:
        """Whether the place that `previous` names can decide about this job. It cannot if the job is a call of a
        function, or a replay that must run. It need not if this process knows that the event is completed."""
        is_replay = job.event.evidence.replay is not None and self._config.on_replay == "run"
        is_known = job.key.change is None and self._cache.answer(job) is not None
        return not job.answered and job.event.source != CALL and not is_replay and not is_known

    def _answer_without_look_up(self, jobs: Sequence[Job], error: str) -> None:
        """Answer jobs whose look-up failed. A copy of an event that the store knows as completed is a duplicate. All
        other jobs have failed."""
        keyed = [job for job in jobs if job.key.change is None]
        unknown = self._answer_by_reading(claim_requests(keyed, self._config), keyed)
        for job in jobs:
            job.answered = True
            if job.key.change is not None or job in unknown:
                self._fail(job, error)

    def _with_marks(self, jobs: Sequence[Job], requests: list[Claim]) -> list[Claim]:
        """Let the claims of events that earlier code has processed complete their records at once, for as long as that
        code would remember the event."""
        return [
            request
            if job.marked_for is None
            else replace(request, marks=True, retention=job.marked_for or request.retention)
            for job, request in zip(jobs, requests, strict=True)
        ]

    def _answer_marked(self, job: Job, verdict: Granted | Conflict, sent_at: int) -> None:
        """Answer an event that earlier code has processed. Its record is completed now, or the key belongs to another
        event."""
        record, at = verdict.record, verdict.at
        job.outcome = Outcome(
            "duplicate", job.event, job.key, kind_of(job, record, at), original=record, at=at, cause=Cause.PREVIOUS
        )
        if isinstance(verdict, Granted):
            self._observers.notify("previous.found", job.event, job.key)
            self._cache.add_found(Lease(self._config.namespace, job.key.digest, record, at, sent_at, 0))

    # ── verdicts ──────────────────────────────────────────────────────────────────────────────────────────

    def _claimed(self, jobs: Sequence[Job], verdicts: Sequence[Verdict], sent_at: int) -> None:
        if again := self._judge(jobs, verdicts, sent_at):
            self.claim(again)
        if self._config.sliding:
            for job, verdict in zip(jobs, verdicts, strict=True):
                if isinstance(verdict, Duplicate) and job not in again:
                    self._observers.notify("policy.sliding", job.event, job.key, detail="slid")

    def _admitted(self, jobs: Sequence[Job], answers: Sequence[Admission], sent_at: int) -> None:
        again = self._judge(jobs, answers, sent_at)
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Granted | Admitted):
                job.outcome = Outcome("accepted", job.event, job.key, at=answer.at)
        if again:
            self.admit(again)

    def _judge(self, jobs: Sequence[Job], answers: Sequence[Verdict | Admission], sent_at: int) -> list[Job]:
        """Turn the store's answers into leases and outcomes. Returns the jobs to send again under another key."""
        conflicts, again, granted = [], [], 0
        for job, answer in zip(jobs, answers, strict=True):
            if job.marked_for is not None and isinstance(answer, Granted | Conflict):
                self._answer_marked(job, answer, sent_at)
            elif isinstance(answer, Granted):
                granted += self._hold(job, answer.record, answer.at, sent_at)
            elif isinstance(answer, Conflict):
                conflicts.append((job, answer))
            elif isinstance(answer, Admitted):
                continue
            elif self._move_to_next_stage(job, answer):
                again.append(job)
            else:
                self._answer_from_record(job, answer, sent_at)
        self._observers.granted(granted, (job.event for job in jobs if job.held))
        if conflicts:
            granted_bodies = {job.key.digest: job.event.body for job in jobs if job.held}
            again += self._answer_conflicts(conflicts, granted_bodies)
        return again

    def _hold(self, job: Job, record: Record, at: int, sent_at: int) -> bool:
        """Give the job its lease. The store granted it at the store's time `at`, and the request was sent at `sent_at`
        on the boot clock. Returns False if the event's handler still runs in this process: in that case the running
        handler gets the new grant."""
        config, key, attempt = self._config, job.key, record.attempts
        job.lease = Lease(config.namespace, key.digest, record, at, sent_at, sent_at + record.lease_until - at)
        if self._heartbeat.adopt(job.lease):
            self._observers.notify("lease.adopted", job.event, key)
            job.outcome = job.not_run(STILL_RUNS, "concurrent")
            return False
        job.held = True
        job.event = replace(job.event, key=key, attempt=attempt, fence=record.fence)
        if attempt > 1 and config.max_attempts is not None and attempt > config.max_attempts:
            job.bury_reason = _no_attempt_left(record)
        if record.completed_at is not None and record.expires_at is not None:
            # The store grants a marked event to no other worker before the record expires.
            job.lease.valid_until = sent_at + record.expires_at - at
            self._cache.add_found(job.lease)
        return True

    def _taken(self, entry: Entry, sent_at: int) -> Job:
        event = understood(delivery(entry.record.payload), self._hints)
        bury_reason = is_call_reason(entry.record.about) or event.problem
        job = Job(event, Key(entry.key, "kept", ()), entry.record.payload_hash, bury_reason)
        self._hold(job, entry.record, entry.record.lease_until - self._config.lease, sent_at)
        return job

    def _move_to_next_stage(self, job: Job, verdict: _Known) -> bool:
        """Give the job the key of the next stage if the record says that the event was published to the destination
        that this job comes from. Returns True if the key was changed: the job must then be claimed again."""
        destination = verdict.record.handed_to
        if destination is None or not is_handed_on(job, destination):
            return False
        job.key = stage(job.key, destination)
        return True

    def _answer_from_record(self, job: Job, verdict: _Known, sent_at: int) -> None:
        """Set the outcome of a job from the record that the store has of its event. A completed record is cached."""
        job.outcome = _outcome(job, verdict)
        self._notify_unbound_conflict(job, verdict.record)
        self._cache.add_found(Lease(self._config.namespace, job.key.digest, verdict.record, verdict.at, sent_at, 0))

    def _notify_unbound_conflict(self, job: Job, original: Record) -> None:
        """Notify if the job's content differs from the original and on_conflict="duplicate" treats the job as a
        copy."""
        if job.content_unbound and not matches_content(original, job.payload_hash):
            self._observers.notify("policy.conflict", job.event, job.key, detail="duplicate")

    def _answer_conflicts(
        self, conflicts: Sequence[tuple[Job, Conflict]], granted_bodies: dict[bytes, Any]
    ) -> list[Job]:
        """Apply `on_conflict`. Returns the jobs to send again under the key H(key, content)."""
        policy = self._config.on_conflict
        for job, _ in conflicts:
            self._observers.notify("policy.conflict", job.event, job.key, detail=policy)
        if policy == "bury":
            self._dead_letters.bury_conflicts(conflicts, granted_bodies)
            return []
        for job, _ in conflicts:
            job.key = conflict_key(job)
        return [job for job, _ in conflicts]

    # ── without an answer ─────────────────────────────────────────────────────────────────────────────────

    def unanswered(self, jobs: Sequence[Job], error: str) -> None:
        """Handle jobs for which the store gave no answer. A job runs without a claim if the policy for its event allows
        this. Otherwise the job has failed."""
        for job in jobs:
            if self._config.unguarded(job.event) and job.bury_reason is None:
                self._observers.notify("policy.store_error", job.event, job.key, detail="unguarded")
                job.unguarded = error
            else:
                self._fail(job, error)

    def _not_admitted(self, jobs: Sequence[Job], error: str) -> None:
        for job in jobs:
            self._fail(job, error)

    def _fail(self, job: Job, error: str) -> None:
        self._observers.notify("policy.store_error", job.event, job.key, detail="refuse")
        job.outcome = replace(job.failed(error), cause=Cause.STORE_UNAVAILABLE)

    def _answer_by_reading(self, requests: Sequence[Claim | Admit], jobs: Sequence[Job]) -> list[Job]:
        """Answer jobs of completed and buried events by reading a read-only store. Returns the jobs that were not
        answered. If reading fails too, the store is not read again for a second."""
        unknown = []
        for request, job in zip(requests, jobs, strict=True):
            verdict = self._read_verdict(request)
            if verdict is None or is_handed_on(job, verdict.record.handed_to):
                unknown.append(job)
            else:
                job.outcome = _outcome(job, verdict)
                self._notify_unbound_conflict(job, verdict.record)
        return unknown

    def _read_verdict(self, request: Claim | Admit) -> Duplicate | Buried | None:
        if self._boot() < self._no_reads_until:
            return None
        try:
            entries = self._store.browse(request.namespace, key=request.key, limit=1)
        except StoreError:
            self._no_reads_until = self._boot() + _NO_READS_FOR
            return None
        for entry in entries:
            # `browse` returns only records that have not expired. The store's current time is not known here, but it is
            # at least `since`.
            since = entry.record.completed_at or entry.record.first_seen
            verdict = step(entry.record, request, since)[1]
            if isinstance(verdict, Duplicate | Buried):
                return replace(verdict, at=max(since, wall()))
        return None

    # ── mark as done ──────────────────────────────────────────────────────────────────────────────────────

    def mark(self, job: Job) -> bool:
        """Mark an event as done without running a handler. Returns False if the event was already known or is buried.
        Raises StoreError."""
        if self.recall(job):
            return False
        requests = claim_requests([job], self._config, marks=True)
        try:
            (verdict,) = self._store.claim(requests)
        except StoreReadOnly:
            if self._answer_by_reading(requests, [job]):
                raise
            return False
        match verdict:
            case Granted():
                if job.bury_reason is None:
                    return True
                self._dead_letters.bury_failed([FailedAfterMark(job, job.bury_reason)])
                return False
            case Conflict():
                if self._answer_conflicts([(job, verdict)], {}):
                    return self.mark(job)
                if job.outcome.status != "conflict":
                    raise StoreUnavailable(job.outcome.reason)
                return False
            case _:
                if self._move_to_next_stage(job, verdict):
                    return self.mark(job)
                self._notify_unbound_conflict(job, verdict.record)
                return False

    def mark_emissions(self, emissions: Sequence[Job]) -> None:
        """Mark each joined emission as done under its own key too. A copy that arrives after the timeline has expired
        is then found by this key. An emission that cannot be marked now is still known by its timeline."""
        with suppress(StoreError):
            self._store.claim(claim_requests(emissions, self._config, marks=True))


def _outcome(job: Job, verdict: _Known) -> Outcome:
    record, at = verdict.record, verdict.at
    match verdict:
        case Duplicate() if job.published and record.state == RELEASED:
            # The publisher has not yet recorded that it sent this event, so it will send the event again. The queue may
            # drop that second message as a copy, so this message must not be acknowledged as a duplicate.
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
    """Returns why a grant beyond the last attempt is not run. The error in the record may come from an attempt before
    the last one."""
    last = record.attempts - 1
    if record.lost > 1:
        alone = times(record.lost - 1, "time")
        return f"its worker died, or was stopped for longer than its lease, {alone} while it ran alone"
    if record.error is None:
        return f"its worker did not return from attempt {last}"
    return f"no attempt is left after attempt {last}; the last error on record: {record.error}"[:LONGEST_ERROR]
