"""Plots of a report as SVG: stacked bars, and a curve.

Horizontal positions are percentages, so a plot fills a wide or a narrow page and its text keeps its size. Colours are
classes of the style sheet.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from oncegate.analysis.markup import Markup, element

_TOP: Final = 14  # pixels
_HEIGHT: Final = 150
_BASE: Final = _TOP + _HEIGHT
_BOTTOM: Final = 24
_LEAST: Final = 1.5  # pixels; one copy must be visible beside thousands
_MANY_TICKS: Final = 12
_KINDS: Final = ("redelivery", "re-emission", "replay", "state-echo")


class Tick(Struct, frozen=True):
    """A label of the horizontal axis, at a share of its width. A narrow page shows only some of the labels."""

    at: float
    text: str


def stacked_bars(
    title: str, series: Mapping[str, Sequence[int]], ticks: Sequence[Tick], names: Sequence[str]
) -> Markup:
    """Bars of counts by kind. `names` has the name of each bar, for its tooltip."""
    sums = [sum(counts) for counts in zip(*series.values(), strict=True)] if series else []
    highest = nice_maximum(max(sums, default=0))
    shown = [kind for kind in _KINDS if kind in series]
    bars = [
        element(
            "g",
            element("title", f"{names[place]}: {_counts(series, shown, place)}"),
            _segments([(kind, series[kind][place]) for kind in shown], highest, place, len(sums)),
        )
        for place, total in enumerate(sums)
        if total
    ]
    legend = element("ul", [_legend(kind, sum(series[kind])) for kind in shown], class_="legend")
    return _figure(title, [_grid(highest), bars, _axis(ticks)], highest, legend if shown else None)


def _counts(series: Mapping[str, Sequence[int]], shown: Sequence[str], place: int) -> str:
    return ", ".join(f"{series[kind][place]:,} {kind}" for kind in shown if series[kind][place])


def _legend(kind: str, total: int) -> Markup:
    return element("li", kind, " ", element("b", f"{total:,}"), class_=kind)


def _segments(parts: Sequence[tuple[str, int]], highest: int, place: int, count: int) -> list[Markup]:
    slot, y, made = 100 / count, float(_BASE), []
    for kind, number in parts:
        if number:
            height = max(_LEAST, _HEIGHT * number / highest)
            y -= height
            x = f"{(place + 0.1) * slot:.3f}%"
            made.append(
                element("rect", class_=kind, x=x, y=f"{y:.2f}", width=f"{0.8 * slot:.3f}%", height=f"{height:.2f}")
            )
    return made


def curve(title: str, points: Sequence[tuple[str, float]], marked: str | None) -> Markup:
    """A curve of shares from 0 to 1 over durations. The duration `marked` is drawn as a line."""
    places = [100 * (place + 0.5) / len(points) for place in range(len(points))]
    heights = [_BASE - _HEIGHT * share for _, share in points]
    lines = [
        element("line", class_="curve", x1=f"{x1:.2f}%", y1=f"{y1:.2f}", x2=f"{x2:.2f}%", y2=f"{y2:.2f}")
        for x1, y1, x2, y2 in zip(places, heights, places[1:], heights[1:], strict=False)
    ]
    dots = [
        element("g", element("title", f"{name}: {share:.2%}"), element("circle", cx=f"{x:.2f}%", cy=f"{y:.2f}", r=3))
        for (name, share), x, y in zip(points, places, heights, strict=True)
    ]
    mark = [
        element("line", class_="mark", x1=f"{x:.2f}%", y1=_TOP, x2=f"{x:.2f}%", y2=_BASE)
        for (name, _), x in zip(points, places, strict=True)
        if name == marked
    ]
    ticks = [Tick(x / 100, name) for (name, _), x in zip(points, places, strict=True)]
    return _figure(title, [_grid(4), mark, lines, dots, _axis(ticks)], 4, None, ("0%", "25%", "50%", "75%", "100%"))


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────


def nice_maximum(highest: int) -> int:
    """The end of the vertical axis: 4, 8, 20, 40, 80, 200 …"""
    end = 4
    while end < highest:
        end = end * 5 // 2 if str(end).startswith("8") else end * 2
    return end


def _grid(_highest: int) -> list[Markup]:
    rows = [_BASE - _HEIGHT * part / 4 for part in range(5)]
    return [element("line", class_="axis" if y == _BASE else "grid", x1=0, x2="100%", y1=y, y2=y) for y in rows]


def _axis(ticks: Sequence[Tick]) -> list[Markup]:
    every = 2 if len(ticks) <= _MANY_TICKS else 4
    return [
        element(
            "text",
            tick.text,
            class_="between" if place % every else None,
            x=f"{100 * tick.at:.2f}%",
            y=_BASE + 17,
            text_anchor="start" if tick.at < 0.03 else "end" if tick.at > 0.97 else "middle",
        )
        for place, tick in enumerate(ticks)
    ]


def _figure(
    title: str,
    parts: Sequence[object],
    highest: int,
    legend: Markup | None,
    labels: Sequence[str] | None = None,
) -> Markup:
    texts = labels or [f"{highest * part // 4:,}" for part in range(5)]
    scale = [
        element("text", text, x=50, y=_BASE - _HEIGHT * part / 4 + 4, text_anchor="end")
        for part, text in enumerate(texts)
    ]
    height = _BASE + _BOTTOM
    return element(
        "figure",
        element("figcaption", title),
        element(
            "div",
            element("svg", scale, class_="scale", width=56, height=height, aria_hidden="true"),
            element("svg", *parts, class_="plot", height=height, role="img", aria_label=title),  # type: ignore[arg-type]
            class_="plot-row",
        ),
        legend,
    )
