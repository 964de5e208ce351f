"""Charts: bars over time in every shape of data, their text for screen readers, and sparklines."""

import re
from collections.abc import Sequence
from html.parser import HTMLParser

import htpy as h
import pytest

from oncegate.console.charts import Intervals, Series, short_number, sparkline, stacked_bars
from oncegate.console.pages.overview import series_class
from oncegate.console.requests import Request
from oncegate.gate.outcome import STATUSES
from oncegate.inspection.figures import KINDS
from tests.console.test_style import CSS, contrast, variables

MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
START = 1_789_948_800 * 1_000_000  # 2026-09-21 00:00 UTC


class Parsed(HTMLParser):
    """The elements of a chart, and its text."""

    def __init__(self, node: h.Element) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(str(node))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str, style: str = "") -> list[dict[str, str]]:
        return [given for name, given in self.elements if name == tag and style in given.get("class", "")]


def request(**query: str) -> Request:
    return Request("GET", "/", query, {})


def intervals(number: int, every: int = 30 * MINUTE, start: int = START) -> Intervals:
    starts = [start + place * every for place in range(number)]
    return Intervals(starts, start, start + number * every, every, lambda place: f"/console/events?at={place}")


def series(counts: Sequence[int], name: str = "processed") -> Series:
    return Series(name, f"series-{name}", counts, lambda place: f"/console/events?status={name}&at={place}")


def chart(*given: Series, every: int = 30 * MINUTE, start: int = START, **query: str) -> Parsed:
    number = len(given[0].counts) if given else 3
    return Parsed(stacked_bars(request(**query), "c", "Deliveries", given, intervals(number, every, start)))


def heights(parsed: Parsed, name: str) -> list[float]:
    return [float(each["height"]) for each in parsed.of("rect", f"series-{name}")]


def test_parts_are_stacked_in_proportion() -> None:
    parsed = chart(series([4, 0]), series([2, 4], "failed"))
    lower, upper = parsed.of("rect", "series-processed")[0], parsed.of("rect", "series-failed")[0]

    assert heights(parsed, "processed")[0] == pytest.approx(2 * heights(parsed, "failed")[0])
    assert float(upper["y"]) + float(upper["height"]) == pytest.approx(float(lower["y"]), abs=0.02)
    assert lower["x"] == upper["x"]


def test_a_gap_has_no_bar() -> None:
    parsed = chart(series([1, 0, 0, 1]))

    assert len(parsed.of("a")) == 2 + 1 + 1  # two bars, the legend, and the link to the table
    assert len(parsed.of("rect", "fill")) == 2


@pytest.mark.parametrize("given", [(), (series([0, 0, 0]),)])
def test_nothing_to_show(given: tuple[Series, ...]) -> None:
    parsed = chart(*given)

    assert "Nothing in this range" in parsed.texts
    assert not parsed.of("rect")
    assert not parsed.of("ul")


def test_one_interval_does_not_fill_the_chart() -> None:
    (bar,) = chart(series([5])).of("rect", "fill")

    assert float(bar["width"].removesuffix("%")) <= 6
    assert float(bar["x"].removesuffix("%")) == pytest.approx(47)


def test_one_event_is_visible_beside_a_million() -> None:
    parsed = chart(series([1_000_000, 0]), series([1, 1], "conflict"))

    assert min(heights(parsed, "conflict")) >= 1
    assert all(float(each["y"]) >= 0 for each in parsed.of("rect"))


@pytest.mark.parametrize("highest", [1, 2, 3, 4, 5, 7, 9, 10, 11, 99, 100, 101, 4_999, 10**6, 7 * 10**12])
def test_the_scale_has_few_whole_numbers_and_includes_every_bar(highest: int) -> None:
    parsed = chart(series([highest, 0, 1]))
    (scale,) = (place for place, (tag, given) in enumerate(parsed.elements) if given.get("class") == "scale")
    labels = [given for tag, given in parsed.elements[scale:] if tag == "text"]

    assert 2 <= len(labels) <= 6
    assert max(heights(parsed, "processed")) <= 168 + 0.01
    assert max(heights(parsed, "processed")) >= 168 / 2.6


@pytest.mark.parametrize(
    ("number", "every", "expected"),
    [
        (15, MINUTE, ["21 Sep", "00:02", "00:04"]),
        (48, 30 * MINUTE, ["21 Sep", "04:00", "08:00"]),
        (42, 4 * HOUR, ["21 Sep", "22 Sep", "23 Sep"]),
        (28, 12 * HOUR, ["22 Sep", "24 Sep", "26 Sep"]),
        (1, MINUTE, ["21 Sep"]),
        (60, 30 * DAY, []),
    ],
)
def test_the_time_axis_has_whole_hours_or_days(number: int, every: int, expected: list[str]) -> None:
    parsed = chart(series([1] * number), every=every)
    svg = parsed.texts[: parsed.texts.index("0")] if "0" in parsed.texts else parsed.texts
    ticks = [text for text in svg if re.fullmatch(r"\d\d:\d\d|\d{1,2} [A-Z][a-z]{2}", text)]

    assert ticks[: len(expected)] == expected
    assert 1 <= len(ticks) <= 9
    assert [float(each["x"].removesuffix("%")) <= 100 for each in parsed.of("text") if each["x"].endswith("%")]


