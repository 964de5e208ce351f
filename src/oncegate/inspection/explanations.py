"""Explain what happened to an event and why, from its record and its payload."""

from itertools import islice
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest
from oncegate.carriers import delivery
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, Address, Record, matches_content
from oncegate.clocks import wall
from oncegate.durations import spoken, times
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.gate.job import HANDED_ON, Identifier, Job, RejectedEvent, UnguardedEvent, kind_by_evidence
from oncegate.gate.observers import Observers
from oncegate.gate.options import DEFAULTS, validate
from oncegate.gate.outcome import differences
from oncegate.inspection.records import (
    NOT_CONSUMED,
    RUNNERS,
    completion,
    erased,
    event_order,
    further_deliveries,
    seeded,
    stage_records,
)
from oncegate.settings import Settings
from oncegate.settings.routes import by_route
from oncegate.sources import Hints, understood
from oncegate.stores.base import Entry, KnowsEndedProcesses, Store, scan
from oncegate.timelines import Timeline, place
from oncegate.timelines import read as read_timeline
from oncegate.times import readable_time

# How the key of a record was made. `own` is the key of the event itself. The other roles are keys of dead letters:
# `conflict` for a conflict, `refused` for a refused event, and `marked` for an event that failed in mark_first mode.
KeyRole: TypeAlias = Literal["own", "conflict", "refused", "marked"]

_NO_ID: Final = "an event without an id"
_NEVER_BIND: Final = frozenset({"state_change", "once_per"})  # strategies that join events with different content
_NO_REASON: Final = "no reason is recorded"
_UNKNOWN: Final = (
    "Not known: there is no record with the key of this event, so a delivery now {then}. The event was never seen, its"
    " record has expired (retention is {retention}), or its request was refused.{elsewhere}"
)
_UNLESS_MARKED: Final = ", unless the old place of the setting previous has marked the event"
_UNKNOWN_TO_ALL: Final = (
    "Not known to the routes {routes}: there is no record with the keys of this event. The event was never seen, its"
    " record has expired (retention), or its request was refused."
)


class Origin(Struct, frozen=True):
    """How the key of a record was made, according to the payload of the record."""

    role: KeyRole
    key: Key
    event: Event


def origin(entry: Entry, make: keys.Strategy, hints: Hints) -> Origin | None:
    """How the key of a record was made. None if the record has no payload, or if another strategy made the key."""
    if entry.record.payload is None:
        return None
    event = understood(delivery(entry.record.payload), hints)
    made = _make_key(event, make)
    candidates: dict[KeyRole, Key] = {"refused": keys.make("kept", event, [digest(event.raw).hex()], binds=False)}
    if made is not None:
        content = keys.content_hash(event).hex()
        candidates |= {
            "own": made,
            "conflict": keys.make("conflict", event, [str(made), content]),
            "marked": keys.make("failed", event, [str(made)]),
        }
    return next((Origin(role, made or key, event) for role, key in candidates.items() if key.digest == entry.key), None)


def _make_key(event: Event, make: keys.Strategy) -> Key | None:
    if event.problem is not None or event.frame is not None:
        return None
    try:
        return make(event)
    except MissingKey:
        return None
    except Exception:  # noqa: BLE001  # the key function is the user's
        return None


# ── sentences ─────────────────────────────────────────────────────────────────────────────────────────────


def decision(
    record: Record,
    now: int,
    role: KeyRole | None = None,
    consumer: Record | None = None,
    *,
    ended: bool = False,
    binds: bool = True,
) -> str:
    """A text that says whether the event was run and why, and what happens to another delivery. `consumer` is the
    record that the consumer of a published event has. `ended` means that the process that holds the claim has ended.
    `binds` is False if the key is known not to bind the content."""
    if record.state == COMPLETED:
        return _completed(record, consumer, now, binds)
    if record.state == DEAD:
        again = "" if role in ("conflict", "refused") else " again"
        return f"{_dead(record, role)}. It runs{again} only if it is redriven (oncegate dlq redrive)."
    if record.state == IN_PROGRESS:
        return _in_progress(record, now, ended)
    return _released(record, now)


