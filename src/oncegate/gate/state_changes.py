"""This module finds logical duplicates: several emissions of the same state change. All emissions of a state change get
the same key.

Each entity has a timeline, which is a versioned document in the store. The timelines of all events of a batch are
loaded with one call, and the timelines that changed are swapped with one call. If another worker has swapped a timeline
in between, that timeline is loaded again.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from oncegate import timelines
from oncegate.backoff import Backoff
from oncegate.claims import COMPLETED, Address
from oncegate.errors import StoreError
from oncegate.events import Key, StateChange
from oncegate.gate.claimer import Claimer
from oncegate.gate.dead_letters import DeadLetters
from oncegate.gate.job import InBatchDuplicate, Item, Job
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Outcome
from oncegate.stores.base import Change, Document, Store

_TRIES: Final = 12
_FIRST_PAUSE: Final = 0.001  # seconds
_LONGEST_PAUSE: Final = 0.05
_CLOCK_AHEAD: Final = 300_000_000  # microseconds that a sender's clock may be ahead of ours
_BUSY: Final = "other workers keep changing the timeline of its entity"
_STALE: Final = "a newer state of its entity is known"


class StateChangeResolver:
    def __init__(
        self,
        store: Store,
        config: GateConfig,
        claimer: Claimer,
        dead_letters: DeadLetters,
        observers: Observers,
    ) -> None:
        self._store = store
        self._config = config
        self._claimer = claimer
        self._dead_letters = dead_letters
        self._observers = observers
        self._wall = observers.wall

    def resolve(self, jobs: Sequence[Job]) -> None:
        """Give each job the key under which its state change is known. Some jobs also get their outcome: those that are
        skipped, and those for which the store did not answer."""
        try:
            self.place(jobs)
        except StoreError as error:
            waiting = [job for job in jobs if job.key.change is not None and not job.answered]
            self._claimer.unanswered(waiting, str(error))
            for job in waiting:
                job.answered = True

    def place(self, jobs: Sequence[Job]) -> None:
        """Do the same as `resolve`, but raise StoreError if the store does not answer."""
        self._place_all([job for job in jobs if job.key.change is not None and not job.answered])

    def confirm(self, items: Iterable[Item]) -> None:
        """Record the outcome of joined emissions under their own keys, too. Their own keys are the keys computed from
        these emissions, not the key of the state change that they were joined to."""
        joined = [item for item in items if isinstance(item, Job | InBatchDuplicate) and _emission(item) is not None]
        if done := [item for item in joined if _is_done(item.outcome)]:
            self._claimer.mark_emissions([_own(item) for item in done])
        if dead := [item for item in joined if _is_buried_with_another(item)]:
            self._bury(dead)

    def _bury(self, items: Sequence[Job | InBatchDuplicate]) -> None:
        """Bury further emissions of a state change whose first emission is a dead letter. Each of them becomes a dead
        letter whose error names the first dead letter."""
        outcomes = [item.outcome for item in items]
        errors = [f"same state change as dead letter {outcome.key} ({outcome.error})" for outcome in outcomes]
        buried = self._dead_letters.bury_emissions([_own(item) for item in items], outcomes, errors)
        for item, outcome in zip(items, buried, strict=True):
            if isinstance(item, InBatchDuplicate):
                item.buried = outcome
            else:
                item.outcome = outcome

    def _place_all(self, jobs: list[Job]) -> None:
        """Place all jobs, with retries. If other workers changed the timeline of a job at every try, the outcome of the
        job is "in_flight"."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        for _ in range(_TRIES):
            jobs = self._place(jobs)
            if not jobs:
                return
            time.sleep(backoff.next_pause())
        for job in jobs:
            job.outcome = job.not_run(_BUSY, "concurrent")
            job.answered = True

    def _place(self, jobs: Sequence[Job]) -> list[Job]:
        """Place each job in its timeline, with one load and one swap. Returns the jobs whose timeline could not be
        swapped because another worker had changed it."""
        open_timelines = {change.timeline: _OpenTimeline(self._address(change)) for change in _changes(jobs)}
        if not open_timelines:
            return []
        loaded = self._store.load([line.address for line in open_timelines.values()])
        for line, document in zip(open_timelines.values(), loaded, strict=True):
            line.open(document)
        until = self._wall() + _CLOCK_AHEAD
        for job in jobs:
            open_timelines[_change(job).timeline].place(job, until)
        changed = [line for line in open_timelines.values() if line.changed]
        swapped = self._store.swap([line.swap(self._config.retention) for line in changed]) if changed else []
        lost = [line for line, done in zip(changed, swapped, strict=True) if not done]
        for line in open_timelines.values():
            if line not in lost:
                self._settle(line)
        return [job for line in lost for job, _ in line.placed]

    def _settle(self, line: "_OpenTimeline") -> None:
        for job, placed in line.placed:
            if placed.splits:
                self._observers.notify("timeline.split", job.event, job.key)
            if placed.key != job.key.digest:
                job.emission = job.key
                job.key = replace(job.key, digest=placed.key)
            if placed.stale:
                self._stale(job)

    def _stale(self, job: Job) -> None:
        job.event = replace(job.event, stale=True)
        self._observers.notify("policy.stale", job.event, job.key, detail=self._config.on_stale)
        if self._config.on_stale == "skip":
            job.outcome = Outcome("skipped", job.event, job.key, error=_STALE)
            job.answered = True

    def _address(self, change: StateChange) -> Address:
        return Address(self._config.namespace, change.timeline)


class _OpenTimeline:
    """One timeline, in the form in which it was loaded, and the jobs that were placed in it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.placed: list[tuple[Job, timelines.Placed]] = []

    def open(self, document: Document) -> None:
        self._version = document.version
        self._loaded = self._timeline = timelines.read(document.body)

    def place(self, job: Job, until: int) -> None:
        placed = timelines.place(self._timeline, _change(job), job.key.digest, until=until)
        self._timeline = placed.timeline
        self.placed.append((job, placed))

    @property
    def changed(self) -> bool:
        return self._timeline is not self._loaded

    def swap(self, retention: int) -> Change:
        where = self.address
        return Change(where.namespace, where.key, self._version, timelines.written(self._timeline), retention)


def _emission(item: Job | InBatchDuplicate) -> Key | None:
    return item.job.emission if isinstance(item, InBatchDuplicate) else item.emission


def _own(item: Job | InBatchDuplicate) -> Job:
    """Returns a job for the emission under the key computed from this emission."""
    job = item.job if isinstance(item, InBatchDuplicate) else item
    assert job.emission is not None  # noqa: S101  # only joined emissions get here
    return Job(job.event, job.emission, job.payload_hash)


def _is_done(outcome: Outcome) -> bool:
    waits = outcome.original is not None and outcome.original.state != COMPLETED
    return outcome.status == "processed" or (outcome.status == "duplicate" and not waits)


def _is_buried_with_another(item: Job | InBatchDuplicate) -> bool:
    """Whether the emission has the outcome "buried" because another emission was buried. False for the emission that
    failed itself and became the dead letter."""
    outcome = item.outcome
    return outcome.status == "buried" and (isinstance(item, InBatchDuplicate) or outcome.original is not None)


def _changes(jobs: Iterable[Job]) -> Iterable[StateChange]:
    return (_change(job) for job in jobs)


def _change(job: Job) -> StateChange:
    assert job.key.change is not None  # noqa: S101  # only state changes get here
    return job.key.change
