"""A job: one event on its way through the gate, from its key to its claim to its outcome."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest, digest_of, is_lossless, written
from oncegate.claims import EventSummary, Record
from oncegate.clocks import Clock
from oncegate.durations import spoken
from oncegate.errors import MissingKey
from oncegate.events import Event, Key, StateChange
from oncegate.gate.leases import Lease
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.gate.outcome import Kind, Outcome
from oncegate.instances import owners
from oncegate.times import microseconds_of

# Genesys retries a delivery for up to 4 days, and EventBridge then retries its targets for one more.
_RETRIED_FOR: Final = 5 * 86_400_000_000
_NEVER: Final = 2**63
_LONGEST_TEXT: Final = 256  # characters
_NOT_YET: Final[Any] = None

_IMMUTABLE: Final = (str, int, float, bytes)
_NOT_COPIED: Final = "its result was not copied, because it is not a JSON value"

ANY_DESTINATION: Final = "*"  # it is not known here which handler runs the event; it may publish to any destination
HANDED_ON: Final = "handed_on"
CALL: Final = "call"  # the source of a job that is the call of a @gate.once function, not an event from outside
TOO_LATE: Final = "its lease ran out before the handler could start"
NO_TIME: Final = "too little time was left to start its handler"
NOT_ALONE: Final = "an earlier attempt did not return, so it runs alone, and other handlers ran for too long here"
STILL_RUNS: Final = "its handler still runs in this process"
NOT_STORED: Final = "and no copy could be stored"
NOT_STORABLE: Final = "it was made by hand and has no raw document to store; pass the delivered payload, or set raw"
NO_DOCUMENT: Final = "the event was made by hand, and its body is not a JSON value"


class Job(Struct, eq=False, gc=False):
    """One event to claim: what it is, then the claim on it, then its outcome.

    `lease` is set while the job is `held`, `outcome` once the job has one. `bury_reason` is why the event is buried
    instead of run, `unguarded` why it runs without a claim. `emission` is the event's own key if its state change is
    known under another key. A job that is `answered` is not claimed any more. `content_unbound`: the policy took the
    content out of what the key binds. The handler does not start from `start_by` on (boot clock). `run_now`: an event
    that is admitted may run here at once. `hands_to` is the destination that the handler publishes to. `carried` is
    the key under which the event was published, if that is not its own key. `published`: the event comes from a queue
    or a bus and says that a gate has put it there.

    Written by the claimer, the state-change resolver and the runners only. gc=False is safe: nothing that a job holds
    refers back to it.
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

    def may_start(self, now: int) -> bool:
        """Whether the handler of a held job may still start. The only statement of this rule."""
        return now < self.lease.valid_until and now < self.start_by and not self.lease.lost

    def late_reason(self, now: int) -> str:
        """Why a job that may not start any more did not start in time."""
        return TOO_LATE if self.lease.lost or now >= self.lease.valid_until else NO_TIME

    @property
    def runs_alone(self) -> bool:
        """Whether no other handler of this process may run meanwhile: the last attempt was never settled, so the event
        may have killed its worker. An event that is buried instead of run needs no such care."""
        return self.lease.record.lost > 0 and self.bury_reason is None

    @property
    def is_stored(self) -> bool:
        """Whether the store holds the event's payload and retries it."""
        return self.lease is not None and self.lease.record.payload is not None

    def failed(self, error: str, raised: str | None = None, retry_after: int | None = None) -> Outcome:
        return Outcome(
            "failed",
            self.event,
            self.key,
            error=error,
            raised=raised,
            retry_after=retry_after,
            stored=self.is_stored,
        )

    def not_run(self, error: str, kind: Kind | None = None) -> Outcome:
        return Outcome("in_flight", self.event, self.key, kind, error=error)


class UnguardedEvent:
    """An event without a key that runs all the same, and why."""

    key = None
    outcome: Outcome

    def __init__(self, event: Event, unguarded: str, refusal: Outcome) -> None:
        self.event = event
        self.unguarded = unguarded
        self.refusal = refusal


