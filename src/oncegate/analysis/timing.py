"""Times of a recording: gaps between copies, order of arrival, and what a retention or a window would catch."""

from collections.abc import Sequence
from math import ceil
from typing import Final

from msgspec import Struct

from oncegate.analysis.database import RecordingDatabase
from oncegate.durations import microseconds, spoken

SECOND: Final = 1_000_000  # microseconds
DAY: Final = 86_400 * SECOND
RETENTIONS: Final = (
    *("1s", "5s", "15s", "1m", "2m", "5m", "15m", "30m", "1h", "2h", "4h", "8h", "12h", "1d", "2d", "3d", "4d"),
    *("5d", "7d", "14d", "30d"),
)
WINDOWS: Final = ("50ms", "100ms", "200ms", "300ms", "500ms", "1s", "2s", "3s", "5s")
DEFAULT_RETENTION: Final = "7d"
DEFAULT_WINDOW: Final = "500ms"
SLOTS: Final = 48  # bars of the chart over time
# Bytes of one completed key, as docs/operations.md measures them.
BYTES_PER_KEY: Final = {"SQLite": 300, "Redis": 215, "Postgres": 530, "DynamoDB": 1_000}
# US dollars in us-east-1, on demand: a million write units, and a gigabyte of storage for a month.
WRITE_UNITS: Final = 0.625
STORED: Final = 0.25
_MONTH: Final = 30 * DAY
_ENOUGH: Final = 0.999


class CurvePoint(Struct, frozen=True):
    """How many of the copies with a known gap a duration catches."""

    duration: str
    caught: int


class GapCount(Struct, frozen=True):
    """Copies of one kind whose gap is from 10^(step/4) to 10^((step+1)/4) microseconds."""

    copy: str
    step: int
    count: int
    longest: int


class StoreSize(Struct, frozen=True):
    store: str
    bytes: int


class Timing(Struct, frozen=True):
    """The times of a recording, in microseconds. `arrivals` is the number of deliveries whose time of arrival or of
    publication is known. `late` are events that arrive after a later event of their entity; `ties` have the time of
    another event of their entity. `slots` counts copies over time by kind."""

    begin: int | None
    end: int | None
    arrivals: int
    gaps: list[GapCount]
    known_gaps: int
    retention_curve: list[CurvePoint]
    echoes: int
    window_curve: list[CurvePoint]
    ordered: int
    late: int
    ties: int
    lateness: tuple[int, int, int] | None
    slots: dict[str, list[int]]

    @property
    def span(self) -> int:
        return 0 if self.begin is None or self.end is None else self.end - self.begin

    @property
    def longest_gap(self) -> int:
        """The longest gap of a copy that is not from a replay."""
        return max((each.longest for each in self.gaps if each.copy != "replay"), default=0)


def measure(database: RecordingDatabase) -> Timing:
    begin, end, _, _, arrivals = database.run("span")[0]
    *kept, known = database.run("retention", counts=_counts(RETENTIONS))[0]
    *joined, echoes = database.run("windows", counts=_counts(WINDOWS))[0]
    ordered, late, ties = database.run("order")[0]
    timed, *lateness = database.run("lateness")[0]
    slots: dict[str, list[int]] = {}
    if begin is not None:
        step = max(1, ceil((end - begin) / SLOTS))
        for copy, slot, count in database.run("over_time", begin=begin, step=step, last=SLOTS - 1):
            slots.setdefault(copy, [0] * SLOTS)[slot] += count
    return Timing(
        begin=begin,
        end=end,
        arrivals=arrivals,
        gaps=[GapCount(*row) for row in database.run("gaps")],
        known_gaps=known,
        retention_curve=[CurvePoint(*pair) for pair in zip(RETENTIONS, kept, strict=True)],
        echoes=echoes,
        window_curve=[CurvePoint(*pair) for pair in zip(WINDOWS, joined, strict=True)],
        ordered=ordered,
        late=late,
        ties=ties,
        lateness=(lateness[0], lateness[1], lateness[2]) if timed else None,
        slots=slots,
    )


def _counts(durations: Sequence[str]) -> str:
    return ", ".join(f"count(*) filter (gap <= {microseconds(each)})" for each in durations)


class Choice(Struct, frozen=True):
    """A recommended duration, and the reason."""

    duration: str
    reason: str


def choose_window(echoes: int, curve: Sequence[CurvePoint]) -> Choice:
    """The shortest window that joins nearly all emissions of one state change."""
    if not echoes:
        return Choice(DEFAULT_WINDOW, "no state change was emitted twice, so the default stays")
    for point in curve:
        if point.caught >= _ENOUGH * echoes:
            return Choice(point.duration, f"it joins {point.caught:,} of {echoes:,} repeated emissions of a state")
    return Choice(curve[-1].duration, f"it joins {curve[-1].caught:,} of {echoes:,} repeated emissions of a state")


def choose_retention(timing: Timing, sources: set[str]) -> Choice:
    """Twice the longest gap that was seen, and at least the longest delay that the platforms document. A recording
    cannot show a gap that is longer than itself."""
    seen = f"the longest gap between copies is {spoken(timing.longest_gap)}" if timing.known_gaps else "no gap is known"
    platform = (
        "Genesys and EventBridge can repeat an event for 5 days"
        if "genesys" in sources
        else "queues and senders can repeat an event for days"
    )
    needed = max(2 * timing.longest_gap, microseconds(DEFAULT_RETENTION))
    duration = next((each for each in RETENTIONS if microseconds(each) >= needed), f"{ceil(needed / DAY)}d")
    if duration == DEFAULT_RETENTION:
        return Choice(duration, f"{seen}; {platform}, and a recording of {spoken(timing.span)} cannot show all of that")
    return Choice(duration, f"{seen}, and the retention is twice as long")


def store_sizes(events_per_second: float, retention: int) -> list[StoreSize]:
    held = events_per_second * retention / SECOND
    return [StoreSize(store, round(held * size)) for store, size in BYTES_PER_KEY.items()]


def dynamodb_price(events: int, copies: int, span: int, retention: int) -> tuple[float, str]:
    """The price of DynamoDB for a month in US dollars, and the formula."""
    if not span:
        return 0.0, ""
    monthly_events, monthly_copies = events * _MONTH / span, copies * _MONTH / span
    units = 2 * monthly_events + monthly_copies
    stored = events / span * retention * BYTES_PER_KEY["DynamoDB"] / 1e9
    price = units / 1e6 * WRITE_UNITS + stored * STORED
    formula = (
        f"(2 * {monthly_events:,.0f} events + {monthly_copies:,.0f} copies) * ${WRITE_UNITS} per million write units"
        f" + {stored:,.1f} GB * ${STORED}"
    )
    return price, formula
