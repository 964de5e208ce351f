"""Compare key strategies: the key of each event, and the events that each strategy treats as one.

Memory use: for each event, its id and the hash of its content are stored, and for each strategy the key of the event
and the first event with that key.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.gate.job import delivery_id_of, kind_by_evidence
from oncegate.gate.outcome import Kind
from oncegate.timelines import Timeline, place

_MOST_LISTED: Final = 8
_NO_EVENT: Final = "There is no event to read."
_ONE_EVENT: Final = "There is only one event: add copies of it, or similar events, to compare the strategies."


class NamedStrategy(Struct, frozen=True):
    """A strategy and the text that names it. `own` means that the settings or a flag name the strategy."""

    name: str
    make: keys.Strategy
    own: bool = False


class Merged(Struct, frozen=True):
    """The relation of an event to the first event with the same key: a kind of duplicate, or a conflict."""

    first: int
    kind: Kind
    same_content: bool
    conflict: bool


class Made(Struct, frozen=True):
    """The key of one event under one strategy, or the reason why the event has no key (`missing`).

    If the event joins another emission of the same state change, `key` is the key of that emission and `emission` is
    the event's own key.
    """

    strategy: str
    key: Key | None = None
    emission: Key | None = None
    missing: str | None = None
    merged: Merged | None = None
    stale: bool = False
    splits: bool = False


class Group(Struct, frozen=True):
    """The events with one key, in order, and the relation of each later event to the first event."""

    events: list[int]
    merged: list[Merged]

    @property
    def same_content(self) -> bool:
        return all(each.same_content for each in self.merged)


class Column:
    """The results of one strategy so far. Events are numbered from 1."""

    def __init__(self, strategy: NamedStrategy) -> None:
        self.name, self.own = strategy.name, strategy.own
        self.firsts: list[int | None] = []
        self.merged: dict[int, Merged] = {}
        self.missing: dict[str, list[int]] = {}
        self.splits: list[int] = []
        self._make = strategy.make
        self._known: dict[bytes, int] = {}
        self._timelines: dict[bytes, Timeline] = {}

    @property
    def distinct(self) -> int:
        return sum(first == number for number, first in enumerate(self.firsts, 1))

    @property
    def keyless(self) -> list[int]:
        return sorted(number for numbers in self.missing.values() for number in numbers)

    @property
    def groups(self) -> list[Group]:
        found: dict[int, Group] = {}
        for number, merged in self.merged.items():
            group = found.setdefault(merged.first, Group([merged.first], []))
            group.events.append(number)
            group.merged.append(merged)
        return sorted(found.values(), key=lambda group: group.events)

    def add(self, event: Event, comparison: "StrategyComparison") -> Made:
        """Add the next event; returns its key."""
        number = len(self.firsts) + 1
        made = self._make_key(event)
        if made.key is None:
            self.firsts.append(None)
            self.missing.setdefault(made.missing or "", []).append(number)
            return made
        first = self._known.setdefault(made.key.digest, number)
        if made.emission is not None:  # once the event is processed, its own key is known too
            self._known.setdefault(made.emission.digest, first)
        self.firsts.append(first)
        if made.splits:
            self.splits.append(number)
        if first == number:
            return made
        self.merged[number] = comparison.relation(event, made.key, first)
        return replace(made, merged=self.merged[number])

    def _make_key(self, event: Event) -> Made:
        try:
            key = self._make(event)
        except MissingKey as error:
            return Made(self.name, missing=str(error))
        except Exception as error:  # noqa: BLE001  # the key function is the user's
            text = " ".join(f"{type(error).__name__}: {error}".split())  # the text may have several lines
            return Made(self.name, missing=f"the key function raised {text}")
        return Made(self.name, key) if key.change is None else self._place(key)

    def _place(self, key: Key) -> Made:
        """Place a state change on the timeline of its entity. Its key is the key of the emission that it joins;
        otherwise its own."""
        assert key.change is not None  # noqa: S101  # the caller checks this
        timeline = self._timelines.get(key.change.timeline, Timeline())
        placed = place(timeline, key.change, key.digest)
        self._timelines[key.change.timeline] = placed.timeline
        joined = placed.key != key.digest
        known = replace(key, digest=placed.key) if joined else key
        return Made(self.name, known, key if joined else None, stale=placed.stale, splits=placed.splits)


class StrategyComparison:
    """The results of several strategies for the same events, one column for each strategy."""

    def __init__(self, strategies: Sequence[NamedStrategy]) -> None:
        self.columns = [Column(strategy) for strategy in strategies]
        self.count = 0
        self._ids: list[str | None] = []
        self._contents: list[bytes] = []

    def add(self, event: Event) -> list[Made]:
        """Add the next event; returns its keys. A frame or an unreadable event has no keys and is not counted."""
        if event.problem is not None or event.frame is not None:
            self._skip()
            return []
        self.count += 1
        self._ids.append(delivery_id_of(event))
        self._contents.append(keys.content_hash(event))
        return [column.add(event, self) for column in self.columns]

    def relation(self, event: Event, key: Key, first: int) -> Merged:
        """What a gate would decide about an event with the same key as the event number `first`."""
        same = self._contents[-1] == self._contents[first - 1]
        kind = kind_by_evidence(event, key, self._ids[first - 1], same_content=same)
        return Merged(first, kind, same, key.binds and not same)

    def is_joined(self, one: int, other: int) -> bool:
        """Whether a strategy treats two events as one."""
        return any(column.firsts[one - 1] == column.firsts[other - 1] is not None for column in self.columns)

    def _skip(self) -> None:
        self._ids.append(None)
        self._contents.append(b"")
        for column in self.columns:
            column.firsts.append(None)


# ── advice ────────────────────────────────────────────────────────────────────────────────────────────────


def listed(numbers: Sequence[int]) -> str:
    """Numbers for a sentence: `1`, `1 and 2`, `1, 2 and 3`."""
    if len(numbers) > _MOST_LISTED:
        return f"{', '.join(map(str, numbers[:_MOST_LISTED]))} and {len(numbers) - _MOST_LISTED} more"
    *before, last = map(str, numbers)
    return f"{', '.join(before)} and {last}" if before else last


def advice(comparison: StrategyComparison) -> str:
    """One sentence about the default strategy, and about each strategy that treats the events differently."""
    if comparison.count < 2:
        return _ONE_EVENT if comparison.count else _NO_EVENT
    auto, *others = comparison.columns
    found = [difference for column in others if (difference := _difference(column, auto))]
    rest = found or ["every other strategy with keys for these events agrees"]
    return f"{'; '.join([_default_result(auto, comparison.count), *rest])}."


def _default_result(auto: Column, count: int) -> str:
    groups = auto.groups
    if not groups:
        return f"{auto.name} treats all {count} as different events"
    unequal = [group for group in groups if not group.same_content]
    if unequal:
        return f"{auto.name} treats {listed(unequal[0].events)} as one event but their content differs{_more(unequal)}"
    if len(groups) == 1:
        return f"{auto.name} treats {listed(groups[0].events)} as one event"
    return f"{auto.name} finds {auto.distinct} different events among {count}"


def _difference(column: Column, auto: Column) -> str | None:
    """A text about the events that this strategy treats as one but the default does not, and about the events that the
    default treats as one but this strategy does not. None if there are no such events."""
    merges = [group for group in column.groups if _is_divided(group, auto)]
    splits = [group for group in auto.groups if _is_divided(group, column)]
    found = [_merging(merges)] if merges else []
    if splits:
        found.append(f"treats {listed(_parts(splits[0], column))} as different events{_more(splits)}")
    if column.own and column.missing:
        found.append(f"has no key for {listed(column.keyless)}")
    return f"{column.name} {', and '.join(found)}" if found else None


def _merging(groups: list[Group]) -> str:
    """A text about the first group whose events differ in content; if there is no such group, about the first group."""
    worst = next((group for group in groups if not group.same_content), groups[0])
    content = "and their content is the same" if worst.same_content else "but their content differs"
    return f"treats {listed(worst.events)} as one event {content}{_more(groups)}"


def _more(groups: list[Group]) -> str:
    return f" (and {len(groups) - 1} more)" if len(groups) > 1 else ""


def _is_divided(group: Group, column: Column) -> bool:
    """Whether a column has several keys for the events of a group. Events without a key are ignored."""
    return len(_parts(group, column)) > 1


def _parts(group: Group, column: Column) -> list[int]:
    """For each key that a column has for the events of a group: the first event with this key."""
    parts: dict[int, int] = {}
    for number in group.events:
        if (first := column.firsts[number - 1]) is not None:
            parts.setdefault(first, number)
    return list(parts.values())
