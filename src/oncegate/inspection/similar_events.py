"""Compare similar events of a file: the members in which they differ, and states that may have two names."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

from oncegate import keys, lifecycles
from oncegate.canonical import decode
from oncegate.errors import MissingKey
from oncegate.events import Event
from oncegate.gate.outcome import differences
from oncegate.sources.fields import parsed
from oncegate.times import moment

# Payloads that are held to name differing members. The rest of a larger file is compared by its hashes only.
_MOST_HELD: Final = 16 * 1024 * 1024  # bytes
_DEEPEST: Final = 4  # levels at which the body of an event is searched in its document
_MOST_NAMED: Final = 5
_WINDOW: Final = 500_000  # microseconds
_by_change = keys.state_change()

# Whether a key strategy treats two events, given by their numbers, as one event.
Joined = Callable[[int, int], bool]


class Report(Struct, frozen=True, order=True):
    """The state change that an event reports. `timeline` has the source, the family of the type, the entity and the
    part; `content` is the hash of the content."""

    at: int
    number: int
    timeline: tuple[Any, ...]
    state: str
    content: bytes


class SameState(Struct, frozen=True):
    """Two events that report the same state of one entity, with different content. `apart` is in microseconds."""

    events: tuple[int, int]
    state: str
    apart: int


class TwoNames(Struct, frozen=True):
    """Two events that report two states of one entity for the same moment."""

    events: tuple[int, int]
    states: tuple[str, str]
    apart: int


class SimilarEvents:
    """The events of a file, numbered from 1."""

    def __init__(self) -> None:
        self._events: list[Event | None] = []
        self._reports: list[Report] = []
        self._held = 0

    def add(self, event: Event) -> None:
        self._held += len(event.raw)
        readable = event.problem is None and event.frame is None
        self._events.append(event if readable and self._held <= _MOST_HELD else None)
        if readable and (report := _report(event, len(self._events))) is not None:
            self._reports.append(report)

    def differing(self, one: int, *others: int) -> list[str]:
        """The paths of the members in which the other events differ from the first event; empty if they are not known.
        If there are more than five, the last item is `…`."""
        first = self._events[one - 1]
        found: dict[str, None] = {}
        for number in others:
            other = self._events[number - 1]
            if first is None or other is None:
                continue
            prefix = _path_to_body(other)
            paths = differences(first.body, other.body, most=_MOST_NAMED + 1)
            found |= dict.fromkeys(f"{prefix}{path}" for path in paths)
        named = list(found)
        return [*named[:_MOST_NAMED], "…"] if len(named) > _MOST_NAMED else named

    def same_state(self, joined: Joined) -> list[SameState]:
        """Neighbouring events with the same entity and state but different content that no strategy treats as one."""
        return [
            SameState((one.number, other.number), one.state, other.at - one.at)
            for one, other in _neighbours(self._reports, by_state=True)
            if one.content != other.content and not joined(one.number, other.number)
        ]

    def two_names(self, joined: Joined) -> list[TwoNames]:
        """Neighbouring events at most 500 ms apart whose states may be two names of one state, and which no strategy
        treats as one."""
        return [
            TwoNames((one.number, other.number), (one.state, other.state), other.at - one.at)
            for one, other in _neighbours(self._reports, by_state=False)
            if other.at - one.at <= _WINDOW
            and one.state != other.state
            and not joined(one.number, other.number)
            and self._may_be_one_state(one, other)
        ]

    def _may_be_one_state(self, one: Report, other: Report) -> bool:
        """Whether the names are known to mean one state. For a name that Oncegate does not know, whether the contents
        differ only in the state, the id, the type and the time."""
        if one.state in lifecycles.RANKS and other.state in lifecycles.RANKS:
            return lifecycles.is_same_state(one.state, other.state)
        first, second = self._events[one.number - 1], self._events[other.number - 1]
        if first is None or second is None:
            return False
        return all(
            _is_incidental(first, second, path.split(".")) for path in differences(first.body, second.body, most=100)
        )


def alias_setting(found: Sequence[TwoNames]) -> str:
    """The key strategy that makes these names equal, as the settings write it. Events without a state get their default
    key, because state_change alone would refuse them."""
    meaning: dict[str, str] = {}
    for names in found:
        low, high = sorted(_end(meaning, state) for state in names.states)
        if low != high:
            meaning[low] = high
    aliases = {state: _end(meaning, state) for state in meaning}
    return f'first(state_change("500ms", aliases={json.dumps(aliases)}), auto)'


def _end(meaning: dict[str, str], state: str) -> str:
    while state in meaning:
        state = meaning[state]
    return state


def _report(event: Event, number: int) -> Report | None:
    try:
        key = _by_change(event)
    except MissingKey:
        return None
    assert key.change is not None  # noqa: S101  # state_change makes no other key
    *timeline, state, at = key.parts
    return Report(at, number, (event.source, *timeline), state, keys.content_hash(event))


def _neighbours(reports: Sequence[Report], *, by_state: bool) -> Iterator[tuple[Report, Report]]:
    """Pairs of events that follow each other in time on one timeline; with `by_state`, also with one state."""
    found: dict[tuple[Any, ...], list[Report]] = {}
    for each in reports:
        found.setdefault((*each.timeline, each.state) if by_state else each.timeline, []).append(each)
    for bucket in found.values():
        yield from pairwise(sorted(bucket))


def _path_to_body(event: Event) -> str:
    """The path of the body in the document that arrived, with a dot at its end, such as `detail.eventBody.`. Empty if
    the body is the document."""
    level = [("", decode(event.raw))] if event.raw else []
    for _ in range(_DEEPEST):
        for path, value in level:
            if value == event.body:
                return path
        level = [
            (f"{path}{member}.", parsed(inner))
            for path, value in level
            if isinstance(value, dict)
            for member, inner in value.items()
        ]
    return ""


def _is_incidental(one: Event, other: Event, path: Sequence[str]) -> bool:
    """Whether two events differ at this path only in their state, id, type or time."""
    return all(_is_field(event, _value_at(event.body, path)) for event in (one, other))


def _value_at(value: Any, path: Sequence[str]) -> Any:
    for member in path:
        value = value.get(member) if isinstance(value, dict) else None
    return value


def _is_field(event: Event, value: Any) -> bool:
    if value is None or isinstance(value, dict | list):
        return False
    names = {name.casefold() for name in (event.id, event.type, event.state) if name is not None}
    return str(value).casefold() in names or (event.occurred_at is not None and moment(value) == event.occurred_at)
