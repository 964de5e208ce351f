"""Jobs: the events of one call on their way through the gate."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest, digest_of, told_apart, written
from oncegate.claims import EventSummary, Record
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import MissingKey
from oncegate.events import Event, Key, StateChange
from oncegate.gate.leases import Lease
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Kind, Outcome
from oncegate.times import microseconds_of

# Genesys hands an event over for up to 4 days, and EventBridge then tries its targets for one more.
_RETRIED_FOR: Final = 5 * 86_400_000_000
_NEVER: Final = 2**63
_LONGEST: Final = 256  # characters
_NOT_YET: Final[Any] = None

_IMMUTABLE: Final = (str, int, float, bytes)
_NOT_COPIED: Final = "its result was not copied, because it is no JSON value"

ANYWHERE: Final = "*"  # in place of a place: what runs the event is not known here, and may publish it to any
HANDED_ON: Final = "handed_on"
CALL: Final = "call"  # the source of what is no event from outside but the call of a guarded function
TOO_LATE: Final = "its lease ran out before the handler could start"
NO_TIME: Final = "too little time was left to start its handler"
NOT_ALONE: Final = "an earlier attempt did not come back, so it runs alone, and other handlers ran for too long here"
STILL_RUNS: Final = "its handler still runs in this process"
NOT_KEPT: Final = "and no copy could be kept"
NO_DOCUMENT: Final = "it was made by hand, and its body is no JSON value"


class Job(Struct, eq=False, gc=False):
    """One event to claim: what it is, then what is held for it, then what became of it.

    `lease` is set while the job is `held`, `outcome` once the job has one. `bury_reason` is why the event is buried
    instead of run, `unguarded` why it runs without a claim. `emission` is the event's own key if its state change is
    known under another key. A job that is `answered` is not claimed any more. `content_unbound`: the policy took the
    content out of what the key binds. The handler does not start from `start_by` on (boot clock). `run_now`: an event
    that is admitted may run here at once. `hands_to` is the place that the handler publishes to. `carried` is the key
    under which the event was published, if that is not its own key. `published`: the event comes from a queue or a bus
    and says that a gate has put it there.
    gc=False is safe: nothing that a job holds refers back to it.
    """

    event: Event
    key: Key
    payload_hash: bytes
    bury_reason: str | None = None
    emission: Key | None = None
    answered: bool = False
    content_unbound: bool = False
    held: bool = False
    start_by: int = _NEVER
    run_now: bool = False
    started: bool = False
    unguarded: str | None = None
    hands_to: str | None = None
    carried: bytes | None = None
    published: bool = False
    lease: Lease = _NOT_YET
    outcome: Outcome = _NOT_YET

    def too_late(self, now: int) -> str | None:
        """Why its handler may no longer start, None if it may. It holds a lease."""
        lease = self.lease
        if lease.lost or now >= lease.valid_until:
            return TOO_LATE
        return NO_TIME if now >= self.start_by else None


def runs_alone(job: Job) -> bool:
    """Whether a grant must run while no other handler of its process does: its last attempt was never settled, so it
    may have killed its worker. One that is buried instead of run needs no such care."""
    return job.lease.record.lost > 0 and job.bury_reason is None


class UnguardedEvent:
    """An event without a key that is to run all the same, and why."""

    key = None
    outcome: Outcome

    def __init__(self, event: Event, unguarded: str, refusal: Outcome) -> None:
        self.event = event
        self.unguarded = unguarded
        self.refusal = refusal


class InBatchDuplicate:
    """An event that a job before it in the batch stands for."""

    def __init__(self, job: Job, first: Job) -> None:
        self.job = job
        self._first = first
        self.kept: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """A duplicate if the first was processed or accepted, else what the first has come to; unless it was kept by
        itself."""
        if self.kept is not None:
            return self.kept
        first, claimed = self._first.outcome, self._first.event
        event = replace(self.job.event, key=claimed.key, attempt=claimed.attempt, fence=claimed.fence)
        result, lost = _copied(first.result)
        if first.status not in ("processed", "accepted"):
            return replace(first, event=event, result=result)
        return Outcome("duplicate", event, first.key, self._kind(), result, lost)

    def _kind(self) -> Kind:
        same = self.job.payload_hash == self._first.payload_hash
        return kind_by_evidence(self.job.event, self.job.key, delivery_id_of(self._first.event), same_content=same)


def _copied(result: Any) -> tuple[Any, str | None]:
    """The result for another outcome, as the store would give it back; none, and why, if JSON cannot say it. Were it
    the same object, a caller that changes one would change all."""
    if result is None or isinstance(result, _IMMUTABLE):
        return result, None
    try:
        raw = msgspec.json.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None, _NOT_COPIED
    return (msgspec.json.decode(raw), None) if told_apart(result, raw) else (None, _NOT_COPIED)


class RejectedEvent:
    """An event that is answered without asking the store."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


