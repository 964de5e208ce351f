"""A job is one event on its way through the gate: it gets a key, then a claim, then an outcome."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest, digest_of, is_lossless, written
from oncegate.claims import EventSummary, Record, matches_content
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

# Genesys retries a delivery for up to 4 days. After that, EventBridge retries its targets for up to 1 day.
_RETRIED_FOR: Final = 5 * 86_400_000_000
_NEVER: Final = 2**63
_LONGEST_TEXT: Final = 256  # characters
_NOT_YET: Final[Any] = None

_IMMUTABLE: Final = (str, int, float, bytes)
_NOT_COPIED: Final = "its result was not copied, because it is not a JSON value"

ANY_DESTINATION: Final = "*"  # the handler is not known here; it may publish to any destination
HANDED_ON: Final = "handed_on"
CALL: Final = "call"  # the source of an event that is a call of a @gate.once function
TOO_LATE: Final = "its lease ran out before the handler could start"
NO_TIME: Final = "too little time was left to start its handler"
NOT_ALONE: Final = "an earlier attempt did not return, so it runs alone, and other handlers ran for too long here"
STILL_RUNS: Final = "its handler still runs in this process"
NOT_STORED: Final = "and no copy could be stored"
NOT_STORABLE: Final = "it was made by hand and has no raw document to store; pass the delivered payload, or set raw"
NO_DOCUMENT: Final = "the event was made by hand, and its body is not a JSON value"


class Job(Struct, eq=False, gc=False):
    """One event to claim, with its key, its claim and its outcome.

    `lease` is set while the job is `held`. `outcome` is set when the outcome is known. `bury_reason` is why the event
    is buried instead of run. `unguarded` is why the event runs without a claim. `emission` is the key computed from
    this event, if the state change of the event is known under another key; `key` is then that other key. A job that is
    `answered` is not claimed any more. `content_unbound` means that the key would bind the content, but
    on_conflict="duplicate" switched this off. `start_by` is the time (boot clock) from which the handler must not start
    any more. `run_now` means that an admitted event may run here at once. `hands_to` is the destination that the
    handler publishes to. `carried` is the key under which the event was published, if this differs from the computed
    key. `published` means that the event comes from a queue or a bus, and that its data says that a gate published it.
    `marked_for` is set if earlier code has processed the event (see the option `previous`). It is the time, in
    microseconds, for which that code still remembers the event; 0 if that code never forgets the event.
    `took` is how long the handler ran, in microseconds.

    Only the claimer, the state-change resolver and the runners write these fields. gc=False is safe because no object
    in a job refers back to the job.
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
    marked_for: int | None = None
    took: int | None = None
    lease: Lease = _NOT_YET
    outcome: Outcome = _NOT_YET

    def may_start(self, now: int) -> bool:
        """Whether the handler of a held job may still start. This is the only definition of this rule."""
        return now < self.lease.valid_until and now < self.start_by and not self.lease.lost

    def late_reason(self, now: int) -> str:
        """Returns why the handler of a job did not start in time. Only for a job that may not start any more."""
        return TOO_LATE if self.lease.lost or now >= self.lease.valid_until else NO_TIME

    @property
    def runs_alone(self) -> bool:
        """Whether no other handler of this process may run while this job runs. This is the case if the last attempt
        was never settled, because the event may have killed its worker. An event that is buried instead of run does not
        have to run alone."""
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
            took=self.took,
        )

    def not_run(self, error: str, kind: Kind | None = None) -> Outcome:
        return Outcome("in_flight", self.event, self.key, kind, error=error)


class UnguardedEvent:
    """An event without a key that runs without a claim. `unguarded` is the reason. `refusal` is the outcome if the
    event must be refused instead."""

    key = None
    took: int | None = None
    outcome: Outcome

    def __init__(self, event: Event, unguarded: str, refusal: Outcome) -> None:
        self.event = event
        self.unguarded = unguarded
        self.refusal = refusal


