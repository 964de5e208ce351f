"""Deciding: what was done with an event and why, in one sentence, by its record."""

from collections.abc import Sequence
from itertools import islice
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest
from oncegate.carriers import delivery
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, Address, Record
from oncegate.cli.options import namespace_of
from oncegate.cli.output import moment
from oncegate.cli.records import WHO_RUNS, happened, stages
from oncegate.clocks import wall
from oncegate.durations import spoken, times
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.gate.job import HANDED_ON, Identifier, Job, RejectedEvent, UnguardedEvent, kind_by_evidence
from oncegate.gate.observers import Observers
from oncegate.gate.options import DEFAULTS, validate
from oncegate.gate.outcome import differences
from oncegate.settings import Settings
from oncegate.settings.routes import by_route
from oncegate.sources import Hints, understood
from oncegate.stores.base import Entry, KnowsEndedProcesses, Store, scan
from oncegate.timelines import Timeline, place
from oncegate.timelines import read as read_timeline

# Why a record has the key that it has: as the event's own, or as that of a copy that is kept apart.
Why: TypeAlias = Literal["own", "conflict", "refused", "marked"]

_NOBODY: Final = "an event without an id"
_KEPT_COPY: Final = (
    "it is kept with its payload, so that a copy that comes now is a duplicate to the service, and in flight to"
    " gate.run and serve.mode=inline"
)


class Origin(Struct, frozen=True):
    """What a record's payload tells of its key: what it was made of, and why it is this one."""

    why: Why
    key: Key
    event: Event


def origin(entry: Entry, make: keys.Strategy, hints: Hints) -> Origin | None:
    """Where the key of a record comes from, if it still has its payload and the strategy is the one it was made by."""
    if entry.record.payload is None:
        return None
    event = understood(delivery(entry.record.payload), hints)
    made = _made(event, make)
    known: dict[Why, Key] = {"refused": keys.make("kept", event, [digest(event.raw).hex()], binds=False)}
    if made is not None:
        content = keys.content_hash(event).hex()
        known |= {
            "own": made,
            "conflict": keys.make("conflict", event, [str(made), content]),
            "marked": keys.make("failed", event, [str(made)]),
        }
    return next((Origin(why, made or key, event) for why, key in known.items() if key.digest == entry.key), None)


def _made(event: Event, make: keys.Strategy) -> Key | None:
    if event.problem is not None or event.frame is not None:
        return None
    try:
        return make(event)
    except MissingKey:
        return None
    except Exception:  # noqa: BLE001  # the key function is the user's
        return None


def decision(
    record: Record, now: int, why: Why | None = None, there: Record | None = None, *, ended: bool = False
) -> str:
    """Whether the event was run, why or why not, and what becomes of a copy that comes now. `there` is the record of
    what was handed on; `ended` says that the process that holds the event is known to have ended."""
    if record.state == COMPLETED and record.handed_to is not None:
        return _published(record, there, now)
    if record.state == COMPLETED:
        return _completed(record, now)
    if record.state == DEAD:
        return f"{_dead(record, why)}; nothing runs it until it is redriven or dropped (oncegate dlq)."
    if record.state == IN_PROGRESS:
        return _in_progress(record, now, ended)
    return _released(record, now)


def named(record: Record) -> str:
    return record.about.delivery_id or _NOBODY


def _completed(record: Record, now: int) -> str:
    done = f"{spoken(now - (record.completed_at or now))} ago"
    until = f", until {moment(record.expires_at)}" if record.expires_at is not None else ""
    copy = f"a copy that comes now has the same key, so it is a duplicate and is not run{until}"
    if record.completed_at == record.first_seen:
        ways = "by mark_first or seen, or as another emission of a change that was processed"
        return f"Marked as done: {named(record)} was recorded {done} in one write, {ways}; {copy}."
    return f"Run: {named(record)} was processed {done}, {_at(record)}; {copy}."


def _published(record: Record, there: Record | None, now: int) -> str:
    until = f", until {moment(record.expires_at)}" if record.expires_at is not None else ""
    when = moment(record.completed_at)
    return (
        f"Run: {named(record)} was published to {record.handed_to} at {when}; {_ran(there, now)};"
        f" a copy that comes to its publisher now is a duplicate and is not published again{until}."
    )


