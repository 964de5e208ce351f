"""Explaining: a record or an event, and all that the store and the payload tell of it."""

from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.claims import IN_PROGRESS, RELEASED, Address
from oncegate.cli.deciding import decision, named, origin
from oncegate.cli.finding import happened
from oncegate.cli.options import namespace_of
from oncegate.clocks import wall
from oncegate.durations import spoken, times
from oncegate.events import Event, Key
from oncegate.gate.differences import differences
from oncegate.gate.identifying import Identifier
from oncegate.gate.jobs import Bare, Job, Refused, kind_by_evidence
from oncegate.gate.observing import Observers
from oncegate.gate.terms import DEFAULTS, agree
from oncegate.settings import Settings
from oncegate.stores.base import Entry, Store
from oncegate.stores.walking import walk
from oncegate.timelines import Timeline, place
from oncegate.timelines import read as read_timeline

_UNKNOWN = (
    "Not known: nothing is remembered under its key, so a delivery that comes now {then}; it was never seen, or it was"
    " processed longer ago than it is remembered (retention, {retention} by these settings)."
)


def _waits(entry: Entry) -> bool:
    return entry.record.payload is not None and entry.record.state in (RELEASED, IN_PROGRESS)


class Explained(Struct, frozen=True):
    """The decision, and what it rests on as far as that is known: the record, the parts of the key, why a copy is one,
    where a conflicting one differs, and the states of the entity by time, key and whether it is this event's."""

    sentence: str
    at: int
    entry: Entry | None = None
    key: Key | None = None
    kind: str | None = None
    differs: tuple[str, ...] = ()
    timeline: tuple[tuple[int, str, str, bool], ...] = ()


class Explainer:
    def __init__(self, store: Store, settings: Settings, scan: int) -> None:
        self._store = store
        self._scan = scan
        self._lines: dict[str, dict[str | None, list[Entry]]] = {}
        self._settings = settings
        self._make = keys.strategy(settings.strategy())
        terms = agree({name: settings[name] for name in DEFAULTS})
        self._identify = Identifier(self._make, terms, wall, Observers((), terms.namespace, wall))
        self.hints = settings.hints()

    def record(self, entry: Entry) -> Explained:
        """A record, with what its payload tells if it still has it."""
        now = wall()
        known = origin(entry, self._make, self.hints)
        if known is None:
            return Explained(f"{decision(entry.record, now)}{self._in_line(entry)}", now, entry)
        key = known.key if known.why == "own" else None
        told = Explained(f"{decision(entry.record, now, known.why)}{self._in_line(entry)}", now, entry, key)
        return self._with_timeline(told, entry.namespace, key)

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
            for each in islice(walk(self._store, entry.namespace), self._scan):
                if _waits(each):
                    lines.setdefault(each.record.about.entity, []).append(each)
        return lines.get(entry.record.about.entity, [])

    def event(self, event: Event) -> Explained:
        """An event, by the key that a gate would claim it under."""
        now = wall()
        item = self._identify(event)
        if isinstance(item, Refused):
            return Explained(item.outcome.reason, now)
        if isinstance(item, Bare):
            return Explained(f"Run without protection from duplicates: {item.unguarded}.", now)
        return self._looked_up(item, now)

    def _looked_up(self, job: Job, now: int) -> Explained:
        namespace = namespace_of(self._settings)
        within = namespace or self._settings["namespace"]
        key = self._anchored(within, job.key)
        entries = self._store.browse(namespace, key=key.digest)
        entry = next((each for each in entries if each.namespace == within), entries[0] if entries else None)
        if entry is None:
            told = _UNKNOWN.format(
                then="is run" if job.hopeless is None else f"is buried, as {job.hopeless}",
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
        said = f"{decision(record, now)}{self._in_line(entry)}"
        return Explained(said, now, entry, key, f"{kind} of {named(record)}")

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