class RejectedEvent:
    """An event whose outcome is known without a call to the store."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class InBatchDuplicate:
    """A job that is a copy of an earlier job in the same batch."""

    def __init__(self, job: Job, first: Job) -> None:
        self.job = job
        self._first = first
        self.buried: Outcome | None = None  # set if the copy became a separate dead letter

    @property
    def outcome(self) -> Outcome:
        """A duplicate if the first job was processed or accepted, otherwise the outcome of the first job."""
        if self.buried is not None:
            return self.buried
        first, claimed = self._first.outcome, self._first.event
        event = replace(self.job.event, key=claimed.key, attempt=claimed.attempt, fence=claimed.fence)
        result, lost = _copied(first.result)
        if first.status not in ("processed", "accepted"):
            return replace(first, event=event, result=result, took=None)
        return Outcome("duplicate", event, first.key, self._kind(), result, lost)

    def _kind(self) -> Kind:
        same = self.job.payload_hash == self._first.payload_hash
        return kind_by_evidence(self.job.event, self.job.key, delivery_id_of(self._first.event), same_content=same)


def _copied(result: Any) -> tuple[Any, str | None]:
    """Returns a copy of the result, as the store would return it. If the result is not a JSON value, returns None and
    the reason. If the outcomes shared one object, a caller that changes one result would change all results."""
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
    """The events of one call, in order. Only the first job with a certain key and content is claimed. Later jobs with
    the same key and content are its copies.

    `state_changes` are the jobs whose key depends on a state change. `resolve` finds the key under which the state
    change is known."""

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
        """Add a job that has the same key as the earlier job `first`. If the key binds content and the content differs,
        the job is not a copy: it is sent to the store, which answers Conflict."""
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
    """Computes the key of an event, and applies the policies that do not need the store."""

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
        """Returns the job for this event, or an unguarded or rejected event. `trusted` means that the event comes from
        a queue or a bus: the key under which the event says that it was published is accepted."""
        if event.problem is not None:
            return RejectedEvent(Outcome("invalid", event, error=event.problem))
        if event.frame is not None:
            return RejectedEvent(Outcome("skipped", event, error=event.frame))
        carried = event.evidence.handed_key if trusted else None
        try:
            key = self._key(event)
        except Exception as error:  # noqa: BLE001  # a user's key function must not fail the rest of the batch
            if carried is None:
                return self._without_key(event, error)
            key, carried = Key(bytes.fromhex(carried), HANDED_ON, (carried,)), None
        if event.evidence.replay is not None:
            key = self._replayed(event, key, event.evidence.replay)
        try:
            payload_hash = keys.content_hash(event)
        except (TypeError, ValueError, RecursionError) as error:  # the caller made the Event object
            return RejectedEvent(Outcome("invalid", event, key, error=f"its body is not a JSON value ({error})"))
        too_old = None if self._config.max_age is None else self._too_old(event)
        job = Job(event, key, payload_hash, too_old)
        if carried is not None and carried != str(key):
            job.carried = bytes.fromhex(carried)
        job.published = trusted and event.evidence.handed_key is not None
        if self._config.on_conflict == "duplicate" and job.key.binds:
            job.key, job.content_unbound = replace(job.key, binds=False), True
        return job

    def _without_key(self, event: Event, missing: Exception) -> UnguardedEvent | RejectedEvent:
        error, raised = str(missing), None
        if not isinstance(missing, MissingKey):
            raised = f"its key function raised {type(missing).__name__}"
            error = f"{raised}: {missing}"
        self._observers.notify("policy.missing_key", event, detail=self._config.on_missing_key)
        too_old = self._too_old(event)
        refusal = Outcome("invalid", event, error=f"{error}; and {too_old}" if too_old else error, raised=raised)
        if self._config.on_missing_key == "refuse" or too_old is not None:
            return RejectedEvent(refusal)
        return UnguardedEvent(event, error, refusal)

    def _replayed(self, event: Event, key: Key, replay: str) -> Key:
        """Returns the key of a replayed event. With on_replay="run", the event gets a separate key for each replay
        name, so it runs once for each replay."""
        self._observers.notify("policy.replay", event, key, detail=self._config.on_replay)
        if self._config.on_replay == "duplicate":
            return key
        replay_key = keys.make("replay", event, [str(key), replay], binds=key.binds)
        return replay_key if key.change is None else replace(replay_key, change=_in_replay(key.change, replay))

    def _too_old(self, event: Event) -> str | None:
        """Returns why an event older than `max_age` is not run; None if the event runs. Notifies observers of each
        event that is too old."""
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
    """Returns the same state change on a separate timeline for this replay, so that replayed emissions are merged in
    the same way as the first time."""
    return replace(change, timeline=digest_of(("replay", change.timeline.hex(), replay)))


def storable(identified: Sequence[Identified]) -> list[Job | RejectedEvent]:
    """Returns jobs that the store can hold. An event that may run without a key gets a random key. An Event object that
    the caller made without a `raw` document is refused, because the stored event could not be read again."""
    return [item if type(item) is Job and item.event.raw else _made_storable(item) for item in identified]


def with_random_key(item: UnguardedEvent) -> Job:
    """Returns a job for an event that may run without a key. Another copy of the event gets another key."""
    (random,) = owners(1)
    key = keys.make("unguarded", item.event, [random.hex()], binds=False)
    return Job(item.event, key, digest(item.event.raw))


def _made_storable(item: Identified) -> Job | RejectedEvent:
    if isinstance(item, RejectedEvent):
        return item
    job = with_random_key(item) if isinstance(item, UnguardedEvent) else item
    return job if job.event.raw else RejectedEvent(Outcome("invalid", job.event, job.key, error=NOT_STORABLE))


# ── publishing: the next stage of an event ────────────────────────────────────────────────────────────────


def set_destination(destination: str | None, items: Sequence[Identified]) -> Sequence[Identified]:
    """Set `hands_to` of each job to the destination that its handler publishes to; `ANY_DESTINATION` if the destination
    is not known. Returns the items."""
    if destination is not None:
        for item in items:
            if type(item) is Job:
                item.hands_to = destination
    return items


def is_handed_on(job: Job, destination: str | None) -> bool:
    """Whether a completed record under the job's key belongs to the previous stage. The previous stage published the
    event to `destination`, and this job received the event from there. If the handler of this job publishes to the same
    destination, or its destination is not known, the job is a duplicate instead."""
    return destination is not None and job.hands_to not in (destination, ANY_DESTINATION)


def stage(key: Key, destination: str) -> Key:
    """Returns the key of an event after it was published to a destination. Other wrappings of the event do not change
    this key."""
    return Key(stage_digest(key.digest, destination), HANDED_ON, (str(key), destination), key.binds)


def is_stage(key: Key) -> bool:
    """Whether `stage` has made this key: a gate with the same store and namespace has published the event."""
    return key.strategy == HANDED_ON and len(key.parts) > 1


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
    """Returns why no handler may run this stored record: it is a @gate.once call, and only its callers can run the
    function. Returns None if the record is not such a call."""
    if summary.type is None or summary != EventSummary(CALL, summary.type):
        return None
    return f"it is a call of {summary.type}, which only its callers can run; drop it, and the next call runs"


def document(event: Event) -> bytes | None:
    """Returns the bytes to store for an event: the delivered document, or the body as JSON if the caller made the Event
    object. Returns None if this body is not a JSON value."""
    if event.raw or event.problem is not None:
        return event.raw
    try:
        return written(event.body)
    except ValueError:
        return None


def delivery_id_of(event: Event) -> str | None:
    """Returns the id that is the same in every delivery of the event: the event's id, or the id of its message."""
    return shortened(event.id or event.evidence.message_id)