class RejectedEvent:
    """An event that has its outcome without the store."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class InBatchDuplicate:
    """A copy of a job that comes before it in the same batch."""

    def __init__(self, job: Job, first: Job) -> None:
        self.job = job
        self._first = first
        self.buried: Outcome | None = None  # set if the copy became a dead letter of its own

    @property
    def outcome(self) -> Outcome:
        """A duplicate if the first was processed or accepted, otherwise the outcome of the first."""
        if self.buried is not None:
            return self.buried
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
    """A copy of the result, as the store would return it; None and the reason if it is not a JSON value. With one
    shared object, a caller that changes one result would change all of them."""
    if result is None or isinstance(result, _IMMUTABLE):
        return result, None
    try:
        raw = msgspec.json.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None, _NOT_COPIED
    return (msgspec.json.decode(raw), None) if is_lossless(result, raw) else (None, _NOT_COPIED)


Identified = Job | UnguardedEvent | RejectedEvent
Item = Identified | InBatchDuplicate


class Batch:
    """The events of one call, in order. The first job with a key and content stands for its copies.

    `state_changes` are the jobs whose key depends on a state change; `resolve` finds the key under which the change is
    known."""

    def __init__(
        self, identified: Sequence[Identified], resolve: Callable[[Sequence[Job]], None] | None = None
    ) -> None:
        self.unclaimed: list[Job | UnguardedEvent] = []
        self.state_changes: list[Job] = []
        firsts = {
            item.key.digest: item
            for item in identified
            if type(item) is Job and not item.answered and item.key.change is None
        }
        if len(firsts) == len(identified):  # nearly always
            self.jobs = list(firsts.values())
            self.items: list[Item] = [*self.jobs]
            return
        self.state_changes = [item for item in identified if type(item) is Job and item.key.change is not None]
        if self.state_changes and resolve is not None:
            resolve(self.state_changes)
        self._coalesce(identified)

    def _coalesce(self, identified: Sequence[Identified]) -> None:
        self.items, self.jobs = [], []
        self._by_content: dict[tuple[bytes, bytes], Job] = {}
        firsts: dict[bytes, Job] = {}
        for item in identified:
            if type(item) is Job and not item.answered:
                first = firsts.setdefault(item.key.digest, item)
                if first is item:
                    self.items.append(item)
                    self.jobs.append(item)
                else:
                    self._add_copy(item, first)
            else:
                self.items.append(item)
                if type(item) is not RejectedEvent:
                    self.unclaimed.append(item)  # type: ignore[arg-type]  # an answered job or an unguarded event

    def _add_copy(self, job: Job, first: Job) -> None:
        """A copy of the first job with its key. If the key binds content and the content differs, the job goes to the
        store, which answers Conflict."""
        if job.key.binds and job.payload_hash != first.payload_hash:
            first = self._by_content.setdefault((job.key.digest, job.payload_hash), job)
        if first is job:
            self.items.append(job)
            self.jobs.append(job)
        else:
            self.items.append(InBatchDuplicate(job, first))

    @property
    def outcomes(self) -> list[Outcome]:
        return [item.outcome for item in self.items]


# ── from an event to a job ────────────────────────────────────────────────────────────────────────────────


class Identifier:
    """Gives an event its key, by the policies that need no store."""

    def __init__(self, key: Callable[[Event], Any], config: GateConfig, wall: Clock, observers: Observers) -> None:
        self._key = keys.strategy(key)
        self._config = config
        self._wall = wall
        self._observers = observers

    @property
    def by_webhook_id(self) -> bool:
        """Whether only signed Standard Webhooks have a key."""
        return self._key is keys.webhook_id

    def __call__(self, event: Event, *, trusted: bool = False) -> Identified:
        """`trusted`: the event comes from a queue or a bus, and the key that it was published under is believed."""
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
        except Exception as error:  # noqa: BLE001  # a user's key function must not fail the rest of the batch
            raised = f"its key function raised {type(error).__name__}"
            return self._without_key(event, f"{raised}: {error}", raised)
        if event.evidence.replay is not None:
            key = self._replayed(event, key, event.evidence.replay)
        try:
            payload_hash = keys.content_hash(event)
        except (TypeError, ValueError, RecursionError) as error:  # an event made by hand
            return RejectedEvent(Outcome("invalid", event, key, error=f"its body is not a JSON value ({error})"))
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
        """With on_replay="run", a replayed event is an event of its own, once for each replay name."""
        self._observers.notify("policy.replay", event, key, detail=self._config.on_replay)
        if self._config.on_replay == "duplicate":
            return key
        own = keys.make("replay", event, [str(key), replay], binds=key.binds)
        return own if key.change is None else replace(own, change=_in_replay(key.change, replay))

    def _too_old(self, event: Event) -> str | None:
        """Why an event older than `max_age` is not run; None if it runs."""
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
    """The same change on a timeline of its replay, so that replayed changes merge as they did the first time."""
    return replace(change, timeline=digest_of(("replay", change.timeline.hex(), replay)))


def storable(identified: Sequence[Identified]) -> list[Job | RejectedEvent]:
    """Jobs that the store can hold. An event that may run without a key gets a random key. An event that was made by
    hand is refused: the store would have no document to read it from again."""
    return [item if type(item) is Job and item.event.raw else _made_storable(item) for item in identified]


def _made_storable(item: Identified) -> Job | RejectedEvent:
    if isinstance(item, RejectedEvent):
        return item
    if isinstance(item, UnguardedEvent):
        (random,) = owners(1)
        key = keys.make("unguarded", item.event, [random.hex()], binds=False)
        job = Job(item.event, key, digest(item.event.raw))
    else:
        job = item
    return job if job.event.raw else RejectedEvent(Outcome("invalid", job.event, job.key, error=NOT_STORABLE))


# ── publishing: the next stage of an event ────────────────────────────────────────────────────────────────


def set_destination(destination: str | None, items: Sequence[Identified]) -> Sequence[Identified]:
    """Note on each job where its handler publishes to; `ANY_DESTINATION` if that is not known."""
    if destination is not None:
        for item in items:
            if type(item) is Job:
                item.hands_to = destination
    return items


def is_handed_on(job: Job, destination: str | None) -> bool:
    """Whether a completed record under the job's key belongs to the stage before: that stage published the event to
    `destination`, and this job received it from there. A job whose own handler publishes to that destination, or to
    one that is not known, is a duplicate instead."""
    return destination is not None and job.hands_to not in (destination, ANY_DESTINATION)


def stage(key: Key, destination: str) -> Key:
    """The key of an event after it was published to a destination. No other wrapping changes it."""
    return Key(stage_digest(key.digest, destination), HANDED_ON, (str(key), destination), key.binds)


def stage_digest(key: bytes, destination: str) -> bytes:
    return digest_of((HANDED_ON, key.hex(), destination))


# ── what records say about an event ───────────────────────────────────────────────────────────────────────


def summary_of(event: Event) -> EventSummary:
    occurred_at = None if event.occurred_at is None else microseconds_of(event.occurred_at)
    kind, entity, delivery = event.type, event.entity, event.id or event.evidence.message_id
    if kind and len(kind) > _LONGEST_TEXT:
        kind = shortened(kind)
    if entity and len(entity) > _LONGEST_TEXT:
        entity = shortened(entity)
    if delivery and len(delivery) > _LONGEST_TEXT:
        delivery = shortened(delivery)
    return EventSummary(event.source, kind, entity, occurred_at, delivery)


def is_call_reason(summary: EventSummary) -> str | None:
    """Why no handler may run a stored record that is a @gate.once call: only its callers can run the function."""
    if summary.type is None or summary != EventSummary(CALL, summary.type):
        return None
    return f"it is a call of {summary.type}, which only its callers can run; drop it, and the next call runs"


def document(event: Event) -> bytes | None:
    """What to store of an event: the delivered document, or the body as JSON if the event was made by hand; None if
    that is not a JSON value."""
    if event.raw or event.problem is not None:
        return event.raw
    try:
        return written(event.body)
    except ValueError:
        return None


def delivery_id_of(event: Event) -> str | None:
    """What a second delivery of the same event has again: the event's id, or the id of its message."""
    return shortened(event.id or event.evidence.message_id)