Identified = Job | UnguardedEvent | RejectedEvent
Item = Identified | InBatchDuplicate


def handed_to(place: str | None, items: Sequence[Identified]) -> Sequence[Identified]:
    """The same, to be run by a handler that publishes to this place, if it does; `ANYWHERE` if that is not known."""
    if place is not None:
        for item in items:
            if type(item) is Job:
                item.hands_to = place
    return items


def is_handed_on(job: Job, place: str | None) -> bool:
    """Whether a completed record with the job's key is of the stage before: it was published to a place, and this is
    what comes out there. Who publishes to that place itself has a duplicate before it; and so has who does not know
    what will run the event."""
    return place is not None and job.hands_to not in (place, ANYWHERE)


def stage(key: Key, place: str) -> Key:
    """The key of an event where it was handed on to. It is made of nothing that another wrapping could change."""
    return Key(stage_digest(key.digest, place), HANDED_ON, (str(key), place), key.binds)


def stage_digest(key: bytes, place: str) -> bytes:
    return digest_of((HANDED_ON, key.hex(), place))


class Batch:
    """The events of one call, in order. The first job of each key and content stands for its copies.

    Those that tell of a state's change are `echoing`; `resolve` gives them the key under which it is known, if they
    have not got it yet."""

    def __init__(
        self, identified: Sequence[Identified], resolve: Callable[[Sequence[Job]], None] | None = None
    ) -> None:
        self.bare: list[Job | UnguardedEvent] = []
        self.echoing: list[Job] = []
        firsts = {
            item.key.digest: item
            for item in identified
            if type(item) is Job and not item.answered and item.key.change is None
        }
        if len(firsts) == len(identified):  # as nearly always
            self.jobs = list(firsts.values())
            self.items: list[Item] = [*self.jobs]
            return
        self.echoing = [item for item in identified if type(item) is Job and item.key.change is not None]
        if self.echoing and resolve is not None:
            resolve(self.echoing)
        self._coalesce(identified)

    def _coalesce(self, identified: Sequence[Identified]) -> None:
        self.items, self.jobs = [], []
        self._others: dict[tuple[bytes, bytes], Job] = {}
        firsts: dict[bytes, Job] = {}
        for item in identified:
            if type(item) is Job and not item.answered:
                first = firsts.setdefault(item.key.digest, item)
                if first is item:
                    self.items.append(item)
                    self.jobs.append(item)
                else:
                    self._add_again(item, first)
            else:
                self.items.append(item)
                if type(item) is not RejectedEvent:
                    self.bare.append(item)  # type: ignore[arg-type]  # a job that is answered, or a bare event

    def _add_again(self, job: Job, first: Job) -> None:
        """A copy of the first with its key; or of another, if what the key binds is another content."""
        if job.key.binds and job.payload_hash != first.payload_hash:
            first = self._others.setdefault((job.key.digest, job.payload_hash), job)
        if first is job:
            self.items.append(job)
            self.jobs.append(job)
        else:
            self.items.append(InBatchDuplicate(job, first))

    @property
    def outcomes(self) -> list[Outcome]:
        return [item.outcome for item in self.items]


def summary_of(event: Event) -> EventSummary:
    occurred_at = None if event.occurred_at is None else microseconds_of(event.occurred_at)
    kind, entity, delivery = event.type, event.entity, event.id or event.evidence.message_id
    if kind and len(kind) > _LONGEST:
        kind = shortened(kind)
    if entity and len(entity) > _LONGEST:
        entity = shortened(entity)
    if delivery and len(delivery) > _LONGEST:
        delivery = shortened(delivery)
    return EventSummary(event.source, kind, entity, occurred_at, delivery)


def is_call_reason(about: EventSummary) -> str | None:
    """Why no handler may run what the store holds, if it is a call: it would pass for what the function does."""
    if about.type is None or about != EventSummary(CALL, about.type):
        return None
    return f"it is a call of {about.type}, which only its callers can run; drop it, and the next call runs"


def document(event: Event) -> bytes | None:
    """What to keep of an event: its document as it came; of one that was made by hand, what it says, as JSON. None if
    that is no JSON value."""
    if event.raw or event.problem is not None:
        return event.raw
    try:
        return written(event.body)
    except ValueError:
        return None


def delivery_id_of(event: Event) -> str | None:
    """What a second arrival of the same thing has again: the event's id, else that of the message it came in."""
    return shortened(event.id or event.evidence.message_id)


def shortened(text: str | None) -> str | None:
    """A text of an event as records have it. Stores can neither sort nor keep one of any length: what no id or name is
    as long as is cut, and told from others that begin alike by its hash."""
    if text is None or len(text) <= _LONGEST:
        return text
    hashed = digest(text.encode(errors="surrogatepass")).hex()
    return f"{text[: _LONGEST - len(hashed) - 1]}…{hashed}"


