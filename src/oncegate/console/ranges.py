"""The time range of a screen, as parameters of a URL: `range`, or `since` and `until`."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import htpy as h
from msgspec import Struct

from oncegate.clocks import wall
from oncegate.console.charts import DAY, HOUR, MINUTE, Intervals
from oncegate.console.event_filter import read_filter
from oncegate.console.requests import Request, link
from oncegate.times import EPOCH, rfc3339

# The length of each range, and the interval of its charts. A journal on SQLite sums a million counters of 14 days in
# less than 100 ms if the result has few intervals; see benchmarks/journal.py.
RANGES: Final = {
    "15m": (15 * MINUTE, MINUTE),
    "1h": (HOUR, 2 * MINUTE),
    "6h": (6 * HOUR, 10 * MINUTE),
    "24h": (DAY, 30 * MINUTE),
    "7d": (7 * DAY, 4 * HOUR),
    "14d": (14 * DAY, 12 * HOUR),
}
_NAMES: Final = {
    "15m": "15 minutes",
    "1h": "1 hour",
    "6h": "6 hours",
    "24h": "24 hours",
    "7d": "7 days",
    "14d": "14 days",
}
_DEFAULT: Final = "24h"
_MOST_INTERVALS: Final = 60
_STEPS: Final = (*(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 12 * HOUR, DAY),)


class TimeRange(Struct, frozen=True):
    """A range from `since` to `until` (microseconds since 1970, whole minutes, `until` is not included), and the
    interval of its charts. `name` is a name of RANGES; None if the URL has `since` or `until`. `problem` says which
    parameter is invalid; an invalid parameter is ignored."""

    since: int
    until: int
    every: int
    name: str | None = None
    problem: str | None = None

    @property
    def starts(self) -> list[int]:
        """The start of each interval. `totals` of a journal has the same starts."""
        first = self.since // self.every * self.every
        return list(range(first, self.until, self.every))

    def events(self, number: int | None = None, **query: str | None) -> str:
        """The address of the Events screen with this range or one of its intervals, and these filters. A range that
        ends now has no `until`, so that the page shows new events."""
        since, until = self.since, None if self.name else self.until
        if number is not None:
            start = (self.since // self.every + number) * self.every
            since, until = max(start, self.since), min(start + self.every, self.until)
        return link("/events", {**query, "since": rfc3339(since), "until": rfc3339(until)})

    def intervals(self, address: Callable[[int], str]) -> Intervals:
        return Intervals(self.starts, self.since, self.until, self.every, address)


def read_range(query: Mapping[str, str], now: int | None = None) -> TimeRange:
    """Returns the range of a URL: `since` and `until`, or `range`, or the last 24 hours."""
    now = wall() if now is None else now
    end = -(-now // MINUTE) * MINUTE
    given = read_filter(query, now)
    since, until, problem = given.where.since, given.where.until, given.problem
    if since is None and until is None:
        named = query.get("range", _DEFAULT).strip() or _DEFAULT
        if named not in RANGES:
            problem = f"range={named!r} is not a range; it is one of {', '.join(RANGES)}"
            named = _DEFAULT
        length, every = RANGES[named]
        # A range starts with a whole interval: a shorter first bar would look like less traffic.
        return TimeRange((end - length) // every * every, end, every, named, problem)
    last = end if until is None else -(-until // MINUTE) * MINUTE
    first = last - DAY if since is None else since // MINUTE * MINUTE
    if first >= last:
        problem, first = "since must be before until", last - DAY
    first = max(0, first)
    days = -(-(last - first) // (_MOST_INTERVALS * DAY)) * DAY
    every = next((step for step in _STEPS if (last - first) // step < _MOST_INTERVALS), days)
    return TimeRange(first, last, every, None, problem)


def range_links(request: Request, chosen: TimeRange) -> h.Element:
    """Links to this page with each of the ranges."""
    return h.nav(".tabs", aria_label="Time range")[
        (
            h.a(
                href=request.url(range=name, since=None, until=None),
                aria_label=_NAMES[name],
                title=_NAMES[name],
                aria_current="page" if name == chosen.name else None,
            )[name]
            for name in RANGES
        )
    ]


def range_text(chosen: TimeRange) -> h.Node:
    """The start and the end of a range in words."""
    return ["From ", _minute(chosen.since), " to ", "now" if chosen.name else _minute(chosen.until)]


def _minute(time_us: int) -> h.Element:
    when = EPOCH + timedelta(microseconds=time_us)
    return h.time(datetime=rfc3339(time_us))[f"{when:%Y-%m-%d %H:%M} UTC"]