def event_name(record: Record) -> str:
    return record.about.delivery_id or _NO_ID


def _completed(record: Record, consumer: Record | None, now: int, binds: bool) -> str:
    age, name = spoken(now - (record.completed_at or now)), event_name(record)
    further = further_deliveries(record, binds=binds)
    next_delivery = f"{further} is a duplicate and is not run."
    match completion(record):
        case "erased":
            return f"{erased(age)} {next_delivery}"
        case "seeded":
            return f"{seeded(age)} {next_delivery}"
        case "published":
            return (
                f"Run: {name} was published to {record.handed_to} at {readable_time(record.completed_at)}."
                f" {_consumed(consumer, now)} {further} to the publisher is a duplicate and is not published again."
            )
        case "marked":
            how = "by mark_first, by seen, or as another emission of a processed state change"
            return f"Marked as done: {name} was recorded {age} ago in one write, {how}. {next_delivery}"
        case "processed":
            return f"Run: {name} was processed {age} ago {_attempt(record)}. {next_delivery}"


def _consumed(record: Record | None, now: int) -> str:
    """What happened to a published event at its consumer."""
    if record is None:
        return NOT_CONSUMED
    if record.state == COMPLETED:
        return _completed_by_consumer(record)
    if record.state == DEAD:
        return f"At its consumer it became a dead letter {_attempt(record)}: {_error(record)}."
    if record.state == IN_PROGRESS and now < record.lease_until:
        return f"Its consumer is running it {_attempt(record)}."
    return f"Its consumer tried it {_attempt(record)} and runs it again when it is redelivered."


def _completed_by_consumer(record: Record) -> str:
    when = readable_time(record.completed_at)
    match completion(record):
        case "erased":
            return f"At its consumer it was erased at {when}, before it was processed."
        case "seeded":
            return f"At its consumer its key was seeded at {when}: earlier code processed it."
        case "published":
            return f"Its consumer published it to {record.handed_to} at {when}."
        case "marked":
            return f"Its consumer marked it as done at {when}."
        case "processed":
            return f"Its consumer processed it at {when} {_attempt(record)}."


def _in_progress(record: Record, now: int, ended: bool) -> str:
    runner = "The next delivery" if record.payload is None else f"{RUNNERS[0].upper()}{RUNNERS[1:]}"
    again = f"{runner} runs it again."
    if ended:
        return (
            f"Run with unknown result: the process that ran {event_name(record)} {_attempt(record)} has ended. {again}"
        )
    if now >= record.lease_until:
        over = spoken(now - record.lease_until)
        return (
            f"Run with unknown result: the worker that ran {event_name(record)} {_attempt(record)} did not report back,"
            f" and its lease ended {over} ago. {again}"
        )
    left = spoken(record.lease_until - now)
    if record.payload is None:
        next_delivery = "Another delivery is in flight and must be redelivered later."
    else:
        next_delivery = (
            "The event is stored with its payload: another delivery to the service is a duplicate; to gate.run or"
            " serve.mode=inline it is in flight."
        )
    return (
        f"Running: a worker is processing {event_name(record)} {_attempt(record)}, and its lease ends in {left} unless"
        f" renewed. {next_delivery}"
    )


def _released(record: Record, now: int) -> str:
    stored = record.payload is not None
    then = f"It is stored with its payload and waits for {RUNNERS}" if stored else "The next delivery runs it again"
    if stored and now < record.lease_until:
        then = f"It is stored with its payload and does not run before {readable_time(record.lease_until)}"
    if record.unavailable_since is not None:
        since = spoken(now - record.unavailable_since)
        return (
            f"Run without success: what the handler of {event_name(record)} calls has been unavailable for {since}"
            f" ({_error(record)}). {then}."
        )
    if record.attempts and record.error:
        return f"Run and failed: {event_name(record)} failed {_attempt(record)} with {_error(record)}. {then}."
    if stored:
        waited = spoken(now - record.first_seen)
        return f"Not run yet: {event_name(record)} arrived {waited} ago. {then}; another delivery is a duplicate."
    return f"Not run: the claim of {event_name(record)} was released before its handler started. {then}."


