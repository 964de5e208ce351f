"""How well the keys of each route and type fit: strategies, duplicates, conflicts, and events without a key."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from oncegate.durations import times
from oncegate.inspection.figures import RangeTotals
from oncegate.journal import Journal, Row, RowFilter

CONTENT: Final = frozenset({"auto.content", "content"})  # `auto` uses these strategies for events without an id
_STORED: Final = "kept"  # of attempts of stored events: the record does not have the strategy of its key
NEWEST: Final = 5_000  # rows from which the strategies are read
_WITHOUT_KEY: Final = ("invalid", "unguarded", "skipped")  # the statuses of events that may have no key
NEWEST_REFUSED: Final = 500  # rows of each of these statuses
_OFTEN: Final = 0.5  # the share of duplicates from which the sender should be checked
_FEW: Final = 20  # deliveries; the share of duplicates of fewer deliveries says little

Tone: TypeAlias = Literal["bad", "warn", "info", "good"]


class Judgement(Struct, frozen=True):
    """How serious a sign is, its name, and a sentence that says what it means and what to do."""

    tone: Tone
    name: str
    sentence: str


class KeyUse(Struct, frozen=True):
    """The keys of one route and type, in a range. `ratios` has the share of duplicates for each interval. `refused` and
    `unguarded` are numbers of events without a key, and `reason` is the reason of the newest of them. `strategies` has
    the number of rows by strategy, of the newest rows. `setting` is the key of the route in the settings; None if the
    settings do not have the route. `skipped` is the number of messages that are no events, such as heartbeats."""

    place: str
    type: str | None
    deliveries: int = 0
    duplicates: int = 0
    conflicts: int = 0
    ratios: Sequence[float] = ()
    strategies: Counter[str] = Counter()
    refused: int = 0
    unguarded: int = 0
    reason: str | None = None
    setting: str | None = None
    skipped: int = 0

    @property
    def uses_content(self) -> bool:
        """Whether the whole content is the key of some events."""
        return not CONTENT.isdisjoint(self.strategies)

    @property
    def is_content_chosen(self) -> bool:
        """Whether the settings name the strategy `content`, alone or as a part of another strategy."""
        return self.setting is not None and "content" in self.setting

    @property
    def ratio(self) -> float:
        return self.duplicates / self.deliveries if self.deliveries else 0.0

    @property
    def is_skipped(self) -> bool:
        """Whether all deliveries are messages that are no events."""
        return not self.strategies and 0 < self.deliveries <= self.skipped

    @property
    def judgement(self) -> Judgement:
        """What the worst sign means."""
        if self.conflicts:
            return Judgement(
                "bad",
                "weak key",
                f"{times(self.conflicts, 'event')} had the key of another event, but different content. The key is too"
                " weak: add a part that differs between these events.",
            )
        if self.unguarded:
            return Judgement(
                "bad",
                "no key",
                f"{times(self.unguarded, 'event')} ran without protection from duplicates, because no key could be"
                " made. Choose a strategy whose parts every event has.",
            )
        if self.refused:
            return Judgement(
                "bad",
                "no key",
                f"The gate refused {times(self.refused, 'event')} without a key: a part of the key is missing, or the"
                " payload cannot be read. Choose a strategy whose parts every event has, or check what the sender"
                " sends.",
            )
        if self.uses_content and not self.is_content_chosen:
            return Judgement(
                "warn",
                "content as key",
                "The whole content is the key of events without an id. A copy with any difference, such as a new"
                " timestamp, runs again. Name the fields that identify an event.",
            )
        if self.ratio > _OFTEN and self.deliveries >= _FEW:
            return Judgement(
                "info",
                "many copies",
                "More than half of the deliveries are duplicates. The key works. Check why the sender delivers so"
                " often: slow answers and several subscriptions are the usual causes.",
            )
        if self.uses_content:
            return Judgement(
                "info",
                "content as key",
                "The settings choose the content as the key. A copy with any difference in this content, such as a new"
                " timestamp, runs again.",
            )
        if self.is_skipped:
            return Judgement(
                "good",
                "skipped",
                "These messages are no events, such as heartbeats. The gate skips them, and they need no key.",
            )
        if not self.strategies:
            return Judgement("info", "unknown", "The newest rows do not show which strategy made the keys.")
        return Judgement("good", "good", "No conflict, and every event has a key.")


def read_key_uses(
    journal: Journal,
    totals: RangeTotals,
    starts: Sequence[int],
    since: int,
    until: int,
    settings: Mapping[str, str],
) -> list[KeyUse]:
    """Returns the use of keys by route and type: the worst judgement first, then the most deliveries. `settings` has
    the key of each route in the settings."""
    found: dict[tuple[str, str | None], _Sums] = {}
    for each in totals.deliveries:
        sums = found.setdefault((each.place, each.type), _Sums())
        sums.deliveries[each.start] += each.count
        if each.status == "duplicate":
            sums.duplicates[each.start] += each.count
        elif each.status == "conflict":
            sums.conflicts += each.count
    for each in totals.everything:
        if each.status in _WITHOUT_KEY:
            found.setdefault((each.place, each.type), _Sums()).totals[each.status] += each.count
    _read_strategies(journal.rows(RowFilter(since=since, until=until), limit=NEWEST), found)
    for status in _WITHOUT_KEY:
        _read_without_key(journal.rows(RowFilter(status=status, since=since, until=until), limit=NEWEST_REFUSED), found)
    uses = [_use_of(*name, sums, starts, settings.get(name[0])) for name, sums in found.items()]
    order: tuple[Tone, ...] = ("bad", "warn", "info", "good")
    return sorted(uses, key=lambda use: (order.index(use.judgement.tone), -use.deliveries, use.place, use.type or ""))


class _Sums:
    """What is known about one route and type so far."""

    def __init__(self) -> None:
        self.deliveries: Counter[int] = Counter()
        self.duplicates: Counter[int] = Counter()
        self.conflicts = 0
        self.strategies: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.with_key: Counter[str] = Counter()
        self.without_key: Counter[str] = Counter()
        self.reason: str | None = None

    def number_without_key(self, status: str) -> int:
        """The number of events with this status and without a key. A total does not say whether its events have a key.
        If no row of the newest rows has a key, the total is returned, which also counts copies that have no row."""
        if self.with_key[status] or not self.without_key[status]:
            return self.without_key[status]
        return max(self.totals[status], self.without_key[status])


def _read_strategies(rows: Iterable[Row], found: dict[tuple[str, str | None], _Sums]) -> None:
    for row in rows:
        if row.strategy not in ("", _STORED) and (row.place, row.type) in found:
            found[row.place, row.type].strategies[row.strategy] += row.count


def _read_without_key(rows: Iterable[Row], found: dict[tuple[str, str | None], _Sums]) -> None:
    """Count the events with and without a key. An event that was stored without protection has a random key of the
    strategy `unguarded`."""
    for row in rows:
        sums = found.setdefault((row.place, row.type), _Sums())
        if row.key and row.strategy != "unguarded":
            sums.with_key[row.status] += row.count
        else:
            sums.without_key[row.status] += row.count
            if row.status != "skipped":
                sums.reason = sums.reason or row.reason


def _use_of(place: str, named: str | None, sums: _Sums, starts: Sequence[int], setting: str | None) -> KeyUse:
    ratios = [sums.duplicates[at] / sums.deliveries[at] if sums.deliveries[at] else 0.0 for at in starts]
    return KeyUse(
        place,
        named,
        sums.deliveries.total(),
        sums.duplicates.total(),
        sums.conflicts,
        ratios,
        sums.strategies,
        sums.number_without_key("invalid"),
        sums.number_without_key("unguarded"),
        sums.reason,
        setting,
        sums.number_without_key("skipped"),
    )