def _ran(there: Record | None, now: int) -> str:
    """What became of it where it was published to."""
    if there is None:
        return "nothing has taken it from there yet, in this store and namespace"
    if there.state == COMPLETED and there.handed_to is not None:
        return f"published from there to {there.handed_to} at {moment(there.completed_at)}"
    if there.state == COMPLETED:
        return f"ran there at {moment(there.completed_at)}, {_at(there)}"
    if there.state == DEAD:
        return f"became a dead letter there {_at(there)}, because {_line(there.error or 'no reason is kept')}"
    if there.state == IN_PROGRESS and now < there.lease_until:
        return f"a worker there is at it, {_at(there)}"
    return f"tried there, {_at(there)}, and runs again when it is delivered"


def _in_progress(record: Record, now: int, ended: bool) -> str:
    kept = record.payload is not None
    then = f"{WHO_RUNS} runs it again" if kept else "the next delivery runs it again"
    if ended:
        return (
            f"Run, to an end that is not known: the process that ran {named(record)} has ended, {_at(record)}; {then}."
        )
    if now < record.lease_until:
        left = spoken(record.lease_until - now)
        return (
            f"Being run: a worker is at {named(record)}, {_at(record)}, and holds it for up to {left} more unless it"
            f" renews; {_KEPT_COPY if kept else 'a copy that comes now is in flight and has to be delivered again'}."
        )
    over = spoken(now - record.lease_until)
    return (
        f"Run, to an end that is not known: the worker of {named(record)} did not come back, {_at(record)}, and its"
        f" lease ended {over} ago; {then}."
    )


def _released(record: Record, now: int) -> str:
    kept = record.payload is not None
    then = f"it is kept with its payload, and waits for {WHO_RUNS}" if kept else "the next delivery runs it again"
    if kept and now < record.lease_until:
        then = f"it is kept with its payload, and is not taken up before {moment(record.lease_until)}"
    if record.unavailable_since is not None:
        since, error = spoken(now - record.unavailable_since), _line(record.error or "no reason is kept")
        return f"Run and held up: what {named(record)} needs has been unavailable for {since} ({error}); {then}."
    if record.attempts and record.error:
        return f"Run and failed: {named(record)} ended, {_at(record)}, with {_line(record.error)}; {then}."
    if kept:
        waited = spoken(now - record.first_seen)
        return f"Not run yet: {named(record)} came {waited} ago; {then}, so that a copy that comes now is a duplicate."
    return f"Not run: the claim of {named(record)} was given back before its handler started; {then}."


def _dead(record: Record, why: Why | None) -> str:
    error = _line(record.error or "no reason is kept")
    if why == "conflict":
        return f"Not run: {named(record)} has the key of another event but other content, and is kept apart ({error})"
    if why == "refused":
        return f"Not run: {named(record)} was refused and is kept as a dead letter, because {error}"
    if why == "marked":
        return f"Run, and failed after it was marked as done: {named(record)} is kept as a dead letter, because {error}"
    return f"Given up: {named(record)} became a dead letter {_counted(record)}, because {error}"


def _at(record: Record) -> str:
    counted = _counted(record)
    return f"{counted}, with {times(record.lost, 'attempt')} lost before it" if record.lost else counted


def _counted(record: Record) -> str:
    return "at its first attempt" if record.attempts <= 1 else f"after {times(record.attempts, 'attempt')}"


def _line(error: str) -> str:
    return " ".join(error.split()).rstrip(".")


# Explaining: a record or an event, and all that the store and the payload tell of it.


_UNKNOWN = (
    "Not known: nothing is remembered under its key, so a delivery that comes now {then}; it was never seen, or it was"
    " processed longer ago than it is remembered (retention, {retention} by these settings)."
)
_UNKNOWN_TO_ALL = (
    "Not known to any of the routes {routes}: nothing is remembered under the keys that it has there; it was never"
    " seen, or it was processed longer ago than it is remembered (retention)."
)


class Tried(Struct, frozen=True):
    """A route whose key was looked up: its name, its namespace, the key that the event has there, and whether a record
    was found. `problem` is why it has no key there."""

    route: str
    namespace: str
    key: str | None
    known: bool
    problem: str | None = None