def test_screen_readers_get_a_title_a_description_and_a_table() -> None:
    parsed = chart(series([1_200, 34]), series([0, 6], "failed"))
    (svg, _scale), (desc,) = parsed.of("svg"), parsed.of("desc")

    assert svg["aria-labelledby"].split() == ["c-title", desc["id"]]
    assert parsed.of("g")[0]["aria-hidden"] == "true"
    assert all(each["tabindex"] == "-1" for each in parsed.of("a") if "at=0" in each["href"])
    text = "1,240 in total: 1,234 processed, 6 failed. The highest bar has 1,200, 21 Sep 00:00 to 00:30 UTC."
    assert text in parsed.texts
    (to_table,) = (each["href"] for each in parsed.of("a") if "table" in each["href"])
    assert to_table == "/console/?table=c#c-table"


def test_the_table_has_the_numbers_and_their_links() -> None:
    parsed = chart(series([1_200, 0, 34]), series([0, 0, 6], "failed"), table="c")

    assert [text for text in parsed.texts if text.endswith("UTC")] == [
        "21 Sep 01:00 to 01:30 UTC",
        "21 Sep 00:00 to 00:30 UTC",
    ]
    links = [each["href"] for each in parsed.of("a", "count")]
    assert links == [
        "/console/events?status=processed&at=2",
        "/console/events?status=failed&at=2",
        "/console/events?status=processed&at=0",
    ]


def test_the_first_and_the_last_interval_can_be_shorter() -> None:
    given = Intervals([START, START + HOUR], START + MINUTE, START + 90 * MINUTE, HOUR, lambda _: "")

    assert given.text(0) == "21 Sep 00:01 to 01:00 UTC"
    assert given.text(1) == "21 Sep 01:00 to 01:30 UTC"
    assert Intervals([START], START, START + DAY, DAY, str).text(0) == "21 Sep 00:00 to 22 Sep 00:00 UTC"


def test_colours_come_from_classes_only() -> None:
    parsed = chart(series([1, 2]))

    assert not any("style" in given or "fill" in given for _, given in parsed.elements)


def test_hostile_names_are_text() -> None:
    name = "<script>alert(1)</script>"
    parsed = chart(Series(name, "series-failed", [1], lambda _: "/console/events"), table="c")

    assert not parsed.of("script")
    assert any(name in text for text in parsed.texts)


@pytest.mark.parametrize(
    ("values", "points"),
    [
        ([], ""),
        ([0.5], "0.00,12.00 100.00,12.00"),
        ([0, 1], "0.00,23.00 100.00,1.00"),
        ([-1, 9, 0], "0.00,23.00 50.00,1.00 100.00,23.00"),
    ],
)
def test_a_sparkline(values: list[float], points: str) -> None:
    parsed = Parsed(sparkline(values, "18% & more"))

    assert parsed.of("polyline")[0]["points"] == points
    assert parsed.of("svg")[0]["aria-label"] == "18% & more"
    assert parsed.texts == ["18% & more"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1_000, "1k"), (1_500, "1.5k"), (20_000, "20k"), (10**6, "1M"), (25 * 10**11, "2.5T")],
)
def test_short_numbers(value: int, text: str) -> None:
    assert short_number(value) == text


# ── the style sheet ───────────────────────────────────────────────────────────────────────────────────────


def mixed(rule: str, colours: dict[str, str]) -> str:
    """The colour of a rule such as `color-mix(in srgb, var(--good) 78%, var(--panel))`."""
    if plain := re.fullmatch(r"var\(--([\w-]+)\)", rule):
        return colours[plain[1]]
    found = re.fullmatch(r"color-mix\(in srgb, var\(--([\w-]+)\) (\d+)%, var\(--([\w-]+)\)\)", rule)
    assert found is not None, rule
    share = int(found[2]) / 100
    pairs = [(int(colours[found[1]][at : at + 2], 16), int(colours[found[3]][at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(share * one + (1 - share) * other):02x}" for one, other in pairs)


def series_rules() -> dict[str, str]:
    rules = re.findall(r"((?:\.series-[\w-]+,?\s+)+)\{\s+--tone: ([^;]+);", CSS)
    return {name: tone for names, tone in rules for name in re.findall(r"series-[\w-]+", names)}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_series_has_a_colour_with_enough_contrast(theme: str) -> None:
    colours, rules = variables()[theme], series_rules()
    names = {series_class(status, None) for status in STATUSES} | {series_class("duplicate", kind) for kind in KINDS}
    ratios = {name: contrast(mixed(tone, colours), colours["panel"]) for name, tone in rules.items()}

    assert set(rules) == names
    assert {name: ratio for name, ratio in ratios.items() if ratio < 3} == {}
    assert len({mixed(tone, colours) for tone in rules.values()}) == len(names) - 1  # duplicates without a kind