def _dead(record: Record, role: KeyRole | None) -> str:
    name, error = event_name(record), _error(record)
    if role == "conflict":
        return f"Not run: {name} has the key of another event but different content, and is a dead letter ({error})"
    if role == "refused":
        return f"Not run: {name} was refused and is a dead letter: {error}"
    if role == "marked":
        return f"Run and failed after it was marked as done: {name} is a dead letter: {error}"
    return f"Given up: {name} became a dead letter {_count(record)}: {error}"


def _attempt(record: Record) -> str:
    count = _count(record)
    return f"{count} (plus {times(record.lost, 'lost attempt')})" if record.lost else count


def _count(record: Record) -> str:
    """The number of attempts. A redrive resets the number, and some attempts do not count (`claims.py`). The fence
    starts at `first_seen` and grows with every grant. So the fence shows if all grants are counted. If not, the event
    was stored before its first grant, or was redriven, or a claim was given back: the record does not say which."""
    grants = record.fence - record.first_seen + 1
    if grants <= record.attempts + bool(record.lost):
        return "at its first attempt" if record.attempts <= 1 else f"after {times(record.attempts, 'attempt')}"
    return f"at attempt {max(record.attempts, 1)} (counted from the last redrive, if there was one)"


def _error(record: Record) -> str:
    """The error on one line."""
    return " ".join((record.error or _NO_REASON).split()).rstrip(".")


# ── explanations ──────────────────────────────────────────────────────────────────────────────────────────


class TriedRoute(Struct, frozen=True):
    """A route whose key was looked up: its name, its namespace, the key of the event on that route, and whether a
    record exists. `problem` says why the event has no key on that route."""

    route: str
    namespace: str
    key: str | None
    known: bool
    problem: str | None = None


def _waits(entry: Entry) -> bool:
    return entry.record.payload is not None and entry.record.state in (RELEASED, IN_PROGRESS)


class Explanation(Struct, frozen=True):
    """The sentence, and the facts behind it as far as they are known: the record, the key, the kind of duplicate, the
    paths at which a conflict differs, the timeline of the entity (time, state, key, whether it is the key of this
    event), the routes that were tried, and the records at the consumers of a published event."""

    sentence: str
    at: int
    entry: Entry | None = None
    key: Key | None = None
    kind: str | None = None
    differs: tuple[str, ...] = ()
    timeline: tuple[tuple[int, str, str, bool], ...] = ()
    tried: tuple[TriedRoute, ...] = ()
    handed_on: tuple[Entry, ...] = ()


class KnownHistory(Struct, frozen=True):
    """What the journal knows about a record: the strategy of its key, and whether the number of attempts in the record
    is that of all attempts, because the journal has as many rows."""

    strategy: str = ""
    counts_all_attempts: bool = False


_NOTHING_KNOWN: Final = KnownHistory()