def _waits(entry: Entry) -> bool:
    return entry.record.payload is not None and entry.record.state in (RELEASED, IN_PROGRESS)


class Explained(Struct, frozen=True):
    """The decision, and what it rests on as far as that is known: the record, the parts of the key, why a copy is one,
    where a conflicting one differs, the states of the entity by time, key and whether it is this event's, and the
    routes whose keys were tried, and the records of where it was handed on to."""

    sentence: str
    at: int
    entry: Entry | None = None
    key: Key | None = None
    kind: str | None = None
    differs: tuple[str, ...] = ()
    timeline: tuple[tuple[int, str, str, bool], ...] = ()
    tried: tuple[Tried, ...] = ()
    handed_on: tuple[Entry, ...] = ()


class Explainers:
    """One explainer for each route, as each has a namespace, a key and a way of reading of its own. They are made when
    they are asked for, since the key of a route may be a function that is imported then."""

    def __init__(self, store: Store, settings: Settings, scan_limit: int) -> None:
        self._store = store
        self._scan_limit = scan_limit
        self._routes = by_route(settings)
        self._made: dict[str, Explainer] = {}

    @property
    def hints(self) -> Hints:
        """By which a file is read first."""
        return self._of(next(iter(self._routes))).hints

    def record(self, entry: Entry) -> Explained:
        """A record, by the key of the route whose namespace it is in."""
        own = (name for name, route in self._routes.items() if route["namespace"] == entry.namespace)
        *_, last = self._routes
        return self._of(next(own, last)).record(entry)

    def event(self, event: Event) -> Explained:
        """An event, by the key that it has on each route: where it is known, else nowhere."""
        told = [self._of(name).event(self._read(event, name)) for name in self._routes]
        tried = tuple(map(self._tried, self._routes, told))
        found = next((each for each in told if each.entry is not None), None)
        if found is not None or len(told) == 1 or not any(each.key for each in told):
            return replace(found or told[0], tried=tried)
        return Explained(
            _UNKNOWN_TO_ALL.format(routes=_listed([each.route for each in tried])), told[0].at, tried=tried
        )

    def _of(self, name: str) -> "Explainer":
        if name not in self._made:
            self._made[name] = Explainer(self._store, self._routes[name], self._scan_limit)
        return self._made[name]

    def _read(self, event: Event, name: str) -> Event:
        """The event as its route reads it."""
        hints = self._of(name).hints
        return (
            event if hints == self.hints else replace(understood(delivery(event.raw), hints), evidence=event.evidence)
        )

    def _tried(self, name: str, told: Explained) -> Tried:
        key = None if told.key is None else str(told.key)
        problem = None if key else told.sentence
        return Tried(name, self._routes[name]["namespace"], key, told.entry is not None, problem)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


