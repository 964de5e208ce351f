"""Find small combinations of fields that distinguish the events of a type, in a sample of the recording.

The search goes level by level: single fields, then pairs, up to four fields. A combination that distinguishes all
events of the sample is minimal if no part of it does. The result is a suggestion: the whole recording judges it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, Final

from oncegate.analysis.delivery_rows import without_times
from oncegate.canonical import content_digest
from oncegate.events import Event

MOST_PATHS: Final = 30
MOST_FIELDS: Final = 4
MOST_EVENTS: Final = 600  # of each type
_MOST_TRIED: Final = 150  # combinations on each level
_LEAST_PRESENCE: Final = 0.99
_LEAST_EVENTS: Final = 20  # a combination that distinguishes fewer events means little
_DEEPEST: Final = 4
_LONGEST: Final = 256
_IDENTIFYING: Final = re.compile(r"(?i)id$|key$|number$|version$|sequence|time|date|state|status|type|name$")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_$][\w$-]*", re.ASCII)


def combinations(events: Sequence[Event], most: int) -> list[str]:
    """The best minimal combinations for events of one type, as strategies, such as `fields("case.id", "status")`.

    Events with the same time and the same body, apart from other times in it, count as copies. A path at which copies
    differ is not stable, and is left out."""
    groups: dict[Any, list[Event]] = {}
    for event in events:
        groups.setdefault((event.occurred_at, content_digest(without_times(event.body))), []).append(event)
    rows = [group[0] for group in groups.values()][:MOST_EVENTS]
    if len(rows) < _LEAST_EVENTS:
        return []
    unstable = set().union(*map(_unstable, groups.values()))
    columns = _columns(rows, unstable)
    found = sorted(_minimal(columns, len(rows)), key=lambda paths: (len(paths), _strangeness(paths), paths))
    return [f"fields({', '.join(_quoted(path) for path in paths)})" for paths in found[:most]]


def _quoted(path: str) -> str:
    return f'"{path}"'


def _unstable(copies: Sequence[Event]) -> set[str]:
    """The paths at which copies of an event differ."""
    first = dict(leaves(copies[0].body))
    return {path for copy in copies[1:] for path, _ in first.items() ^ dict(leaves(copy.body)).items()}


def _columns(rows: Sequence[Event], unstable: Set[str]) -> dict[str, list[int]]:
    """The best stable paths, each with the number of its value in each row. A path must have values in nearly all rows,
    and more than one value."""
    values: dict[str, list[Any]] = {}
    for place, event in enumerate(rows):
        for path, value in leaves(event.body):
            column = values.setdefault(path, [])
            column.extend([None] * (place - len(column)))
            column.append(value)
    found: dict[str, list[int]] = {}
    for path, column in values.items():
        present = sum(value is not None for value in column)
        numbers: dict[Any, int] = {}
        coded = [numbers.setdefault(value, len(numbers)) for value in column]
        if path not in unstable and present >= _LEAST_PRESENCE * len(rows) and len(numbers) > 1:
            found[path] = coded + [len(numbers)] * (len(rows) - len(coded))
    best = sorted(found, key=lambda path: (_strangeness((path,)), -len(set(found[path])), path))
    return {path: found[path] for path in best[:MOST_PATHS]}


def leaves(value: Any, before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The paths of a body that have a simple value, and the values. Lists are left out, because the place of an item
    can change from copy to copy."""
    if type(value) is not dict or depth == _DEEPEST:
        return
    for name, inner in value.items():
        if not _PLAIN_NAME.fullmatch(name):
            continue
        if type(inner) is dict:
            yield from leaves(inner, f"{before}{name}.", depth + 1)
        elif type(inner) in (str, int, float, bool) and inner != "":
            yield f"{before}{name}", inner if type(inner) is not str else inner[:_LONGEST]


def _strangeness(paths: Iterable[str]) -> int:
    """How many of the paths do not have a name that usually identifies an event."""
    return sum(_IDENTIFYING.search(path) is None for path in paths)


def _minimal(columns: dict[str, list[int]], count: int) -> list[tuple[str, ...]]:
    """The minimal combinations of columns that have `count` different rows."""
    found: list[tuple[str, ...]] = []
    level: dict[tuple[str, ...], list[int]] = {(path,): column for path, column in columns.items()}
    for size in range(1, MOST_FIELDS + 1):
        unique = [paths for paths, column in level.items() if len(set(column)) == count]
        found += unique
        if size == MOST_FIELDS:
            break
        level = _next_level({paths: column for paths, column in level.items() if paths not in unique}, columns, found)
    return found


def _next_level(
    level: dict[tuple[str, ...], list[int]], columns: dict[str, list[int]], found: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], list[int]]:
    """Each combination of a level with one more column. Combinations with the most different rows are tried first."""
    ranked = sorted(level, key=lambda paths: -len(set(level[paths])))
    order = list(columns)
    made: dict[tuple[str, ...], list[int]] = {}
    for paths in ranked:
        for path in order[order.index(paths[-1]) + 1 :]:
            if len(made) == _MOST_TRIED:
                return made
            wider = (*paths, path)
            if not any(set(each) <= set(wider) for each in found):
                made[wider] = _refined(level[paths], columns[path])
    return made


def _refined(one: Sequence[int], other: Sequence[int]) -> list[int]:
    numbers: dict[tuple[int, int], int] = {}
    return [numbers.setdefault(pair, len(numbers)) for pair in zip(one, other, strict=True)]


def sampled_combinations(samples: dict[int, list[Event]], most: int) -> dict[int, list[str]]:
    """The combinations for each type of a sample."""
    return {kind: found for kind, events in samples.items() if (found := combinations(events, most))}
