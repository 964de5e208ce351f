"""Explaining: a record or an event, and all that the store and the payload tell of it."""

from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.claims import Address
from oncegate.cli.deciding import decision, named, origin
from oncegate.cli.options import namespace_of
from oncegate.clocks import wall
from oncegate.durations import spoken
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.gate.differences import differences
from oncegate.gate.jobs import kind_by_evidence
from oncegate.settings import Settings
from oncegate.stores.base import Entry, Store
from oncegate.timelines import Timeline, place
from oncegate.timelines import read as read_timeline

_UNKNOWN = (
    "Not known: nothing is remembered under its key, so a delivery that comes now is run; it was never seen, or it was"
    " processed longer ago than it is remembered (retention, {retention} by these settings)."
)


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
    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._make = keys.strategy(settings.strategy())
        self.hints = settings.hints()

    def record(self, entry: Entry) -> Explained:
        """A record, with what its payload tells if it still has it."""
        now = wall()
        known = origin(entry, self._make, self.hints)
        if known is None:
            return Explained(decision(entry.record, now), now, entry)
        key = known.key if known.why == "own" else None
        told = Explained(decision(entry.record, now, known.why), now, entry, key)
        return self._with_timeline(told, entry.namespace, key)

    def event(self, event: Event) -> Explained:
        """An event, by the key that it would be claimed under."""
        now = wall()
        if event.problem is not None or event.frame is not None:
            said = f"Refused: {event.problem}" if event.frame is None else f"No event, and skipped: {event.frame}"
            return Explained(f"{said}.", now)
        try:
            key = self._make(event)
        except MissingKey as error:
            refused = self._settings["on_missing_key"] == "refuse"
            return Explained(f"{'Refused' if refused else 'Run without protection'}: {error}.", now)
        return self._looked_up(event, key, now)

    def _looked_up(self, event: Event, key: Key, now: int) -> Explained:
        namespace = namespace_of(self._settings)
        within = namespace or self._settings["namespace"]
        known = self._anchored(within, key)
        entries = self._store.browse(namespace, key=known.digest)
        entry = next((each for each in entries if each.namespace == within), entries[0] if entries else None)
        if entry is None:
            unknown = _UNKNOWN.format(retention=self._settings["retention"])
            return self._with_timeline(Explained(unknown, now, key=known), within, known)
        return self._with_timeline(self._judged(event, known, entry, now), entry.namespace, known)

    def _judged(self, event: Event, key: Key, entry: Entry, now: int) -> Explained:
        """What a delivery of the event comes to now."""
        record = entry.record
        same = keys.content_hash(event) == record.payload_hash
        if key.binds and not same and self._settings["on_conflict"] != "duplicate":
            return self._conflict(event, key, entry, now)
        kind = kind_by_evidence(event, key, record.about.delivery_id, same_content=same)
        return Explained(decision(record, now), now, entry, key, f"{kind} of {named(record)}")

    def _conflict(self, event: Event, key: Key, entry: Entry, now: int) -> Explained:
        record = entry.record
        known = origin(entry, self._make, self.hints)
        differs = () if known is None else differences(known.event.body, event.body)
        seen = f"first seen {spoken(now - record.first_seen)} ago"
        policy = "kept as a dead letter" if self._settings["on_conflict"] == "bury" else "run under a key of its own"
        said = f"Its key is that of {named(record)}, {seen}, but its content is another: it is a conflict and {policy}."
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