def kind_of(job: Job, original: Record, at: int) -> Kind:
    """The kind of a duplicate that comes at this time. What is long past the time in which senders and buses try again
    was sent anew from an archive, whether it says so or not."""
    if at - original.first_seen > _RETRIED_FOR:
        return "replay"
    same = job.payload_hash == original.payload_hash
    return kind_by_evidence(job.event, job.key, original.about.delivery_id, same_content=same)


def kind_by_evidence(event: Event, key: Key, original: str | None, *, same_content: bool) -> Kind:
    """A replay, another emission of the same change, a copy under the original's id, or one that was emitted anew, as
    all was that has no id and says something else."""
    if event.evidence.replay is not None:
        return "replay"
    if key.change is not None and not same_content:
        return "state-echo"
    arrived, evidence = delivery_id_of(event), event.evidence
    if arrived is None and evidence.receive_count == 1 and evidence.request_id is None:
        return "re-emission"  # a broker that gives no id, but says that it has not delivered this message before
    return "redelivery" if arrived == original and (same_content or arrived is not None) else "re-emission"


# Identifying: from an event to a job with its key, by the policies that need no store.


class Identifier:
    def __init__(self, key: Callable[[Event], Any], config: GateConfig, wall: Clock, observers: Observers) -> None:
        self._key = keys.strategy(key)
        self._config = config
        self._wall = wall
        self._observers = observers

    @property
    def by_webhook_id(self) -> bool:
        """Whether only what came in a signed Standard Webhook has a key."""
        return self._key is keys.webhook_id

    def __call__(self, event: Event, *, trusted: bool = False) -> Identified:
        """`trusted`: it comes from a queue or a bus, whose word is taken for the key that it was published under."""
        if event.problem is not None:
            return RejectedEvent(Outcome("invalid", event, error=event.problem))
        if event.frame is not None:
            return RejectedEvent(Outcome("skipped", event, error=event.frame))
        carried = event.evidence.handed_key if trusted else None
        try:
            key = self._key(event)
        except MissingKey as error:
            if carried is None:
                return self._without_key(event, str(error), None)
            key, carried = Key(bytes.fromhex(carried), HANDED_ON, (carried,)), None
        except Exception as error:  # noqa: BLE001  # the key function is the user's: refuse this event, not the batch
            name = type(error).__name__
            return self._without_key(
                event, f"its key function raised {name}: {error}", f"its key function raised {name}"
            )
        if event.evidence.replay is not None:
            key = self._replayed(event, key, event.evidence.replay)
        try:
            payload_hash = keys.content_hash(event)
        except (TypeError, ValueError, RecursionError) as error:  # of what was made by hand
            return RejectedEvent(Outcome("invalid", event, key, error=f"its body is no JSON value ({error})"))
        too_old = None if self._config.max_age is None else self._too_old(event)
        job = Job(event, key, payload_hash, too_old)
        if carried is not None and carried != str(key):
            job.carried = bytes.fromhex(carried)
        job.published = trusted and event.evidence.handed_key is not None
        if self._config.on_conflict == "duplicate" and job.key.binds:
            job.key, job.content_unbound = replace(job.key, binds=False), True
        return job

    def _without_key(self, event: Event, error: str, raised: str | None) -> UnguardedEvent | RejectedEvent:
        self._observers.notify("policy.missing_key", event, detail=self._config.on_missing_key)
        too_old = self._too_old(event)
        refusal = Outcome("invalid", event, error=f"{error}; and {too_old}" if too_old else error, raised=raised)
        if self._config.on_missing_key == "refuse" or too_old is not None:
            return RejectedEvent(refusal)
        return UnguardedEvent(event, error, refusal)

    def _replayed(self, event: Event, key: Key, replay: str) -> Key:
        """A replay that shall run is an event of its own, once for each name under which it was replayed."""
        self._observers.notify("policy.replay", event, key, detail=self._config.on_replay)
        if self._config.on_replay == "duplicate":
            return key
        own = keys.make("replay", event, [str(key), replay], binds=key.binds)
        return own if key.change is None else replace(own, change=_in_replay(key.change, replay))

    def _too_old(self, event: Event) -> str | None:
        """Why not to run an event that is older than what is remembered; None to run it."""
        longest = self._config.max_age
        if longest is None or event.occurred_at is None:
            return None
        age = self._wall() - microseconds_of(event.occurred_at)
        if age <= longest:
            return None
        self._observers.notify("policy.too_old", event, detail=self._config.on_too_old)
        if self._config.on_too_old == "run":
            return None
        return f"it happened {spoken(age)} ago, and max_age is {spoken(longest)}: it may have been processed before"


def _in_replay(change: StateChange, replay: str) -> StateChange:
    """The same change in a timeline of the replay's own: what is replayed is told apart as it was the first time."""
    return replace(change, timeline=digest_of(("replay", change.timeline.hex(), replay)))
