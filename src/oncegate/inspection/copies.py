"""Conclude whether several deliveries are retries, a re-emission, a double emission or a conflict."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.canonical import digest
from oncegate.carriers import delivery
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, Address, EventSummary, Record
from oncegate.durations import spoken, times
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.gate.job import delivery_id_of
from oncegate.sources import Hints, understood
from oncegate.stores.base import Entry, Store
from oncegate.timelines import Anchor, Timeline, place
from oncegate.timelines import read as read_timeline
from oncegate.times import EPOCH, microseconds_of

WINDOW: Final = 500_000  # microseconds; the default window of the key strategy state_change
_MOST_PARTS: Final = 20  # parts of one entity, such as the sessions of a conversation, whose timelines are loaded
_STATE_CHANGE: Final = 'state_change("500ms")'
_by_change = keys.state_change()

Verdict: TypeAlias = Literal[
    "double emission", "re-emission", "replay", "retries", "conflict", "possible double emission"
]
# How to read events of a namespace: the key strategy, and the hints.
Reader: TypeAlias = Callable[[str], tuple[keys.Strategy, Hints]]


class Sighting(Struct, frozen=True):
    """What is known about one delivery: a delivery of a file, or the delivery that a record describes. `number` is its
    position in the file or among the records, from 1.

    `subject` is the namespace, the source and the entity. `content` is the hash of the content; it is empty if the
    content is not known. `key` is the key that decides whether the event runs. `change` identifies the state change
    that the delivery reports; None if the state is not known. `record` is the record of the event. `unrun` means that
    the record was completed in one write, without a run."""

    number: int
    subject: tuple[str | None, ...]
    type: str | None
    at: int | None
    event_id: str | None
    content: bytes
    key: bytes | None = None
    binds: bool = False
    state: str | None = None
    change: Hashable = None
    replayed: bool = False
    unrun: bool = False
    record: Record | None = None


class CopyGroup(Struct, frozen=True):
    """Deliveries that belong together, and the conclusion about them."""

    verdict: Verdict
    sentence: str
    sightings: list[Sighting]
    separate: bool = False  # the deliveries have different keys, so each of them runs

    @property
    def order(self) -> tuple[bool, int, int]:
        """A sort key: first the groups that can cause several effects, then by verdict, then the latest group."""
        return not self.separate, _ORDER.index(self.verdict), -max(each.at or 0 for each in self.sightings)


_ORDER: Final[tuple[Verdict, ...]] = (
    "double emission",
    "conflict",
    "possible double emission",
    "re-emission",
    "replay",
    "retries",
)


def groups_of_deliveries(sightings: Sequence[Sighting]) -> list[CopyGroup]:
    """The groups of copies among the deliveries of a file, the most important group first."""
    total = len(sightings)
    found = (_conclude(group, total, "deliveries") for group in _linked(sightings))
    return sorted(found, key=lambda group: group.order)


def groups_of_records(sightings: Sequence[Sighting]) -> list[CopyGroup]:
    """The groups of copies among records, the most important group first. A record without a state may be a copy of
    another record with the same type and a near event time. A record with several attempts is a group on its own."""
    total = len(sightings)
    found = [_conclude(group, total, "records") for group in _linked(sightings)]
    later = {each.number for group in found for each in group.sightings[1:]}
    found += [_possible(group, total) for group in _near([each for each in sightings if each.number not in later])]
    grouped = {each.number for group in found for each in group.sightings}
    rest = [each for each in sightings if each.number not in grouped]
    found += [_attempted(each, each.record) for each in rest if each.record is not None and each.record.attempts > 1]
    return sorted(found, key=lambda group: group.order)


def conclusion(groups: Sequence[CopyGroup], none: str) -> str:
    """One sentence about the most important group of copies. `none` is the sentence if there is no group."""
    if not groups:
        return none
    more = f" (1 of {len(groups)} groups of copies)" if len(groups) > 1 else ""
    return f"{groups[0].sentence.removesuffix('.')}{more}."


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────────


def _linked(sightings: Sequence[Sighting]) -> list[list[Sighting]]:
    """The groups of sightings that have the same content, report the same state change, or have the same key. A
    sighting without known content is in no group."""
    sightings = [each for each in sightings if each.content]
    parent = {each.number: each.number for each in sightings}

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for one, other in _links(sightings):
        first, second = sorted((root(one.number), root(other.number)))
        parent[second] = first
    found: dict[int, list[Sighting]] = {}
    for each in sightings:
        found.setdefault(root(each.number), []).append(each)
    return [group for group in found.values() if len(group) > 1]


def _links(sightings: Sequence[Sighting]) -> Iterator[tuple[Sighting, Sighting]]:
    """Pairs of sightings that are copies of each other. A key that merges different content on purpose, such as
    `once_per`, makes no link. Equal content makes a link only if the event times are near: the body of some events
    does not contain their time, so a later event may have the same content."""
    by_content = _buckets(sightings, lambda each: (each.subject, each.type, each.content))
    for bucket in by_content:
        yield from ((one, other) for one, other in pairwise(sorted(bucket, key=_time)) if _is_near(one, other))
    for bucket in _buckets(sightings, lambda each: each.change):
        yield from pairwise(bucket)
    for bucket in _buckets(sightings, lambda each: (each.subject[0], each.key) if each.binds else None):
        yield from pairwise(bucket)


def _near(sightings: Sequence[Sighting]) -> Iterator[list[Sighting]]:
    """Groups of sightings with one type and near event times, if the state of at least one of them is not known."""
    timed = [each for each in sightings if each.at is not None and each.content]
    for bucket in _buckets(timed, lambda each: (each.subject, each.type)):
        group: list[Sighting] = []
        for each in [*sorted(bucket, key=_time), None]:
            if each is not None and (not group or _is_near(group[-1], each)):
                group.append(each)
                continue
            if len(group) > 1 and any(known.state is None for known in group):
                yield group
            group = [] if each is None else [each]


def _buckets(sightings: Iterable[Sighting], bucket_of: Callable[[Sighting], Hashable]) -> Iterator[list[Sighting]]:
    """The sightings with the same bucket, if there are several. A sighting whose bucket is None is left out."""
    found: dict[Hashable, list[Sighting]] = {}
    for each in sightings:
        if (bucket := bucket_of(each)) is not None:
            found.setdefault(bucket, []).append(each)
    return (bucket for bucket in found.values() if len(bucket) > 1)


def _time(sighting: Sighting) -> tuple[bool, int]:
    return sighting.at is None, sighting.at or 0


def _is_near(one: Sighting, other: Sighting) -> bool:
    if one.at is None or other.at is None:
        return one.at is other.at
    return abs(one.at - other.at) <= WINDOW


# ── sentences ─────────────────────────────────────────────────────────────────────────────────────────────


def _conclude(group: list[Sighting], total: int, noun: str) -> CopyGroup:
    separate = len({each.key for each in group}) > 1
    if len({each.content for each in group}) == 1:
        kinds = list(dict.fromkeys(_kind(each, group[0]) for each in group[1:]))
        what = f"{_part(group, total)} {noun} of the same content: {' and '.join(_NAMES[kind] for kind in kinds)}"
        if separate and noun == "records" and kinds == ["retries"]:
            return CopyGroup("retries", f"{what} or a replay; {_REPEATED}.", group, separate)
        return CopyGroup(kinds[0], f"{what}; {_decided(group, 'content')}.", group, separate)
    conflicting, state = _conflicting(group), _common_state(group)
    if conflicting and (state is None or len({(each.key, each.event_id) for each in group}) == 1):
        what = f"{_part(conflicting, total)} {noun}{_apart(conflicting)}, different content for one key: conflict"
        sentence = f"{what}, not retries{_dead_letters(conflicting)}."
        if noun == "records":
            sentence += " The record of a conflict has another key than the original record."
        return CopyGroup("conflict", sentence, group, separate)
    what = f"{_part(group, total)} {noun}{_apart(group)}, different content, same state ({state}): double emission"
    return CopyGroup("double emission", f"{what}; {_decided(group, _STATE_CHANGE)}.", group, separate)


def _part(group: Sequence[Sighting], total: int) -> str:
    return f"{len(group)}" if len(group) == total else f"{len(group)} of {total:,}"


def _conflicting(group: Sequence[Sighting]) -> list[Sighting]:
    """The deliveries with one key that binds the content, if their contents differ."""
    for bucket in _buckets(group, lambda each: each.key if each.binds else None):
        if len({each.content for each in bucket}) > 1:
            return bucket
    return []


def _common_state(group: Sequence[Sighting]) -> str | None:
    """The state that all deliveries report; None if it is not known of all of them. The state of one delivery is also
    the state of the deliveries with the same content."""
    states = {each.content: each.state for each in group if each.change is not None}
    if len(states) < len({each.content for each in group}) or len(set(states.values())) != 1:
        return None
    return next(iter(states.values()))


# A record does not say whether its event was a replay, or ran without a key of its own.
_REPEATED: Final = (
    "their keys differ although the event id is the same, as after a change of the key strategy, for a replay with"
    ' on_replay="run", or with on_missing_key="unguarded"'
)
_NAMES: Final[dict[Verdict, str]] = {
    "retries": "retries",
    "re-emission": "re-emission (the event ids differ)",
    "replay": "replay from an archive",
}


def _kind(sighting: Sighting, first: Sighting) -> Verdict:
    if sighting.replayed:
        return "replay"
    return "retries" if sighting.event_id == first.event_id else "re-emission"


def _possible(group: list[Sighting], total: int) -> CopyGroup:
    of_type = "" if group[0].type is None else f" of type {group[0].type}"
    what = f"Possible double emission: {_part(group, total)} records{of_type}{_apart(group)}, different content."
    unrun = sum(each.unrun for each in group)
    if 0 < unrun < len(group):
        did = "1 of them was" if unrun == 1 else f"{unrun} of them were"
        why = "recorded as done without a run. The key strategy state_change does this for a double emission"
        return CopyGroup("possible double emission", f"{what} {did[0].upper()}{did[1:]} {why}.", group)
    look = (
        "It is a double emission if the records report the same state change. The store does not hold the state of"
        " completed events. Compare the state in the journal (oncegate events list --entity ID) or in the log lines of"
        " the events, or compare their payloads with oncegate read FILE"
    )
    return CopyGroup("possible double emission", f"{what} {look}.", group, separate=True)


def _attempted(sighting: Sighting, record: Record) -> CopyGroup:
    name = sighting.event_id or "an event without an id"
    sentence = f"{name} was attempted {record.attempts} times: retries of one event, not a double emission."
    return CopyGroup("retries", sentence, [sighting])


def _apart(group: Sequence[Sighting]) -> str:
    """The distance between the earliest and the latest event time."""
    known = [each.at for each in group if each.at is not None]
    if len(known) < 2:
        return ""
    span = max(known) - min(known)
    if not span:
        return " with the same event time"
    length = spoken(span) if span >= 1_000 else "less than 1 ms"
    return f" {length} apart" if len(known) == 2 else f" within {length}"


def _dead_letters(group: Sequence[Sighting]) -> str:
    dead = sum(each.record is not None and each.record.state == DEAD for each in group)
    return f"; {times(dead, 'dead letter')}" if dead else ""


def _decided(group: Sequence[Sighting], strategy: str) -> str:
    """What the keys of the deliveries decide."""
    found = {each.key for each in group}
    if found == {None}:
        return "they have no key"
    if len(found) > 1 and len({each.key for each in group if not each.replayed}) == 1:
        return "the replay has another key because of on_replay"
    if len(found) > 1:
        return f"their keys differ, and the key strategy {strategy} would join them"
    if len({each.content for each in group}) == 1:
        return f"they have one key, and {_effect(group)}"
    if any(each.binds for each in group):
        return f"their common key binds the content, so they conflict; the key strategy {strategy} would join them"
    return f"the key strategy state_change joins them, and {_effect(group)}"


def _effect(group: Sequence[Sighting]) -> str:
    record = next((each.record for each in group if each.record is not None and not each.unrun), None)
    if record is None:
        unrun = any(each.unrun for each in group)
        return "the event is marked as done" if unrun else "the store has no record of the event"
    if record.state == COMPLETED:
        return "the event completed once"
    if record.state == DEAD:
        return "the event is a dead letter"
    return "the event is in progress" if record.state == IN_PROGRESS else "the event has not completed yet"


# ── sightings ─────────────────────────────────────────────────────────────────────────────────────────────


class Changes:
    """Finds the state change that an emission belongs to, with the timelines of a store or without a store."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._timelines: dict[tuple[str, bytes], Timeline] = {}

    def place(self, namespace: str, key: Key) -> bytes:
        """The key of the emission that this emission joins; its own key if it joins none."""
        assert key.change is not None  # noqa: S101  # only state changes are placed
        placed = place(self.timeline(namespace, key.change.timeline), key.change, key.digest)
        self._timelines[namespace, key.change.timeline] = placed.timeline
        return placed.key

    def timeline(self, namespace: str, digest: bytes) -> Timeline:
        at = namespace, digest
        if at not in self._timelines:
            body = None if self._store is None else self._store.load([Address(*at)])[0].body
            self._timelines[at] = read_timeline(body)
        return self._timelines[at]


