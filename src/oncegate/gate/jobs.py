"""Jobs: the events of one call on their way through the gate."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from oncegate.claims import About, Record
from oncegate.events import Event, Key
from oncegate.gate.leases import Lease
from oncegate.gate.outcome import Kind, Outcome


class Job:
    """One event to claim: what it is, then what is held for it, then what became of it.

    `lease` is there while it is `held`. `hopeless` is why it is buried instead of run, `unguarded` why it runs without
    a claim.
    """

    __slots__ = ("event", "held", "hopeless", "key", "lease", "outcome", "payload_hash", "started", "unguarded")

    lease: Lease

    def __init__(self, event: Event, key: Key, payload_hash: bytes, hopeless: str | None = None) -> None:
        self.event = event
        self.key = key
        self.payload_hash = payload_hash
        self.hopeless = hopeless
        self.held = False
        self.started = False
        self.unguarded: str | None = None
        self.outcome: Outcome | None = None


class Bare:
    """An event without a key that is to run all the same, and why."""

    key = None

    def __init__(self, event: Event, unguarded: str, refusal: Outcome) -> None:
        self.event = event
        self.unguarded: str | None = unguarded
        self.refusal = refusal
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
        return Outcome("duplicate", event, first.key, kind_of_copy(event), first.result)


class Refused:
    """An event that is answered without asking the store."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome: Outcome | None = outcome


Identified = Job | Bare | Refused
Item = Identified | Copy

_Kind = TypeVar("_Kind")


def coalesce(items: Iterable[Identified]) -> list[Item]:
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


def only(kind: type[_Kind], items: Sequence[Item]) -> list[_Kind]:
    return [item for item in items if isinstance(item, kind)]


def about(event: Event) -> About:
    occurred_at = None if event.occurred_at is None else int(event.occurred_at.timestamp() * 1_000_000)
    return About(event.source, event.type, event.entity, occurred_at, event.id)


def kind_of(event: Event, original: Record) -> Kind:
    """A replay, a copy under the original's id, or one that was emitted anew."""
    if event.evidence.replay is not None:
        return "replay"
    return "redelivery" if event.id == original.about.delivery_id else "re-emission"


def kind_of_copy(event: Event) -> Kind:
    return "replay" if event.evidence.replay is not None else "redelivery"
