"""Comparing: the keys of events under several strategies, and which of the events each would take for one.

Of each event no more is kept than its id, the hash of its content, and for each strategy its key and the event that
its key was first seen with.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from oncegate import keys
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.gate.job import delivery_id_of, kind_by_evidence
from oncegate.gate.outcome import Kind
from oncegate.timelines import Timeline, place


class Named(Struct, frozen=True):
    """A strategy as it is written. `own`: somebody has chosen it, in the settings or by a flag."""

    name: str
    make: keys.Strategy
    own: bool = False


class Merged(Struct, frozen=True):
    """What an event is to the first with its key: a duplicate of some kind, or a conflict."""

    first: int
    kind: Kind
    same_content: bool
    conflict: bool


class Made(Struct, frozen=True):
    """The key of one event under one strategy, or why it has none.

    `key` is the one under which it is known. Where that is another emission's, `emission` is the one of its own.
    """

    strategy: str
    key: Key | None = None
    emission: Key | None = None
    missing: str | None = None
    merged: Merged | None = None
    stale: bool = False
    splits: bool = False


class Group(Struct, frozen=True):
    """Events with one key, in order, and what each but the first is to the first."""

    events: list[int]
    merged: list[Merged]

    @property
    def same_content(self) -> bool:
        return all(each.same_content for each in self.merged)


class Column:
    """One strategy and what it has made of the events so far. Events are known by their numbers, from 1 on."""

    def __init__(self, named: Named) -> None:
        self.name, self.own = named.name, named.own
        self.firsts: list[int | None] = []
        self.merged: dict[int, Merged] = {}
        self.missing: dict[str, list[int]] = {}
        self.splits: list[int] = []
        self._make = named.make
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

    def add(self, event: Event, others: "StrategyComparison") -> Made:
        """The key of the event that comes next."""
        number = len(self.firsts) + 1
        made = self._made(event)
        if made.key is None:
            self.firsts.append(None)
            self.missing.setdefault(made.missing or "", []).append(number)
            return made
        first = self._known.setdefault(made.key.digest, number)
        if made.emission is not None:  # once it is processed, its own key is known too
            self._known.setdefault(made.emission.digest, first)
        self.firsts.append(first)
        if made.splits:
            self.splits.append(number)
        if first == number:
            return made
        self.merged[number] = others.judged(event, made.key, first)
        return replace(made, merged=self.merged[number])

    def _made(self, event: Event) -> Made:
        try:
            key = self._make(event)
        except MissingKey as error:
            return Made(self.name, missing=str(error))
        except Exception as error:  # noqa: BLE001  # the key function is the user's
            return Made(self.name, missing=f"its key function raised {type(error).__name__}: {error}")
        return Made(self.name, key) if key.change is None else self._placed(key)

    def _placed(self, key: Key) -> Made:
        """A state change, by the timeline of its entity: under its own key or that of the emission that it joins."""
        assert key.change is not None  # noqa: S101  # only these are placed
        timeline = self._timelines.get(key.change.timeline, Timeline())
        placed = place(timeline, key.change, key.digest)
        self._timelines[key.change.timeline] = placed.timeline
        joined = placed.key != key.digest
        known = replace(key, digest=placed.key) if joined else key
        return Made(self.name, known, key if joined else None, stale=placed.stale, splits=placed.splits)


class StrategyComparison:
    """A column for each strategy, over the same events."""

    def __init__(self, strategies: Sequence[Named]) -> None:
        self.columns = [Column(named) for named in strategies]
        self.count = 0
        self._ids: list[str | None] = []
        self._contents: list[bytes] = []

    def add(self, event: Event) -> list[Made]:
        """The keys of the next event; none if it is none or cannot be read, and then it is not counted."""
        if event.problem is not None or event.frame is not None:
            self._skip()
            return []
        self.count += 1
        self._ids.append(delivery_id_of(event))
        self._contents.append(keys.content_hash(event))
        return [column.add(event, self) for column in self.columns]

    def judged(self, event: Event, key: Key, first: int) -> Merged:
        """What a gate would say of an event whose key was first seen with that one."""
        same = self._contents[-1] == self._contents[first - 1]
        kind = kind_by_evidence(event, key, self._ids[first - 1], same_content=same)
        return Merged(first, kind, same, key.binds and not same)

    def _skip(self) -> None:
        self._ids.append(None)
        self._contents.append(b"")
        for column in self.columns:
            column.firsts.append(None)


# Advice: one sentence on what sets the strategies apart, for somebody who has to choose one.


_MOST_LISTED = 8

_NONE = "There is no event in it."
_ONE = "That is one event: give others of its kind, or copies of it, to see what each strategy makes of them."


def listed(numbers: Sequence[int]) -> str:
    """Numbers for a sentence: `1`, `1 and 2`, `1, 2 and 3`."""
    if len(numbers) > _MOST_LISTED:
        return f"{', '.join(map(str, numbers[:_MOST_LISTED]))} and {len(numbers) - _MOST_LISTED} more"
    *before, last = map(str, numbers)
    return f"{', '.join(before)} and {last}" if before else last


def advice(comparison: StrategyComparison) -> str:
    """How the default takes the events, and each strategy that takes them otherwise."""
    if comparison.count < 2:
        return _ONE if comparison.count else _NONE
    auto, *others = comparison.columns
    found = [said for column in others if (said := _against(column, auto))]
    rest = found or ["no other strategy that has a key for them takes them otherwise"]
    return f"{'; '.join([_of_default(auto, comparison.count), *rest])}."


def _of_default(auto: Column, count: int) -> str:
    groups = auto.groups
    if not groups:
        return f"{auto.name} keeps all {count} apart"
    unequal = [group for group in groups if not group.same_content]
    if unequal:
        return f"{auto.name} takes {listed(unequal[0].events)} for one, which differ in content{_more(unequal)}"
    if len(groups) == 1:
        return f"{auto.name} takes {listed(groups[0].events)} for one event"
    return f"{auto.name} finds {auto.distinct} events in these {count}"


def _against(column: Column, auto: Column) -> str | None:
    """What the strategy takes for one that the default does not, and what it keeps apart."""
    merges = [group for group in column.groups if _is_divided(group, auto)]
    splits = [group for group in auto.groups if _is_divided(group, column)]
    said = [_merging(merges)] if merges else []
    if splits:
        said.append(f"would keep {listed(_parted(splits[0], column))} apart{_more(splits)}")
    if column.own and column.missing:
        said.append(f"has no key for {listed(column.keyless)}")
    return f"{column.name} {', and '.join(said)}" if said else None


def _merging(groups: list[Group]) -> str:
    """The worst of them: what differs in content."""
    worst = next((group for group in groups if not group.same_content), groups[0])
    what = "say the same" if worst.same_content else "differ in content"
    return f"would merge {listed(worst.events)}, which {what}{_more(groups)}"


def _more(groups: list[Group]) -> str:
    return f" (and {len(groups) - 1} more)" if len(groups) > 1 else ""


def _is_divided(group: Group, column: Column) -> bool:
    """Whether a column keeps events of a group apart; those without a key there say nothing."""
    return len(_parted(group, column)) > 1


def _parted(group: Group, column: Column) -> list[int]:
    """Of the events of a group, the first of each part that a column keeps apart."""
    parts: dict[int, int] = {}
    for number in group.events:
        if (first := column.firsts[number - 1]) is not None:
            parts.setdefault(first, number)
    return list(parts.values())
