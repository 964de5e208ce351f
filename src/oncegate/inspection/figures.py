"""Figures of a time range, from the totals and rows of a journal: deliveries, duplicates and latencies."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import ceil
from typing import Final, TypeAlias, get_args

from msgspec import Struct

from oncegate.gate.outcome import STATUSES, Kind
from oncegate.journal import Journal, Row, Total
from oncegate.journal.base import ALL_ROWS
from oncegate.settings import Settings
from oncegate.settings.routes import is_described, name_of, routes_of

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
# On a route that stores events before it runs them, rows with these statuses are attempts of stored events.
OF_ATTEMPTS: Final = frozenset({"processed", "failed", "buried", "unguarded"})

# The number of events by status and kind, and by the start of an interval.
StatusCounts: TypeAlias = Mapping[tuple[str, str | None], Counter[int]]


class RangeTotals(Struct, frozen=True):
    """The totals of a range, without rows that record what an operator did.

    A delivery is counted once in `deliveries`, with the first decision about it. A route that stores events first
    records a second decision for each attempt of a stored event: these are in `attempts`. Every other route runs an
    event while its delivery waits, so all its totals are deliveries.

    On a route that stores events first, a total does not say whether an event failed or was buried when it arrived or
    in an attempt. These events are in `attempts`: most of them arrived earlier, and were accepted."""

    deliveries: Sequence[Total]
    attempts: Sequence[Total]
    storing: Collection[str] = frozenset()  # the routes that store events first

    @property
    def everything(self) -> list[Total]:
        return [*self.deliveries, *self.attempts]

    def of_place(self, place: str) -> "RangeTotals":
        """Returns the totals of one route or queue."""
        return RangeTotals(
            [each for each in self.deliveries if each.place == place],
            [each for each in self.attempts if each.place == place],
            self.storing,
        )

    def is_attempt(self, each: Total | Row) -> bool:
        """Whether a total or a row is of attempts of stored events."""
        return each.status in OF_ATTEMPTS and each.place in self.storing


def read_totals(journal: Journal, settings: Settings, since: int, until: int, every: int) -> RangeTotals:
    """Read the totals from `since` to `until` (microseconds since 1970), for each interval of `every` microseconds."""
    totals = [each for each in journal.totals(ALL_ROWS, since, until, every) if each.status in STATUSES]
    storing = {each.place for each in totals if each.status == "accepted"} | _storing_routes(settings)
    found = RangeTotals([], [], storing)
    return RangeTotals(
        [each for each in totals if not found.is_attempt(each)],
        [each for each in totals if found.is_attempt(each)],
        storing,
    )


def _storing_routes(settings: Settings) -> set[str]:
    """The routes of the configured service that store events first. In a range, such a route may only have attempts of
    events that were accepted earlier."""
    if not is_described(settings) or settings["serve.mode"] != "inbox":
        return set()
    return {name_of(path) for path in routes_of(settings)}


def by_status_and_kind(totals: Iterable[Total]) -> StatusCounts:
    """Returns the number of events by interval, for each status and kind, in the order of STATUSES and KINDS."""
    found: dict[tuple[str, str | None], Counter[int]] = {}
    for each in totals:
        found.setdefault((each.status, each.kind), Counter())[each.start] += each.count
    statuses, kinds = list(STATUSES), [None, *KINDS]
    return dict(sorted(found.items(), key=lambda item: (_place(item[0][0], statuses), _place(item[0][1], kinds))))


def count(counts: StatusCounts, *statuses: str) -> int:
    """Returns the number of events with one of the statuses; without statuses, of all events."""
    return sum(each.total() for (status, _), each in counts.items() if not statuses or status in statuses)


def _place(value: str | None, known: Sequence[str | None]) -> int:
    return known.index(value) if value in known else len(known)


class TopEntry(Struct, frozen=True):
    """A type, route or entity with its number of duplicates, of `deliveries` deliveries. `deliveries` is 0 if it is not
    known."""

    name: str | None
    duplicates: int
    deliveries: int = 0


def top_duplicates(totals: Iterable[Total], name: Callable[[Total], str | None], most: int) -> list[TopEntry]:
    """Returns the types or routes with the most duplicates, from totals of deliveries."""
    duplicates: Counter[str | None] = Counter()
    deliveries: Counter[str | None] = Counter()
    for each in totals:
        deliveries[name(each)] += each.count
        if each.status == "duplicate":
            duplicates[name(each)] += each.count
    return [TopEntry(named, number, deliveries[named]) for named, number in _highest(duplicates, most)]


def _highest(numbers: Counter[str | None], most: int) -> list[tuple[str | None, int]]:
    """The names with the highest numbers. Equal numbers are in the order of the names, so that a page does not change
    from one load to the next."""
    return sorted(numbers.items(), key=lambda item: (-item[1], item[0] or ""))[:most]


def top_entities(rows: Iterable[Row], most: int) -> list[TopEntry]:
    """Returns the entities with the most duplicates, from rows of duplicates."""
    found: Counter[str | None] = Counter()
    for row in rows:
        if row.entity:
            found[row.entity] += row.count
    return [TopEntry(entity, number) for entity, number in _highest(found, most)]


class Latencies(Struct, frozen=True):
    """The median and the 95th percentile of `count` durations, in microseconds. Both are None if there are none."""

    count: int
    median: int | None = None
    p95: int | None = None


def latencies(durations: Collection[int]) -> Latencies:
    ordered = sorted(durations)
    if not ordered:
        return Latencies(0)
    return Latencies(len(ordered), _quantile(ordered, 0.5), _quantile(ordered, 0.95))


def _quantile(ordered: Sequence[int], share: float) -> int:
    """The nearest-rank quantile: the smallest value that at least this share of the values does not exceed."""
    return ordered[max(1, ceil(share * len(ordered))) - 1]


def lag_of(rows: Iterable[Row], totals: RangeTotals) -> Latencies:
    """The time from an event's own time to its arrival. Duplicates are left out, because a copy can arrive days later.
    Attempts of stored events are left out, too."""
    arrived = (row for row in rows if row.status != "duplicate" and not totals.is_attempt(row))
    return latencies([row.lag for row in arrived if row.lag is not None])


def handler_time_of(rows: Iterable[Row]) -> Latencies:
    """How long handlers ran."""
    return latencies([row.took for row in rows if row.took is not None])
