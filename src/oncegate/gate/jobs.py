"""Jobs: the events of one call on their way through the gate."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from oncegate.claims import About, Record
from oncegate.events import Event, Key
from oncegate.gate.leases import Lease
from oncegate.gate.outcome import Kind, Outcome


class Job:
    """One event to claim: what it is, then what is held for it, then what became of it."""

    __slots__ = ("event", "key", "lease", "outcome", "payload_hash", "started")

    def __init__(self, event: Event, key: Key, payload_hash: bytes) -> None:
        self.event = event
        self.key = key
        self.payload_hash = payload_hash
        self.lease: Lease | None = None
        self.started = False
        self.outcome: Outcome | None = None


class Copy:
    """An event that a job before it in the batch stands for."""

    def __init__(self, event: Event, first: Job) -> None:
        self._event = event
        self._first = first

    @property
    def outcome(self) -> Outcome | None:
        """A duplicate if the first was processed, else what the first has come to."""
        first, claimed = self._first.outcome, self._first.event
        if first is None:
            return None
        event = replace(self._event, key=claimed.key, attempt=claimed.attempt, fence=claimed.fence)
        if first.status != "processed":
            return replace(first, event=event)
        return Outcome("duplicate", event, first.key, "redelivery", first.result)


class Refused:
    """An event that is answered without asking the store."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome: Outcome | None = outcome


Item = Job | Copy | Refused


def coalesce(items: Iterable[Job | Refused]) -> list[Item]:
    """Let the first job of each key and content stand for its copies."""
    firsts: dict[tuple[bytes, bytes], Job] = {}
    coalesced: list[Item] = []
    for item in items:
        if isinstance(item, Job):
            first = firsts.setdefault((item.key.digest, item.payload_hash if item.key.binds else b""), item)
            coalesced.append(item if first is item else Copy(item.event, first))
        else:
            coalesced.append(item)
    return coalesced


def jobs_of(items: Sequence[Item]) -> list[Job]:
    return [item for item in items if isinstance(item, Job)]


def about(event: Event) -> About:
    occurred_at = None if event.occurred_at is None else int(event.occurred_at.timestamp() * 1_000_000)
    return About(event.source, event.type, event.entity, occurred_at, event.id)


def kind_of(event: Event, original: Record) -> Kind:
    """A copy under the original's id, or one that was emitted anew."""
    return "redelivery" if event.id == original.about.delivery_id else "re-emission"
