"""Judge each candidate on the whole recording: duplicates caught and missed, and different events merged."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from oncegate.analysis.candidates import KeyCandidate, Origin
from oncegate.analysis.database import RecordingDatabase

# Of several candidates that are equally good, the simplest is best.
_ORDER: Final = ("auto", "event_id", "content", "first", "state_change")
# Strategies that merge different content on purpose. Other content under a key of the others is a conflict.
_MERGING: Final = re.compile(r"state_change|once_per|round=|exclude=")


class Traffic(Struct, frozen=True):
    """How many deliveries of a type are certainly, probably or possibly copies.

    `duplicates` are certain. `inferred` are emissions that are probably copies. `possible` are deliveries that may be
    copies or different events. `conflicts` have the id of another event, and other content."""

    deliveries: int = 0
    duplicates: int = 0
    inferred: int = 0
    possible: int = 0
    conflicts: int = 0

    @property
    def events(self) -> int:
        """The number of events, without the inferred copies."""
        return self.deliveries - self.duplicates - self.inferred


class MergeExample(Struct, frozen=True):
    """Two deliveries, by their positions in the recording: the first, and the one that would be lost or run again."""

    first: int
    second: int


class KeyJudgement(Struct, frozen=True):
    """What a candidate does with the deliveries of a type. `wrong` is the number of events that have the key of a
    different event. `doubtful` is the number of merged deliveries that may be different events. `conflicts` is the
    number of deliveries with other content under one id that are merged. `halves` has the share of duplicates caught
    and the number of wrong merges in the first and in the second half of the recording."""

    name: str
    origin: Origin
    deliveries: int
    keyless: int
    caught: int
    missed: int
    inferred: int
    doubtful: int
    conflicts: int
    wrong: int
    halves: tuple["Half", "Half"]
    lost_example: MergeExample | None = None
    missed_example: MergeExample | None = None

    @property
    def presence(self) -> float:
        return 1 - self.keyless / self.deliveries if self.deliveries else 0.0

    @property
    def is_setting(self) -> bool:
        return self.origin != "tutorial"

    @property
    def binds(self) -> bool:
        """Whether other content under the key is a conflict. The keys of tutorials drop it."""
        return self.is_setting and _MERGING.search(self.name) is None

    @property
    def dropped(self) -> int:
        """Deliveries that are dropped without a trace although they may be different events."""
        return self.doubtful + (0 if self.binds else self.conflicts)

    @property
    def rank(self) -> tuple[Any, ...]:
        """A sort key, the best judgement first: lose nothing, then catch all copies, then be simple."""
        maker = "yours" if self.origin == "yours" else self.name.partition("(")[0]
        simplicity = _ORDER.index(maker) if maker in _ORDER else len(_ORDER)
        return (
            self.wrong,
            self.keyless,
            self.dropped,
            self.missed,
            -self.inferred,
            simplicity,
            len(self.name),
            self.name,
        )


class Half(Struct, frozen=True):
    """The duplicates caught and the wrong merges in a half of the recording."""

    caught: int
    wrong: int


class CandidateColumn(Struct, frozen=True):
    """A candidate and the SQL expression of its key."""

    candidate: KeyCandidate
    key: str


def read_traffic(database: RecordingDatabase) -> dict[int, Traffic]:
    """The traffic of each type."""
    found = {}
    for kind, *counts in database.run("kinds"):
        deliveries, certain, likely, same_id, possible = map(int, counts)
        found[kind] = Traffic(deliveries, deliveries - certain, certain - likely, same_id - possible, likely - same_id)
    return found


def judge(
    database: RecordingDatabase, column: CandidateColumn, traffic: Mapping[int, Traffic], half: int
) -> dict[int, KeyJudgement]:
    """The judgement of a candidate for each type."""
    names = column.candidate.names
    database.run("by_key", key=column.key, half=half)
    database.run("shared")
    caught = {kind: counts for kind, *counts in database.run("caught", half=half)}
    merged: dict[tuple[str, int], Sequence[Any]] = {
        (what, kind): counts for what, kind, *counts in database.run("merged", half=half)
    }
    kinds = traffic.keys() if names is None else traffic.keys() & names.keys()
    missed: dict[int, MergeExample] = {}
    if any(traffic[kind].duplicates > (caught[kind][1] if kind in caught else 0) for kind in kinds):
        missed = {kind: MergeExample(first, second) for kind, first, second in database.run("missed")}
    return {
        kind: _judgement(column.candidate, traffic[kind], kind, caught.get(kind, (0, 0, 0)), merged, missed)
        for kind in kinds
    }


def _judgement(
    candidate: KeyCandidate,
    traffic: Traffic,
    kind: int,
    caught: Sequence[int],
    merged: Mapping[tuple[str, int], Sequence[Any]],
    missed: Mapping[int, MergeExample],
) -> KeyJudgement:
    none = (0, 0, None, None)
    wrong, wrong_early, lost, original = merged.get(("wrong", kind), none)
    with_key, duplicates, early = (int(each or 0) for each in caught)
    return KeyJudgement(
        name=candidate.name_for(kind),
        origin=candidate.origin,
        deliveries=traffic.deliveries,
        keyless=traffic.deliveries - with_key,
        caught=duplicates,
        missed=traffic.duplicates - duplicates,
        inferred=int(merged.get(("likely", kind), none)[0]),
        doubtful=int(merged.get(("possible", kind), none)[0]),
        conflicts=int(merged.get(("same_id", kind), none)[0]),
        wrong=int(wrong),
        halves=(Half(early, int(wrong_early)), Half(duplicates - early, int(wrong - wrong_early))),
        lost_example=None if lost is None else MergeExample(original, lost),
        missed_example=missed.get(kind),
    )


def total(judgements: Iterable[KeyJudgement]) -> KeyJudgement:
    """The judgement of one candidate for all types together."""
    each = list(judgements)

    def sum_of(name: str) -> int:
        return sum(getattr(one, name) for one in each)

    def half(place: int) -> Half:
        return Half(sum(one.halves[place].caught for one in each), sum(one.halves[place].wrong for one in each))

    return KeyJudgement(
        name=each[0].name,
        origin=each[0].origin,
        deliveries=sum_of("deliveries"),
        keyless=sum_of("keyless"),
        caught=sum_of("caught"),
        missed=sum_of("missed"),
        inferred=sum_of("inferred"),
        doubtful=sum_of("doubtful"),
        conflicts=sum_of("conflicts"),
        wrong=sum_of("wrong"),
        halves=(half(0), half(1)),
        lost_example=next((one.lost_example for one in each if one.lost_example), None),
        missed_example=next((one.missed_example for one in each if one.missed_example), None),
    )


def best(judgements: Iterable[KeyJudgement]) -> KeyJudgement:
    """The best judgement of a strategy that the settings can name."""
    return min((each for each in judgements if each.is_setting), key=lambda each: each.rank)