class Explainers:
    """One explainer for each route: routes have their own namespace, key and hints. Each explainer is created on first
    use, because the key of a route may be a function that must be imported."""

    def __init__(self, store: Store, settings: Settings, scan_limit: int) -> None:
        self.store = store
        self._scan_limit = scan_limit
        self._routes = by_route(settings)
        self._explainers: dict[str, Explainer] = {}

    @property
    def namespace(self) -> str:
        """The namespace of the first route."""
        return str(next(iter(self._routes.values()))["namespace"])

    @property
    def hints(self) -> Hints:
        """The hints of the first route. A file is read with these hints."""
        return self._of(next(iter(self._routes))).hints

    def record(self, entry: Entry, known: "KnownHistory | None" = None) -> Explanation:
        """Explain a record with the key of the route that has its namespace, and with what the journal knows."""
        return self._for(entry.namespace).record(entry, known or _NOTHING_KNOWN)

    def reader(self, namespace: str) -> tuple[keys.Strategy, Hints]:
        """The key strategy and the hints of the route that has this namespace."""
        return self._for(namespace).reader

    def _for(self, namespace: str) -> "Explainer":
        own = (name for name, route in self._routes.items() if route["namespace"] == namespace)
        *_, last = self._routes
        return self._of(next(own, last))

    def event(self, event: Event) -> Explanation:
        """Explain an event with the first route that has a record of it."""
        explained = [self._of(name).event(self._read(event, name)) for name in self._routes]
        tried = tuple(map(self._tried, self._routes, explained))
        found = next((each for each in explained if each.entry is not None), None)
        if found is not None or len(explained) == 1 or not any(each.key for each in explained):
            return replace(found or explained[0], tried=tried)
        names = [each.route for each in tried]
        routes = f"{', '.join(names[:-1])} and {names[-1]}"
        return Explanation(_UNKNOWN_TO_ALL.format(routes=routes), explained[0].at, tried=tried)

    def _of(self, name: str) -> "Explainer":
        if name not in self._explainers:
            self._explainers[name] = Explainer(self.store, self._routes[name], self._scan_limit)
        return self._explainers[name]

    def _read(self, event: Event, name: str) -> Event:
        """The event, read with the hints of a route."""
        hints = self._of(name).hints
        return (
            event if hints == self.hints else replace(understood(delivery(event.raw), hints), evidence=event.evidence)
        )

    def _tried(self, name: str, explained: Explanation) -> TriedRoute:
        key = None if explained.key is None else str(explained.key)
        problem = None if key else explained.sentence
        return TriedRoute(name, self._routes[name]["namespace"], key, explained.entry is not None, problem)