def shortened(text: str | None) -> str | None:
    """Returns a text of an event in the form that records store. Stores cannot sort or hold text of unlimited length.
    So a text that is longer than any real id is cut, and its hash is added as a suffix."""
    if text is None or len(text) <= _LONGEST_TEXT:
        return text
    hashed = digest(text.encode(errors="surrogatepass")).hex()
    return f"{text[: _LONGEST_TEXT - len(hashed) - 1]}…{hashed}"


# ── why a duplicate exists ────────────────────────────────────────────────────────────────────────────────


def kind_of(job: Job, original: Record, at: int) -> Kind:
    """Returns the kind of a duplicate that arrives at the time `at`. Senders and buses retry only for a limited time. A
    duplicate that arrives later comes from an archive, even if its data does not say so."""
    if at - original.first_seen > _RETRIED_FOR:
        return "replay"
    same = matches_content(original, job.payload_hash)
    return kind_by_evidence(job.event, job.key, original.about.delivery_id, same_content=same)


def kind_by_evidence(event: Event, key: Key, original: str | None, *, same_content: bool) -> Kind:
    """Returns the kind of a duplicate. `original` is the delivery id of the original event."""
    if event.evidence.replay is not None:
        return "replay"
    if key.change is not None and not same_content:
        return "state-echo"
    delivery_id, evidence = delivery_id_of(event), event.evidence
    if delivery_id is None and evidence.receive_count == 1 and evidence.request_id is None:
        return "re-emission"  # the broker gives no id, but reports that this is the first delivery of the message
    return "redelivery" if delivery_id == original and (same_content or delivery_id is not None) else "re-emission"