class FileSightings:
    """Makes the sightings of the events of a file."""

    def __init__(self, store: Store) -> None:
        self._known, self._assumed = Changes(store), Changes()
        self._count = 0

    def add(self, event: Event, namespace: str, key: Key | None, record: Record | None) -> Sighting | None:
        """The sighting of the next event; None if the event cannot be read. `key` is the key that the settings give the
        event, and `record` is the record of that key."""
        self._count += 1
        if event.problem is not None or event.frame is not None:
            return None
        decisive, emission = None if key is None else key.digest, _change_key(event, key)
        change: Hashable = None
        if emission is not None and emission.change is not None:
            own = key is not None and key.change is not None
            anchor = (self._known if own else self._assumed).place(namespace, emission)
            decisive, change = (anchor if own else decisive), (emission.change.timeline, anchor)
        return Sighting(
            self._count,
            (None, event.source, event.entity),
            event.type,
            None if event.occurred_at is None else microseconds_of(event.occurred_at),
            delivery_id_of(event),
            keys.content_hash(event),
            decisive,
            key is not None and key.binds,
            None if emission is None or emission.change is None else emission.change.state,
            change,
            event.evidence.replay is not None,
            _is_unrun(record),
            record,
        )


def _change_key(event: Event, key: Key | None = None) -> Key | None:
    """The key of the event as a state change: `key` itself if its strategy is state_change. None if the event has no
    entity, state or time."""
    if key is not None and key.change is not None:
        return key
    try:
        return _by_change(event)
    except MissingKey:
        return None


