"""Admitting: events that are kept by the store, to be run later by whoever takes them."""

from collections.abc import Sequence
from typing import NoReturn, cast

from oncegate import keys
from oncegate.canonical import digest
from oncegate.claims import Admission, Admit, Admitted, Conflict, Granted
from oncegate.clocks import Clock
from oncegate.events import Event
from oncegate.gate.claimer import Claimer, StoreCall
from oncegate.gate.job import Batch, Identified, Job, RejectedEvent, UnguardedEvent, summary_of
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Outcome
from oncegate.gate.state_changes import StateChangeResolver
from oncegate.gate.sync_runner import SyncRunner
from oncegate.instances import owners
from oncegate.stores.base import Inbox, Store


class Admitter:
    def __init__(
        self,
        store: Store,
        config: GateConfig,
        boot: Clock,
        claimer: Claimer,
        runner: SyncRunner,
        state_changes: StateChangeResolver,
        observers: Observers,
    ) -> None:
        self._store = store
        self._config = config
        self._boot = boot
        self._claimer = claimer
        self._runner = runner
        self._state_changes = state_changes
        self._observers = observers

    def through(self, identified: Sequence[Identified]) -> list[Outcome]:
        """Have all of them kept; one outcome for each, in order."""
        items = self.keyed(identified)
        jobs = [item for item in items if isinstance(item, Job)]
        self._state_changes.resolve(jobs)
        batch = Batch(items)
        self.admit(batch.jobs)
        _refuse_unguarded(jobs)
        self._state_changes.confirm(batch.items)
        return batch.outcomes

    def keyed(self, identified: Sequence[Identified]) -> list[Job | RejectedEvent]:
        """An event that may run without a key is kept under one that no other has; one that was made by hand cannot be
        kept, since there is nothing to read it from again."""
        return [item if type(item) is Job and item.event.raw else _keyed(item) for item in identified]

    def asking_apart(self, jobs: Sequence[Job]) -> StoreCall | None:
        """The same for events of callers that do not know of each other, to be asked for: of two with one key the store
        tells which was first. `confirm_apart` is to follow it."""
        self._state_changes.resolve([job for job in jobs if job.emission is None])
        return self._asking([job for job in jobs if not job.answered])

    def confirm_apart(self, jobs: Sequence[Job]) -> None:
        _refuse_unguarded(jobs)
        self._state_changes.confirm(jobs)

    def admit(self, jobs: Sequence[Job]) -> None:
        """Ask the store to keep these, with one write. Those that are not to be run are buried instead."""
        if asking := self._asking(jobs):
            asking.ask(self._boot)

    def _asking(self, jobs: Sequence[Job]) -> StoreCall | None:
        self._bury([job for job in jobs if job.bury_reason is not None])
        unknown = [job for job in jobs if job.bury_reason is None and not self._claimer.recall(job)]
        if not unknown:
            return None
        admit = cast(Inbox, self._store).admit
        return StoreCall(admit, self._requests(unknown), unknown, self._judge, self._unanswered, self._claimer.known)

    def _unanswered(self, jobs: Sequence[Job], error: str) -> None:
        for job in jobs:
            self._observers.notify("policy.store_error", job.event, job.key, detail="refuse")
            job.outcome = Outcome("failed", job.event, job.key, error=error)

    def _judge(self, jobs: Sequence[Job], answers: Sequence[Admission], sent_at: int) -> None:
        conflicts, handed_on, granted = [], [], 0
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Granted):
                granted += self._claimer.hold(job, answer.record, answer.at, sent_at)
                job.outcome = Outcome("accepted", job.event, job.key, at=answer.at)
            elif isinstance(answer, Admitted):
                job.outcome = Outcome("accepted", job.event, job.key, at=answer.at)
            elif isinstance(answer, Conflict):
                conflicts.append((job, answer))
            elif self._claimer.is_next_stage(job, answer):
                handed_on.append(job)
            else:
                self._claimer.found(job, answer, sent_at)
        self._observers.granted(granted, (job.event for job in jobs if job.held))
        if conflicts:
            handed_on += self._claimer.answer_conflicts(conflicts, {})
        if handed_on:
            self.admit(handed_on)

    def _bury(self, hopeless: Sequence[Job]) -> None:
        if hopeless:
            self._claimer.claim(hopeless)
            self._runner.run(hopeless, _never)
            for job in hopeless:
                job.held = False

    def _requests(self, jobs: Sequence[Job]) -> list[Admit]:
        return [
            Admit(
                self._config.namespace,
                job.key.digest,
                owner,
                job.payload_hash,
                job.event.raw,
                summary_of(job.event),
                job.key.binds,
                self._config.lease if job.run_now else 0,
            )
            for job, owner in zip(jobs, owners(len(jobs)), strict=True)
        ]


def _keyed(item: Identified) -> Job | RejectedEvent:
    if isinstance(item, RejectedEvent):
        return item
    job = _with_a_key(item) if isinstance(item, UnguardedEvent) else item
    if job.event.raw:
        return job
    error = "it was made by hand and has no raw document that could be kept; pass what was delivered, or set raw"
    return RejectedEvent(Outcome("invalid", job.event, job.key, error=error))


def _with_a_key(item: UnguardedEvent) -> Job:
    (random,) = owners(1)
    return Job(item.event, keys.make("unguarded", item.event, [random.hex()], binds=False), digest(item.event.raw))


def _refuse_unguarded(jobs: Sequence[Job]) -> None:
    """What could not be asked for is not kept, and so it is not run: nobody would know of it."""
    for job in jobs:
        if job.unguarded is not None:
            job.outcome = Outcome("failed", job.event, job.key, error=job.unguarded)


def _never(event: Event) -> NoReturn:
    """What is hopeless is buried, not run."""
    raise AssertionError(event)
