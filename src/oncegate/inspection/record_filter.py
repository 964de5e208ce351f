"""Select records, and keep the newest of them."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, State
from oncegate.clocks import wall
from oncegate.durations import microseconds
from oncegate.gate.job import shortened
from oncegate.inspection.records import no_progress
from oncegate.settings import Settings
from oncegate.stores.base import Entry
from oncegate.text import clean

STATES: Final[dict[str, State]] = {
    "completed": COMPLETED,
    "in-progress": IN_PROGRESS,
    "released": RELEASED,
    "dead": DEAD,
}
_MOST_SEARCHED: Final = 10_000  # records that are read to find other namespaces
_MOST_NAMED: Final = 5
_CLOCKS_DIFFER: Final = 300_000_000  # microseconds between the clock of the store and the clock of this machine


class RecordFilter(Struct, frozen=True):
    """Selects records. A record must match every field that is not None. `error` is a part of the error, in any case of
    letters. `time_of` returns the time from which `older_than` and `newer_than` are counted, in microseconds."""

    time_of: Callable[[Entry], int] = lambda entry: entry.record.first_seen
    state: State | None = None
    id: str | None = None
    type: str | None = None
    entity: str | None = None
    error: str | None = None
    older_than: int | None = None
    newer_than: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the filter selects every record."""
        return replace(self, time_of=RecordFilter().time_of) == RecordFilter()

    def matches(self, entry: Entry) -> bool:
        record, about = entry.record, entry.record.about
        wanted = ((self.id, about.delivery_id), (self.type, about.type), (self.entity, about.entity))
        return (
            self.state in (None, record.state)
            and all(name is None or shortened(name) == found for name, found in wanted)
            and (self.error is None or _contains(record.error or "", self.error))
            and self._matches_age(entry)
        )

    def _matches_age(self, entry: Entry) -> bool:
        if self.older_than is None and self.newer_than is None:
            return True
        age = wall() - self.time_of(entry)
        return (self.older_than is None or age > self.older_than) and (self.newer_than is None or age < self.newer_than)


def _contains(error: str, part: str) -> bool:
    """Whether the error contains the part, as it is stored or as the commands show it."""
    return any(part.casefold() in text.casefold() for text in (error, clean(error)))


def dead_since(entry: Entry, retentions: dict[str | None, int]) -> int:
    """The time at which the event became a dead letter: its expiry minus `dead_letter_retention` of its namespace.

    Records do not store this time. If the settings have another `dead_letter_retention` than the program that buried
    the event, the result may be impossible: before the first delivery, or in the future. In this case, the time of the
    first delivery is returned."""
    record = entry.record
    retention = retentions.get(entry.namespace, retentions[None])
    since = record.first_seen if record.expires_at is None else record.expires_at - retention
    return since if record.first_seen <= since <= wall() + _CLOCKS_DIFFER else record.first_seen


def time_of_dead_letters(settings: Settings) -> Callable[[Entry], int]:
    """The function `dead_since` with the retentions of these settings."""
    retentions: dict[str | None, int] = {None: microseconds(settings["dead_letter_retention"])}
    for each in (*settings.routes.values(), settings):
        retentions[each["namespace"]] = microseconds(each["dead_letter_retention"])
    return partial(dead_since, retentions=retentions)


# ── the newest records ────────────────────────────────────────────────────────────────────────────────────


class Newest:
    """The newest of the records that were added, at most `limit` of them, without their payloads. A record that is
    added twice is kept once: a scan may yield a record twice."""

    def __init__(self, limit: int, time_of: Callable[[Entry], int]) -> None:
        self._limit = limit
        self._time_of = time_of
        self._oldest_first: list[tuple[int, str, bytes]] = []
        self._entries: dict[tuple[str, bytes], Entry] = {}
        self.is_cut = False  # whether more than `limit` records were added

    def add(self, entry: Entry) -> None:
        address = (entry.namespace, entry.key)
        if address in self._entries:
            return
        self._entries[address] = replace(entry, record=replace(entry.record, payload=None))
        heappush(self._oldest_first, (self._time_of(entry), *address))
        if len(self._oldest_first) > self._limit:
            self.is_cut = True
            _, namespace, key = heappop(self._oldest_first)
            del self._entries[namespace, key]

    @property
    def entries(self) -> list[Entry]:
        return [self._entries[namespace, key] for _, namespace, key in sorted(self._oldest_first, reverse=True)]


class Listing(Struct, frozen=True):
    """The newest records that match a filter. `count` is the number of matches. `is_cut`: there are more matches than
    `entries`. `scanned` is the number of records that were read, if there are more records than were read."""

    entries: list[Entry]
    count: int
    is_cut: bool
    scanned: int | None


def list_newest(
    records: Iterable[Entry],
    chosen: RecordFilter,
    limit: int,
    scan: int,
    progress: Callable[[int], object] = no_progress,
) -> Listing:
    """Read up to `scan` records, and return the newest `limit` records that match. `progress` is called with the number
    of records that were read. No store keeps an index by time, because an index would add a write to every claim."""
    source = iter(records)
    newest, count, scanned = Newest(limit, chosen.time_of), 0, 0
    for scanned, entry in enumerate(islice(source, scan), 1):
        progress(scanned)
        if chosen.matches(entry):
            count += 1
            newest.add(entry)
    stopped = next(source, None) is not None
    return Listing(newest.entries, count, newest.is_cut, scanned if stopped else None)


def empty_listing(
    what: str, chosen: RecordFilter, namespace: str | None, records: Callable[[str | None], Iterator[Entry]]
) -> str:
    """The text for a listing without rows. `what` is the noun of the records, without the plural s, and `records`
    yields the records of a namespace, or of all namespaces. If the namespace has no records, the text names other
    namespaces that have records. To find them, at most 10,000 records are read."""
    if namespace is None or next(records(namespace), None) is not None:
        return f"There are no {what}s." if chosen.is_empty else f"No {what} matches."
    text = f"There are no {what}s in namespace {namespace}."
    others = sorted({entry.namespace for entry in islice(records(None), _MOST_SEARCHED)})
    if not others:
        return text
    names = ", ".join([*others[:_MOST_NAMED], *(["…"] if len(others) > _MOST_NAMED else [])])
    return f"{text} There are {what}s in other namespaces: {names}."