def shortened(text: str | None) -> str | None:
    """A text of an event as records hold it. Stores cannot sort or hold text of any length, so a text longer than any
    real id is cut and gets its hash as a suffix."""
    if text is None or len(text) <= _LONGEST_TEXT:
        return text
    hashed = digest(text.encode(errors="surrogatepass")).hex()
    return f"{text[: _LONGEST_TEXT - len(hashed) - 1]}…{hashed}"


# ── why a duplicate exists ────────────────────────────────────────────────────────────────────────────────


def kind_of(job: Job, original: Record, at: int) -> Kind:
    """The kind of a duplicate that arrives at this time. After the time in which senders and buses retry, it comes from
    an archive, whether it says so or not."""
    if at - original.first_seen > _RETRIED_FOR:
        return "replay"
    same = job.payload_hash == original.payload_hash
    return kind_by_evidence(job.event, job.key, original.about.delivery_id, same_content=same)


def kind_by_evidence(event: Event, key: Key, original: str | None, *, same_content: bool) -> Kind:
    """The kind of a duplicate whose original came with the delivery id `original`."""
    if event.evidence.replay is not None:
        return "replay"
    if key.change is not None and not same_content:
        return "state-echo"
    delivery_id, evidence = delivery_id_of(event), event.evidence
    if delivery_id is None and evidence.receive_count == 1 and evidence.request_id is None:
        return "re-emission"  # the broker gives no id, but says that it delivers this message for the first time
    return "redelivery" if delivery_id == original and (same_content or delivery_id is not None) else "re-emission"
