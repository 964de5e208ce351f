"""The completion cache holds recent completions, so that a burst of copies does not reach the store.

Only completions that the store has confirmed are cached. They are cached for a short time and never after they have
expired. An event with different content under a cached key is sent to the store. A redriven event does not use the
cache, because it is taken from the store and not claimed.
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

_MOST_COMPLETIONS: Final = 10_000
_LARGEST_RESULT: Final = 4_096  # bytes
_LARGEST_DOCUMENT: Final = 4_096


class _Completion(Struct, frozen=True, gc=False):
    """A record as it was granted, and its completion.

    `sent_at` is when the completion was sent. `until` is when the entry leaves the cache. Both are on the boot clock.
    `ahead` is the store's clock minus the boot clock. All are in microseconds. `document` is the delivered document;
    None if it is not cached."""

    until: int
    record: Record
    ahead: int
    complete: Complete
    sent_at: int
    document: bytes | None = None


class CompletionCache:
    """Completions by key. Each completion is cached for at most `remember` microseconds. `remember=None` switches the
    cache off.

    There are two dicts. When the new dict is full or old enough, it replaces the old dict, and a new dict is started.
    All entries of the old dict are dropped together, so no entry has to be evicted separately."""

    def __init__(self, remember: int | None, retention: int, boot: Clock) -> None:
        self._remember = remember
        self._longest = min(remember or 0, retention)
        self._boot = boot
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)
        self._new: dict[bytes, _Completion] = {}
        self._new_until = 0
        self._old: dict[bytes, _Completion] = {}

    def has_none_of(self, jobs: Sequence[Job]) -> bool:
        """Whether no job has a key in the cache. This is the usual case, and the check is fast."""
        if not (self._new or self._old):
            return True
        digests = [job.key.digest for job in jobs]
        return self._new.keys().isdisjoint(digests) and self._old.keys().isdisjoint(digests)

    def answer(self, job: Job) -> Outcome | None:
        """Returns the outcome of a duplicate; None if the job has to be claimed in the store."""
        cached = self._new.get(job.key.digest) or self._old.get(job.key.digest)
        if cached is None:
            return None
        record, complete, now = cached.record, cached.complete, self._boot()
        if now >= cached.until or record.payload_hash != job.payload_hash or is_handed_on(job, complete.handed_to):
            return None
        original = replace(
            record,
            state=COMPLETED,
            completed_at=record.completed_at or cached.sent_at + cached.ahead,
            result=complete.result,
            error=complete.error,
            handed_to=complete.handed_to,
        )
        result = None if complete.result is None else msgspec.json.decode(complete.result)
        at = now + cached.ahead
        kind = kind_of(job, original, at)
        return Outcome("duplicate", job.event, job.key, kind, result, complete.error, original, at)

    def document(self, job: Job) -> bytes | None:
        """Returns the document of the event that was completed under this job's key; None if it is not cached."""
        cached = self._new.get(job.key.digest) or self._old.get(job.key.digest)
        return None if cached is None else cached.document or None

    def add_settled(self, planned: Sequence[PlannedSettlement], sent_at: int) -> None:
        """Cache the completions among these settlements. They were sent at `sent_at`, and the store has accepted them.

        A document is used only to find the paths at which a conflict differs, so a large document is not cached. The
        document is cached as bytes. Bytes take a third of the memory of the parsed body, and the garbage collector does
        not have to traverse them."""
        if self._remember is None:
            return
        until = sent_at + self._longest
        with self._lock:
            completions = self._current(sent_at)
            for each in planned:
                complete = each.settlement
                if type(complete) is Complete and len(complete.result or b"") <= _LARGEST_RESULT:
                    lease, raw = each.job.lease, each.job.event.raw
                    record, ahead = lease.record, lease.granted_at - lease.held_since
                    if record.payload is not None:
                        record = replace(record, payload=None)
                    document = raw if len(raw) <= _LARGEST_DOCUMENT else None
                    completions[complete.key] = _Completion(until, record, ahead, complete, sent_at, document)

    def add_found(self, lease: Lease) -> None:
        """Cache the record of this lease if the record is completed. The record comes from the store's answer."""
        record = lease.record
        if len(record.result or b"") > _LARGEST_RESULT:
            return
        if self._remember is not None and record.completed_at is not None and record.expires_at is not None:
            retention = record.expires_at - lease.granted_at
            proof = (lease.namespace, lease.key, record.owner, record.fence)
            complete = Complete(*proof, retention, record.result, record.error, record.handed_to)
            sent_at = lease.held_since
            until = sent_at + min(self._remember, retention)
            with self._lock:
                completions = self._current(sent_at)
                completions[lease.key] = _Completion(until, record, lease.granted_at - sent_at, complete, sent_at)

    def _current(self, now: int) -> dict[bytes, _Completion]:
        """Returns the dict for new completions; starts a new dict if needed. The caller must hold the lock."""
        if len(self._new) >= _MOST_COMPLETIONS // 2 or now >= self._new_until:
            self._old, self._new = self._new, {}
            self._new_until = now + (self._remember or 0)
        return self._new