class RecordSightings:
    """Makes the sightings of records. A record has no state. The state comes from the payload, which dead letters and
    waiting events still have, or from the timeline of the entity, if the key strategy is state_change."""

    def __init__(self, store: Store, reader: Reader) -> None:
        self._changes, self._assumed = Changes(store), Changes()
        self._reader = reader

    def of(self, entries: Sequence[Entry]) -> list[Sighting]:
        """The sightings of these records. An event that failed after it was marked as done has two records, and one
        sighting."""
        failed = {(entry.namespace, _key("failed", entry, entry.key.hex())) for entry in entries}
        shown = {number: each for number, each in enumerate(entries, 1) if (each.namespace, each.key) not in failed}
        events = {number: self._event(entry) for number, entry in shown.items()}
        parts: dict[tuple[str | None, ...], dict[str | None, None]] = {}
        for number, event in events.items():
            parts.setdefault(_subject(shown[number]), {None: None})[None if event is None else event.part] = None
        originals = {number: _original(entry, entries) for number, entry in shown.items()}
        found = []
        for number, entry in shown.items():
            sighting = self._sighting(number, entry, events[number], list(parts[_subject(entry)])[:_MOST_PARTS])
            original = originals[number]
            is_conflict = original is not None or entry.key in originals.values()
            found.append(replace(sighting, key=original or sighting.key, binds=is_conflict))
        return found

    def _event(self, entry: Entry) -> Event | None:
        if entry.record.payload is None:
            return None
        _, hints = self._reader(entry.namespace)
        event = understood(delivery(entry.record.payload), hints)
        return event if event.problem is None and event.frame is None else None

    def _sighting(self, number: int, entry: Entry, event: Event | None, parts: Sequence[str | None]) -> Sighting:
        record, about = entry.record, entry.record.about
        state, change, key = None, None, entry.key
        anchor = self._anchor(entry, parts)
        if anchor is not None:
            state, change, key = anchor.state, anchor.key, anchor.key
        elif event is not None and (emission := _change_key(event)) is not None and emission.change is not None:
            state = emission.change.state
            change = self._assumed.place(entry.namespace, emission)
        return Sighting(
            number,
            _subject(entry),
            about.type,
            about.occurred_at,
            about.delivery_id,
            _content(record, event),
            key,
            state=state,
            change=change,
            unrun=_is_unrun(record),
            record=record,
        )

    def _anchor(self, entry: Entry, parts: Sequence[str | None]) -> Anchor | None:
        """The anchor of the record on a timeline of the store: the record itself, or the emission that it joined."""
        about, record = entry.record.about, entry.record
        if about.entity is None or about.occurred_at is None:
            return None
        may_have_joined = record.state == DEAD or _is_unrun(record)
        for part in parts:
            for anchor in self._changes.timeline(entry.namespace, self._timeline_of(entry, part)).anchors:
                if anchor.key == entry.key or (may_have_joined and about.occurred_at in anchor.joined):
                    return anchor
        return None

    def _timeline_of(self, entry: Entry, part: str | None) -> bytes:
        """The address of the timeline that a state change of this record would have. The state does not matter."""
        about = entry.record.about
        event = Event(
            source=about.source,
            type=about.type,
            entity=about.entity,
            part=part,
            state="any",
            occurred_at=EPOCH,
            body={},
        )
        make, _ = self._reader(entry.namespace)
        for strategy in (make, _by_change):
            try:
                key = strategy(event)
            except Exception:  # noqa: BLE001, S112  # the key function is the user's, and this event is not complete
                continue
            if key.change is not None:
                return key.change.timeline
        raise AssertionError("state_change has a timeline for each event with entity, state and time")


