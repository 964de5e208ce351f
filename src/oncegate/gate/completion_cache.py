"""Remembering: completions this process has seen confirmed, so that a storm of copies does not reach the store.

Only what the store has confirmed is remembered, for a short while and never past its expiry; other content under the
same key goes to the store, and so does work that a person has sent back.
"""

import threading
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate import forks
from oncegate.claims import COMPLETED, Complete, Record
from oncegate.clocks import Clock
from oncegate.gate.job import Job, is_handed_on, kind_of
from oncegate.gate.leases import Lease
from oncegate.gate.outcome import Outcome
from oncegate.gate.settlement import PlannedSettlement

_MOST: Final = 10_000
_LARGEST_RESULT: Final = 4_096
_LARGEST_DOCUMENT: Final = 4_096


class _Completion(Struct, frozen=True, gc=False):
    """A claim as it was granted, and how it was completed by what was sent at `sent_at`. It may be trusted `until` then
    on the boot clock; the store's is `ahead` of that. The document may be at hand too."""

    until: int
    record: Record
    ahead: int
    complete: Complete
    sent_at: int
    document: bytes | None = None


class CompletionCache:
    """Two dicts by turns: when the new one is full, or old enough, the old one is thrown away as a whole."""

    def __init__(self, within: int | None, retention: int, boot: Clock) -> None:
        self._within = within
        self._longest = min(within or 0, retention)
        self._boot = boot
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)
        self._new: dict[bytes, _Completion] = {}
        self._new_until = 0
        self._old: dict[bytes, _Completion] = {}

    def knows_none(self, jobs: Sequence[Job]) -> bool:
        """Whether not one of these need be asked for: the usual case, and a quick one."""
        if not (self._new or self._old):
            return True
        digests = [job.key.digest for job in jobs]
        return self._new.keys().isdisjoint(digests) and self._old.keys().isdisjoint(digests)

    def answer(self, job: Job) -> Outcome | None:
        """A duplicate, if it is known to be one."""
        known = self._new.get(job.key.digest) or self._old.get(job.key.digest)
        if known is None:
            return None
        record, complete, now = known.record, known.complete, self._boot()
        if now >= known.until or record.payload_hash != job.payload_hash or is_handed_on(job, complete.handed_to):
            return None
        original = replace(
            record,
            state=COMPLETED,
            completed_at=record.completed_at or known.sent_at + known.ahead,
            result=complete.result,
            error=complete.error,
            handed_to=complete.handed_to,
        )
        result = None if complete.result is None else msgspec.json.decode(complete.result)
        at = now + known.ahead
        kind = kind_of(job, original, at)
        return Outcome("duplicate", job.event, job.key, kind, result, complete.error, original, at)

    def document(self, job: Job) -> bytes | None:
        """The document of the event that was completed under this job's key, if it is still at hand."""
        known = self._new.get(job.key.digest) or self._old.get(job.key.digest)
        return None if known is None else known.document or None

    def settled(self, endings: Sequence[PlannedSettlement], sent_at: int) -> None:
        """Endings that the store has accepted since `sent_at`; those that are completions are remembered.

        A document is kept if it is worth its room: it only serves to say where a conflict differs. As bytes it takes a
        third of what the body does, and gives the collector of garbage nothing to look at."""
        if self._within is None:
            return
        until = sent_at + self._longest
        with self._lock:
            known = self._current(sent_at)
            for ending in endings:
                complete = ending.settlement
                if type(complete) is Complete and len(complete.result or b"") <= _LARGEST_RESULT:
                    lease, raw = ending.job.lease, ending.job.event.raw
                    record, ahead = lease.record, lease.granted_at - lease.held_since
                    if record.payload is not None:
                        record = replace(record, payload=None)
                    document = raw if len(raw) <= _LARGEST_DOCUMENT else None
                    known[complete.key] = _Completion(until, record, ahead, complete, sent_at, document)

    def found(self, lease: Lease) -> None:
        """A completed record that the store has shown."""
        record = lease.record
        if len(record.result or b"") > _LARGEST_RESULT:
            return
        if self._within is not None and record.completed_at is not None and record.expires_at is not None:
            retention = record.expires_at - lease.granted_at
            proof = (lease.namespace, lease.key, record.owner, record.fence)
            complete = Complete(*proof, retention, record.result, record.error, record.handed_to)
            sent_at = lease.held_since
            until = sent_at + min(self._within, retention)
            with self._lock:
                known = self._current(sent_at)
                known[lease.key] = _Completion(until, record, lease.granted_at - sent_at, complete, sent_at)

    def _current(self, now: int) -> dict[bytes, _Completion]:
        """Where to put what is new; to be asked for under the lock."""
        if len(self._new) >= _MOST // 2 or now >= self._new_until:
            self._old, self._new = self._new, {}
            self._new_until = now + (self._within or 0)
        return self._new