class Explainer:
    def __init__(self, store: Store, settings: Settings, scan_limit: int) -> None:
        self._store = store
        self._scan_limit = scan_limit
        self._lines: dict[str, dict[str | None, list[Entry]]] = {}
        self._settings = settings
        self._make = keys.strategy(settings.strategy())
        terms = validate({name: settings[name] for name in DEFAULTS})
        self._identify = Identifier(self._make, terms, wall, Observers((), terms.namespace, wall))
        self.hints = settings.hints()

    def record(self, entry: Entry) -> Explained:
        """A record, with what its payload tells if it still has it."""
        now = wall()
        known = origin(entry, self._make, self.hints)
        if known is None:
            return self._decided(entry, now)
        key = known.key if known.why == "own" else None
        return self._with_timeline(self._decided(entry, now, known.why, key), entry.namespace, key)

    def _decided(
        self, entry: Entry, now: int, why: Why | None = None, key: Key | None = None, kind: str | None = None
    ) -> Explained:
        handed_on = stages(self._store, entry)
        there = handed_on[0].record if handed_on else None
        store, owner = self._store, entry.record.owner
        ended = isinstance(store, KnowsEndedProcesses) and store.has_ended(owner)
        said = f"{decision(entry.record, now, why, there, ended=ended)}{self._in_line(entry)}"
        return Explained(said, now, entry, key, kind, handed_on=tuple(handed_on))

    def _in_line(self, entry: Entry) -> str:
        """Which event an entity's events wait for, if this is one of those that the store holds for it."""
        if not _waits(entry) or entry.record.about.entity is None:
            return ""
        line = {each.key: each for each in self._line(entry)} | {entry.key: entry}
        first = min(line.values(), key=happened)
        if first.key != entry.key:
            return f" It waits for {named(first.record)} ({first.key.hex()}), the first that is kept of its entity."
        if len(line) == 1:
            return ""
        return f" {times(len(line) - 1, 'later event')} of its entity {'wait' if len(line) > 2 else 'waits'} for it."

    def _line(self, entry: Entry) -> list[Entry]:
        """What the store holds of the entity of this. No store has an index by entities for people, so all that waits
        in a namespace is looked for once."""
        lines = self._lines.get(entry.namespace)
        if lines is None:
            lines = self._lines[entry.namespace] = {}
            for each in islice(scan(self._store, entry.namespace), self._scan_limit):
                if _waits(each):
                    lines.setdefault(each.record.about.entity, []).append(each)
        return lines.get(entry.record.about.entity, [])

    def event(self, event: Event) -> Explained:
        """An event, by the key that a gate would claim it under."""
        now = wall()
        item = self._identify(event, trusted=True)
        if isinstance(item, RejectedEvent):
            return Explained(item.outcome.reason, now)
        if isinstance(item, UnguardedEvent):
            return Explained(f"Run without protection from duplicates: {item.unguarded}.", now)
        return self._looked_up(item, now)

    def _looked_up(self, job: Job, now: int) -> Explained:
        namespace = namespace_of(self._settings)
        within = namespace or self._settings["namespace"]
        key = self._anchored(within, job.key)
        entries = self._store.browse(namespace, key=key.digest)
        if job.carried is not None and (published := self._store.browse(namespace, key=job.carried)):
            key, entries = Key(job.carried, HANDED_ON, (job.carried.hex(),), key.binds), published
        entry = next((each for each in entries if each.namespace == within), entries[0] if entries else None)
        if entry is None:
            told = _UNKNOWN.format(
                then="is run" if job.bury_reason is None else f"is buried, as {job.bury_reason}",
                retention=self._settings["retention"],
            )
            return self._with_timeline(Explained(told, now, key=key), within, key)
        return self._with_timeline(self._judged(job.event, key, entry, now), entry.namespace, key)

    def _judged(self, event: Event, key: Key, entry: Entry, now: int) -> Explained:
        """What a delivery of the event comes to now."""
        record = entry.record
        same = keys.content_hash(event) == record.payload_hash
        if key.binds and not same:
            return self._conflict(event, key, entry, now)
        kind = kind_by_evidence(event, key, record.about.delivery_id, same_content=same)
        return self._decided(entry, now, None, key, f"{kind} of {named(record)}")

    def _conflict(self, event: Event, key: Key, entry: Entry, now: int) -> Explained:
        record = entry.record
        known = origin(entry, self._make, self.hints)
        differs = () if known is None else differences(known.event.body, event.body)
        seen = f"first seen {spoken(now - record.first_seen)} ago"
        why = f"its key is that of {named(record)}, {seen}, but its content is another"
        if self._settings["on_conflict"] == "bury":
            said = f"Not run: {why}, so that it is a conflict and is kept as a dead letter."
        else:
            said = f"Run under a key of its own, as on_conflict says: {why}."
        return Explained(said, now, entry, key, "conflict", differs)

    # ── timelines ─────────────────────────────────────────────────────────────────────────────────────────

    def _anchored(self, namespace: str, key: Key) -> Key:
        """The key under which a state change is known: its own, or that of the emission that it joins."""
        if key.change is None:
            return key
        return replace(key, digest=place(self._timeline(namespace, key), key.change, key.digest).key)

    def _timeline(self, namespace: str, key: Key) -> Timeline:
        assert key.change is not None  # noqa: S101  # only these have one
        (document,) = self._store.load([Address(namespace, key.change.timeline)])
        return read_timeline(document.body)

    def _with_timeline(self, explained: Explained, namespace: str, key: Key | None) -> Explained:
        if key is None or key.change is None:
            return explained
        anchors = self._timeline(namespace, key).anchors
        states = ((each.at, each.state, each.key.hex(), each.key == key.digest) for each in anchors)
        return replace(explained, timeline=tuple(states))