def _subject(entry: Entry) -> tuple[str | None, ...]:
    return entry.namespace, entry.record.about.source, entry.record.about.entity


def _content(record: Record, event: Event | None) -> bytes:
    """The hash of the content. The hash in the record of a refused event is made of all its bytes, so it cannot be
    compared with other records."""
    if record.payload is None or record.payload_hash != digest(record.payload):
        return record.payload_hash
    return b"" if event is None else keys.content_hash(event)


def _is_unrun(record: Record | None) -> bool:
    """Whether the record was completed in one write: by mark_first, by seen, or as another emission of a processed
    state change."""
    return record is not None and record.state == COMPLETED and record.completed_at == record.first_seen


def _original(entry: Entry, entries: Sequence[Entry]) -> bytes | None:
    """The key with which the record conflicts; None if it is not the record of a conflict. The key of such a record is
    made of that key and the content, whatever the key strategy is. With on_conflict="run" the record is not a dead
    letter. It is then compared only with records of the same id or time, because there can be many records."""
    record, content = entry.record, entry.record.payload_hash.hex()
    known = (
        other.key
        for other in entries
        if other.namespace == entry.namespace and (record.state == DEAD or _is_alike(record.about, other.record.about))
    )
    return next((key for key in known if _key("conflict", entry, key.hex(), content) == entry.key), None)


def _is_alike(one: EventSummary, other: EventSummary) -> bool:
    return one.delivery_id == other.delivery_id or one.occurred_at == other.occurred_at


def _key(strategy: str, entry: Entry, *parts: str) -> bytes:
    return keys.make(strategy, Event(source=entry.record.about.source, body=None), parts).digest
