"""Group dead letters by their error: 500 timeouts with different ids and numbers are one group."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from msgspec import Struct

from oncegate.canonical import digest_of
from oncegate.inspection.record_filter import RecordFilter
from oncegate.stores.base import Entry
from oncegate.text import clean

_LONGEST: Final = 200  # characters of an error that are compared
_ANY: Final = "…"
# A status code is part of what went wrong, so it is kept. Any other number, and any word with a digit, may differ from
# event to event.
_STATUS_CODE: Final = re.compile(r"\b(?:HTTP|status|code|answered|returned|errno)\W{0,3}[1-5]\d\d\b", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"[\w…-]*[\d…][\w…-]*(?:[.:][\w…-]*[\d…][\w…-]*)*")
_LEAST_ID: Final = 4  # characters; a shorter id could be a part of a word


class ErrorGroup(Struct):
    """Dead letters with one kind of error. `error` is the error with its variable parts replaced by `…`. `first` and
    `last` are the times of the oldest and of the newest dead letter, in microseconds since 1970."""

    id: str
    error: str
    count: int
    first: int
    last: int
    types: Counter[str]
    namespaces: set[str]


class DeadLetterGroups(Struct, frozen=True):
    """`groups` has the largest group first. `count` is the number of dead letters in them. `scanned` is the number of
    dead letters that were read, if there are more than were read."""

    groups: Sequence[ErrorGroup]
    count: int
    scanned: int | None


def normal_error(entry: Entry) -> str:
    """The first line of the error, with ids and numbers replaced by `…`."""
    about = entry.record.about
    text = clean((entry.record.error or "").strip().split("\n")[0][: 2 * _LONGEST])
    for own in (about.delivery_id, about.entity):
        if own is not None and len(own) >= _LEAST_ID:
            text = text.replace(own, _ANY)
    return _normal(text)


@lru_cache(maxsize=1_000)
def _normal(text: str) -> str:
    parts, at = [], 0
    for kept in _STATUS_CODE.finditer(text):
        parts += [_VARIABLE.sub(_ANY, text[at : kept.start()]), kept[0]]
        at = kept.end()
    parts.append(_VARIABLE.sub(_ANY, text[at:]))
    return "".join(parts)[:_LONGEST] or "(no error)"


def group_id(entry: Entry) -> str:
    """The id of the group of a dead letter."""
    return _id_of(normal_error(entry))


@lru_cache(maxsize=1_000)
def _id_of(error: str) -> str:
    return digest_of(("dead letters", error)).hex()[:16]


def group_dead_letters(entries: Iterable[Entry], chosen: RecordFilter, most: int) -> DeadLetterGroups:
    """Read up to `most` dead letters, and group those that match. No store has an index of dead letters by time, so
    these are any dead letters, not the newest."""
    source = iter(entries)
    groups: dict[str, ErrorGroup] = {}
    count = 0
    for entry in islice(source, most):
        if chosen.matches(entry):
            count += 1
            _add(groups, entry, chosen.time_of)
    is_cut = next(source, None) is not None
    ordered = sorted(groups.values(), key=lambda group: (-group.count, -group.last, group.id))
    return DeadLetterGroups(ordered, count, most if is_cut else None)


def _add(groups: dict[str, ErrorGroup], entry: Entry, time_of: Callable[[Entry], int]) -> None:
    error, at = normal_error(entry), time_of(entry)
    group = groups.get(error)
    if group is None:
        group = groups[error] = ErrorGroup(_id_of(error), error, 0, at, at, Counter(), set())
    group.count += 1
    group.first, group.last = min(group.first, at), max(group.last, at)
    group.types[entry.record.about.type or "(no type)"] += 1
    group.namespaces.add(entry.namespace)