class Explainer:
    def __init__(self, store: Store, settings: Settings, scan_limit: int) -> None:
        self._store = store
        self._scan_limit = scan_limit
        self._waiting: dict[str, dict[str | None, list[Entry]]] = {}
        self._settings = settings
        self._make = keys.strategy(settings.strategy())
        config = validate({name: settings[name] for name in DEFAULTS})
        self._identify = Identifier(self._make, config, wall, Observers((), config.namespace, wall))
        self.hints = settings.hints()

    @property
    def reader(self) -> tuple[keys.Strategy, Hints]:
        return self._make, self.hints

    def record(self, entry: Entry, history: KnownHistory) -> Explanation:
        """Explain a record, with facts from its payload if the record still has a payload."""
        now = wall()
        known = origin(entry, self._make, self.hints)
        if known is None:
            return self._explain_entry(entry, now, history=history)
        key = known.key if known.role == "own" else None
        explained = self._explain_entry(entry, now, known.role, key, history=history)
        return self._with_timeline(explained, entry.namespace, key)

    def _explain_entry(
        self,
        entry: Entry,
        now: int,
        role: KeyRole | None = None,
        key: Key | None = None,
        kind: str | None = None,
        *,
        history: KnownHistory = _NOTHING_KNOWN,
    ) -> Explanation:
        handed_on = stage_records(self._store, entry)
        consumer = handed_on[0].record if handed_on else None
        store, owner = self._store, entry.record.owner
        ended = isinstance(store, KnowsEndedProcesses) and store.has_ended(owner)
        binds = history.strategy not in _NEVER_BIND if key is None else key.binds
        record = entry.record
        if history.counts_all_attempts:  # so further grants were no attempts: see `_count`
            record = replace(record, fence=record.first_seen)
        decided = decision(record, now, role, consumer, ended=ended, binds=binds)
        return Explanation(f"{decided}{self._entity_order(entry)}", now, entry, key, kind, handed_on=tuple(handed_on))

    def _entity_order(self, entry: Entry) -> str:
        """A sentence about a waiting event: which event of the same entity it waits for, or how many events wait for
        it. Empty for other events."""
        if not _waits(entry) or entry.record.about.entity is None:
            return ""
        line = {each.key: each for each in self._waiting_events(entry)} | {entry.key: entry}
        first = min(line.values(), key=event_order)
        if first.key != entry.key:
            return f" It waits for {event_name(first.record)} ({first.key.hex()}), an earlier event of the same entity."
        if len(line) == 1:
            return ""
        wait = "wait" if len(line) > 2 else "waits"
        return f" {times(len(line) - 1, 'later event')} of the same entity {wait} for it."

    def _waiting_events(self, entry: Entry) -> list[Entry]:
        """The waiting events of the same entity. No store has an index by entity for operators, so each namespace is
        scanned once."""
        by_entity = self._waiting.get(entry.namespace)
        if by_entity is None:
            by_entity = self._waiting[entry.namespace] = {}
            for each in islice(scan(self._store, entry.namespace), self._scan_limit):
                if _waits(each):
                    by_entity.setdefault(each.record.about.entity, []).append(each)
        return by_entity.get(entry.record.about.entity, [])

    def event(self, event: Event) -> Explanation:
        """Explain an event by the key with which a gate would claim it."""
        now = wall()
        item = self._identify(event, trusted=True)
        if isinstance(item, RejectedEvent):
            return Explanation(item.outcome.reason, now)
        if isinstance(item, UnguardedEvent):
            unguarded = " ".join(item.unguarded.split())
            return Explanation(f"Run without protection against duplicates: {unguarded}.", now)
        return self._look_up(item, now)

    def _look_up(self, job: Job, now: int) -> Explanation:
        namespace = self._settings.chosen("namespace")
        within = namespace or self._settings["namespace"]
        key = self._key_of_anchor(within, job.key)
        entries = self._store.browse(namespace, key=key.digest)
        if job.carried is not None and (published := self._store.browse(namespace, key=job.carried)):
            key, entries = Key(job.carried, HANDED_ON, (job.carried.hex(),), key.binds), published
        entry = next((each for each in entries if each.namespace == within), entries[0] if entries else None)
        if entry is None:
            run = f"is run{_UNLESS_MARKED}" if self._settings["previous"] else "is run"
            sentence = _UNKNOWN.format(
                then=run if job.bury_reason is None else f"becomes a dead letter: {job.bury_reason}",
                retention=self._settings["retention"],
                elsewhere="" if namespace is None else f" Only the namespace {namespace} was searched.",
            )
            return self._with_timeline(Explanation(sentence, now, key=key), within, key)
        return self._with_timeline(self._explain_delivery(job.event, key, entry, now), entry.namespace, key)

    def _explain_delivery(self, event: Event, key: Key, entry: Entry, now: int) -> Explanation:
        """Explain what happens to a delivery of the event now."""
        record = entry.record
        same = matches_content(record, keys.content_hash(event))
        if key.binds and not same:
            return self._conflict(event, key, entry, now)
        kind = kind_by_evidence(event, key, record.about.delivery_id, same_content=same)
        return self._explain_entry(entry, now, None, key, f"{kind} of {event_name(record)}")

    def _conflict(self, event: Event, key: Key, entry: Entry, now: int) -> Explanation:
        record = entry.record
        known = origin(entry, self._make, self.hints)
        differs = () if known is None else differences(known.event.body, event.body)
        seen = f"first seen {spoken(now - record.first_seen)} ago"
        why = f"it has the key of {event_name(record)} ({seen}) but different content"
        if self._settings["on_conflict"] == "bury":
            sentence = f"Not run: {why}, so it is a conflict and becomes a dead letter."
        else:
            sentence = f"Run under another key because of on_conflict: {why}."
        return Explanation(sentence, now, entry, key, "conflict", differs)

    # ── timelines ─────────────────────────────────────────────────────────────────────────────────────────

    def _key_of_anchor(self, namespace: str, key: Key) -> Key:
        """Return the key of the emission that a state change joins. Returns `key` itself if it joins no emission, or if
        it is not the key of a state change."""
        if key.change is None:
            return key
        return replace(key, digest=place(self._timeline(namespace, key), key.change, key.digest).key)

    def _timeline(self, namespace: str, key: Key) -> Timeline:
        assert key.change is not None  # noqa: S101  # only state changes have a timeline
        (document,) = self._store.load([Address(namespace, key.change.timeline)])
        return read_timeline(document.body)

    def _with_timeline(self, explained: Explanation, namespace: str, key: Key | None) -> Explanation:
        if key is None or key.change is None:
            return explained
        anchors = self._timeline(namespace, key).anchors
        states = ((each.at, each.state, each.key.hex(), each.key == key.digest) for each in anchors)
        return replace(explained, timeline=tuple(states))
