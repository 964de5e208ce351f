"""Charts as SVG, made on the server: stacked bars over time, and sparklines.

The content security policy forbids inline styles, so colours come from classes of the style sheet, and positions are
attributes. Horizontal positions are percentages: a chart fills its place at any width, and its text keeps its size.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Final

import htpy as h
from msgspec import Struct

from oncegate.console.components import table
from oncegate.console.requests import Request
from oncegate.times import EPOCH

MINUTE: Final = 60_000_000  # microseconds
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
_TOP: Final = 12  # pixels above the plot, for the upper half of the highest label
_HEIGHT: Final = 168  # pixels of the plot
_BOTTOM: Final = 24  # pixels below the plot, for the labels of the time axis
_BASE: Final = _TOP + _HEIGHT
_LEAST: Final = 1.5  # pixels; a bar of one event must be visible beside a bar of a million events
_WIDEST: Final = 6.0  # percent of the width; a single bar must not fill the whole chart
_MOST_TICKS: Final = 8
_TICKS: Final = (
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY),
)
_UNITS: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


class Series(Struct, frozen=True):
    """Counts of one kind. `counts` has a number for each interval. `style` is the class that sets the colour.
    `address` returns the address of the page that shows what was counted, in one interval or (None) in all of them."""

    name: str
    style: str
    counts: Sequence[int]
    address: Callable[[int | None], str]

    @property
    def total(self) -> int:
        return sum(self.counts)


class Intervals(Struct, frozen=True):
    """The intervals of a chart, from `begin` to `end`. The first interval can start before `begin`, and the last can go
    beyond `end`. Times are in microseconds since 1970. `address` returns the address of the page that shows what was
    counted in an interval."""

    starts: Sequence[int]
    begin: int
    end: int
    every: int
    address: Callable[[int], str]

    def text(self, number: int) -> str:
        """The time of an interval, such as `18 Nov 12:00 to 12:30 UTC`."""
        start, end = max(self.begin, self.starts[number]), min(self.starts[number] + self.every, self.end)
        last = _clock(end) if _day(start) == _day(end) else f"{_day(end)} {_clock(end)}"
        return f"{_day(start)} {_clock(start)} to {last} UTC"


# ── stacked bars ──────────────────────────────────────────────────────────────────────────────────────────


def stacked_bars(request: Request, name: str, title: str, series: Sequence[Series], intervals: Intervals) -> h.Element:
    """A chart with one bar for each interval, with a legend. The first series is at the bottom of each bar. Series
    without events are left out. `name` makes the ids of the chart unique on its page. If it is the parameter `table` of
    the request, a table of the same numbers is below the chart."""
    shown = [each for each in series if each.total]
    sums = [sum(counts) for counts in zip(*(each.counts for each in shown), strict=True)] if shown else []
    step = _axis_step(max(sums, default=0))
    highest = step * max(1, -(-max(sums, default=0) // step))
    return h.figure(".bars", aria_labelledby=f"{name}-title")[
        h.figcaption("#" + f"{name}-title")[title],
        h.div(".plot")[
            h.svg(width="100%", height=str(_BASE + _BOTTOM), role="group", aria_labelledby=f"{name}-title {name}-desc")[
                h.desc("#" + f"{name}-desc")[_description(shown, sums, intervals)],
                h.g(aria_hidden="true")[
                    _grid(step, highest),
                    _time_axis(intervals),
                    _bars(shown, sums, highest, intervals)
                    if shown
                    else h.text(x="50%", y=str(_TOP + _HEIGHT // 2), text_anchor="middle")["Nothing in this range"],
                ],
            ],
            _scale(step, highest),
        ],
        [_legend(shown), _table(request, name, title, shown, sums, intervals)] if shown else None,
    ]


def _axis_step(highest: int) -> int:
    """The distance of two lines of the grid: 1, 2 or 5 times a power of ten, for two to five lines."""
    step = 1
    while highest > 4 * step:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return step


def _grid(step: int, highest: int) -> Iterator[h.Element]:
    for value in range(0, highest + 1, step):
        y = str(_y(value, highest))
        yield h.line(class_="axis" if value == 0 else "grid", x1="0", x2="100%", y1=y, y2=y)


def _scale(step: int, highest: int) -> h.Element:
    """The labels of the grid, beside the plot."""
    return h.svg(".scale", width="44", height=str(_BASE + _BOTTOM), aria_hidden="true")[
        (
            h.text(x="38", y=str(_y(value, highest) + 4), text_anchor="end")[short_number(value)]
            for value in range(0, highest + 1, step)
        )
    ]


def _y(value: int, highest: int) -> float:
    return round(_BASE - _HEIGHT * value / highest, 1)


def _time_axis(intervals: Intervals) -> Iterator[h.Element]:
    """The labels of the time axis, at whole hours or days. A narrow screen shows every second label."""
    first, end = intervals.starts[0], intervals.starts[-1] + intervals.every
    step = next((each for each in _TICKS if (end - first) // each < _MOST_TICKS), None)
    if step is None:
        step = -(-(end - first) // (_MOST_TICKS * DAY)) * DAY
    for place, mark in enumerate(range(-(-first // step) * step, end, step)):
        at = 100 * (mark - first) / (end - first)
        yield h.text(
            class_="between" if place % 2 else None,
            x=f"{at:.2f}%",
            y=str(_BASE + 17),
            text_anchor="start" if at < 4 else "end" if at > 96 else "middle",
        )[_tick_text(mark, step)]


def _tick_text(start: int, step: int) -> str:
    return _day(start) if step >= DAY or start % DAY == 0 else _clock(start)


def _bars(series: Sequence[Series], sums: Sequence[int], highest: int, intervals: Intervals) -> Iterator[h.Element]:
    slot = 100 / len(sums)
    width = min(0.8 * slot, _WIDEST)
    for number, total in enumerate(sums):
        if not total:
            continue
        parts = [(each, each.counts[number]) for each in series if each.counts[number]]
        x = f"{(number + 0.5) * slot - width / 2:.3f}%"
        said = ", ".join(f"{count:,} {each.name}" for each, count in parts)
        # The table below the chart has the same links for the keyboard.
        yield h.a(href=intervals.address(number), tabindex="-1")[
            h.title[f"{intervals.text(number)}: {said}"],
            h.rect(".hit", x=f"{number * slot:.3f}%", y=str(_TOP), width=f"{slot:.3f}%", height=str(_HEIGHT)),
            _segments(parts, highest, x, f"{width:.3f}%"),
        ]


def _segments(parts: Sequence[tuple[Series, int]], highest: int, x: str, width: str) -> Iterator[h.Element]:
    """The parts of a bar. If small parts need more than their share, the bar can be a few pixels too high; the space
    above the plot has room for them."""
    y = float(_BASE)
    for each, count in parts:
        height = max(_LEAST, _HEIGHT * count / highest)
        y -= height
        yield h.rect(class_=["fill", each.style], x=x, y=f"{y:.2f}", width=width, height=f"{height:.2f}")


def _legend(series: Sequence[Series]) -> h.Element:
    return h.ul(".legend")[
        (
            h.li(class_=each.style)[h.a(href=each.address(None))[each.name, " ", h.strong[f"{each.total:,}"]]]
            for each in series
        )
    ]


def _table(
    request: Request, name: str, title: str, series: Sequence[Series], sums: Sequence[int], intervals: Intervals
) -> h.Node:
    """The numbers of a chart, newest interval first. The table is larger than the rest of a page, so it is made only if
    the request asks for it."""
    if request.query.get("table") != name:
        return h.p[h.a(".soft", href=f"{request.url(table=name)}#{name}-table")["Show as a table"]]
    rows = (
        [
            h.a(href=intervals.address(number))[intervals.text(number)],
            *(
                h.a(".count", href=each.address(number))[f"{each.counts[number]:,}"] if each.counts[number] else "0"
                for each in series
            ),
        ]
        for number in reversed(range(len(sums)))
        if sums[number]
    )
    return h.div(".stack", id=f"{name}-table")[
        h.p(".soft")["Intervals without events are left out. ", h.a(href=request.url(table=None))["Hide the table"]],
        table(title, ["Time", *(each.name for each in series)], rows),
    ]


def _description(series: Sequence[Series], sums: Sequence[int], intervals: Intervals) -> str:
    if not sums:
        return "Nothing in this range."
    named = ", ".join(f"{each.total:,} {each.name}" for each in series)
    top = max(range(len(sums)), key=sums.__getitem__)
    return f"{sum(sums):,} in total: {named}. The highest bar has {sums[top]:,}, {intervals.text(top)}."


# ── sparklines ────────────────────────────────────────────────────────────────────────────────────────────


def sparkline(values: Sequence[float], text: str) -> h.Element:
    """A line without axes, of values from 0 to 1. `text` says what the line shows, for screen readers and as a
    tooltip."""
    drawn = values if len(values) > 1 else [*values, *values]
    heights = [23 - 22 * min(1.0, max(0.0, value)) for value in drawn]
    points = " ".join(f"{100 * place / (len(drawn) - 1):.2f},{height:.2f}" for place, height in enumerate(heights))
    return h.svg(".spark", viewBox="0 0 100 24", preserveAspectRatio="none", role="img", aria_label=text)[
        h.title[text],
        h.polygon(".area", points=f"0,24 {points} 100,24"),
        h.polyline(".stroke", points=points, vector_effect="non-scaling-stroke"),
    ]


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────


def short_number(value: int) -> str:
    """A number with at most four digits, such as `1.5k` or `20M`."""
    for unit, name in _UNITS:
        if value >= unit:
            return f"{value / unit:.1f}".removesuffix(".0") + name
    return str(value)


def _clock(time_us: int) -> str:
    return (EPOCH + timedelta(microseconds=time_us)).strftime("%H:%M")


def _day(time_us: int) -> str:
    when = EPOCH + timedelta(microseconds=time_us)
    return f"{when.day} {when.strftime('%b')}"
