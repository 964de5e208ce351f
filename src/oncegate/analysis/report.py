"""The report of an analysis as one HTML file: no scripts, no network, readable on a phone and in print."""

import pkgutil
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from oncegate.analysis.analysis import Analysis, TypeAnalysis
from oncegate.analysis.answer import (
    INFERRED,
    POSSIBLE,
    current_sentence,
    difference,
    period,
    settings_text,
    spoken_name,
    time_sentences,
    total_sentence,
    type_sentence,
)
from oncegate.analysis.examples import Examples, ShownExample
from oncegate.analysis.judgement import KeyJudgement
from oncegate.analysis.markup import Content, Markup, element
from oncegate.analysis.plots import Tick, curve, stacked_bars
from oncegate.analysis.timing import SLOTS, Timing
from oncegate.durations import spoken
from oncegate.times import EPOCH

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_HEADERS: Final = ("Key", "Caught", "Missed", "Probable", "Lost", "May be lost", "Conflicts", "No key")
_MOST_UNREADABLE: Final = 20
_SHORT: Final = 600_000_000  # microseconds; the axis of a shorter recording has seconds
_DAY: Final = 86_400_000_000


def report(analysis: Analysis, examples: Examples, files: Sequence[str]) -> str:
    """The whole page."""
    style = (pkgutil.get_data("oncegate.analysis", "report.css") or b"").decode()
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", "Which key? Analysis by Oncegate"),
        element("style", Markup(style)),
    ]
    body = [
        _head(analysis, files),
        _answer(analysis),
        _numbers(analysis),
        _plots(analysis.timing, analysis),
        _strategies(analysis),
        element("h2", "Types of events"),
        [_type(each, analysis, examples) for each in analysis.types],
        _times(analysis),
        _certainty(),
        _unreadable(analysis, files),
    ]
    page = element("html", element("head", head), element("body", element("main", body)), lang="en")
    return f"<!doctype html>\n{page}\n"


def _head(analysis: Analysis, files: Sequence[str]) -> Content:
    traffic = analysis.traffic
    more = f" and {len(files) - 3} more files" if len(files) > 3 else ""
    return [
        element("h1", "Which key?"),
        element(
            "p", f"{traffic.deliveries:,} deliveries of {', '.join(files[:3])}{more}{period(analysis)}", class_="soft"
        ),
    ]


def _answer(analysis: Analysis) -> Content:
    current = current_sentence(analysis)
    return [
        element(
            "div",
            element("p", total_sentence(analysis)),
            element("pre", settings_text(analysis)),
            class_="panel answer",
        ),
        element("div", current, class_="panel bad-news" if analysis.would_lose else "panel") if current else None,
    ]


def _numbers(analysis: Analysis) -> Markup:
    traffic = analysis.traffic
    shown = {
        "deliveries": traffic.deliveries,
        "events": traffic.events,
        "certain copies": traffic.duplicates,
        "probable copies": traffic.inferred,
        "may be copies": traffic.possible,
        "conflicts": traffic.conflicts,
        "unreadable": analysis.read.unreadable,
    }
    return element(
        "div",
        [element("div", element("b", f"{count:,}"), element("span", name)) for name, count in shown.items()],
        class_="numbers",
    )


# ── plots ─────────────────────────────────────────────────────────────────────────────────────────────────


def _plots(timing: Timing, analysis: Analysis) -> Content:
    made: list[Content] = [element("h2", "Copies")]
    if timing.slots and timing.begin is not None:
        step = max(1, timing.span // SLOTS)
        names = [_clock(timing.begin + place * step, timing.span) for place in range(SLOTS)]
        ticks = [Tick(place / SLOTS, names[place]) for place in range(0, SLOTS, SLOTS // 6)]
        made.append(stacked_bars("Copies by kind over time (UTC)", timing.slots, ticks, names))
    if timing.gaps:
        made.append(_gap_plot(timing))
    if timing.known_gaps:
        points = [(point.duration, point.caught / timing.known_gaps) for point in timing.retention_curve]
        title = f"Share of the {timing.known_gaps:,} copies with a known gap that a retention catches"
        made.append(curve(title, points, analysis.retention.duration))
    if timing.echoes:
        points = [(point.duration, point.caught / timing.echoes) for point in timing.window_curve]
        title = f"Share of the {timing.echoes:,} repeated emissions of a state that a window joins"
        made.append(curve(title, points, analysis.window.duration))
    return made if len(made) > 1 else None


def _gap_plot(timing: Timing) -> Markup:
    """The gaps between copies, on a logarithmic axis. Gaps below a millisecond are in the first bar."""
    least = 12  # 10^(12/4) microseconds are a millisecond
    last = max(*(each.step for each in timing.gaps), least + 4)
    series: dict[str, list[int]] = {}
    for each in timing.gaps:
        series.setdefault(each.copy, [0] * (last - least + 1))[max(each.step, least) - least] += each.count
    names = [
        f"{spoken(round(10 ** (step / 4)))} to {spoken(round(10 ** ((step + 1) / 4)))}"
        for step in range(least, last + 1)
    ]
    count = last - least + 1
    ticks = [Tick((step - least) / count, spoken(round(10 ** (step / 4)))) for step in range(least, last + 1, 4)]
    return stacked_bars("Time between the first delivery and its copies (logarithmic)", series, ticks, names)


def _clock(time_us: int, span: int) -> str:
    when = EPOCH + timedelta(microseconds=time_us)
    if span < _SHORT:
        return when.strftime("%H:%M:%S")
    return when.strftime("%H:%M") if span < 2 * _DAY else when.strftime("%d %b %H:%M")


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────


def _strategies(analysis: Analysis) -> Content:
    return [
        element("h2", "Keys for all types together"),
        element(
            "p",
            "Caught and missed count certain copies. Lost counts events that have the key of a different event.",
            class_="soft",
        ),
        element("div", _table(analysis.totals, analysis.recommended.name), class_="panel"),
    ]


def _table(
    judgements: Sequence[KeyJudgement], best: str, found: TypeAnalysis | None = None, examples: Examples | None = None
) -> Markup:
    head = element(
        "tr", [element("th", name, class_="number" if place else None) for place, name in enumerate(_HEADERS)]
    )
    rows = [_row(each, each.name == best, found, examples) for each in judgements]
    return element("table", element("thead", head), element("tbody", rows))


def _row(found: KeyJudgement, is_best: bool, kind: TypeAnalysis | None, examples: Examples | None) -> Markup:
    counts = (
        *(found.caught, found.missed, found.inferred, found.wrong, found.doubtful, found.conflicts, found.keyless),
    )
    classes = ("", "doubt", "", "loses", "doubt", "", "loses")
    cells = [
        element("td", element("span", f"{count:,}", class_=style if count else None), class_="number", data_label=label)
        for count, style, label in zip(counts, classes, _HEADERS[1:], strict=True)
    ]
    name = found.name if found.origin != "tutorial" else _called(found.name, kind)
    title = element("code", name) if found.origin != "tutorial" else name
    shown = [] if examples is None else list(_examples(found, examples))
    return element("tr", element("td", title, _origin(found), shown), cells, class_="best" if is_best else None)


def _called(name: str, kind: TypeAnalysis | None) -> str:
    return spoken_name(name, "") if kind is None else spoken_name(name, kind.source, kind.type)


def _origin(found: KeyJudgement) -> Content:
    known = {"tutorial": "from tutorials", "yours": "yours", "fields": "found in a sample"}
    first, second = found.halves
    drift = f"loses {first.wrong:,} in the first half, {second.wrong:,} in the second" if found.wrong else None
    text = "; ".join(filter(None, [known.get(found.origin), drift]))
    return element("span", f" {text}", class_="soft") if text else None


def _examples(found: KeyJudgement, examples: Examples) -> Iterator[Markup]:
    for what, example in (("What it loses", found.lost_example), ("A copy that it misses", found.missed_example)):
        shown = examples.show(example)
        if shown is not None:
            yield element("details", element("summary", what), _example(shown), class_="example")


def _example(shown: ShownExample) -> Content:
    members = [element("li", element("code", each.path), _values(each.first, each.second)) for each in shown.members]
    return [
        element("p", shown.first, element("br"), shown.second),
        element("p", f"{difference(shown)}."),
        element("ul", members) if members else None,
    ]


def _values(first: str | None, second: str | None) -> Content:
    if first is None and second is None:
        return None
    return [" ", element("code", first or "absent"), " → ", element("code", second or "absent")]


def _type(found: TypeAnalysis, analysis: Analysis, examples: Examples) -> Markup:
    summary = element("summary", f"{found.name} ", element("span", f"{found.traffic.deliveries:,}", class_="soft"))
    copies = ", ".join(
        f"{each.count:,} {each.kind}{' (inferred)' if each.is_inferred else ''}" for each in found.copies
    )
    return element(
        "details",
        summary,
        element("p", type_sentence(found, examples)),
        element("p", f"Copies: {copies}.", class_="soft") if copies else None,
        _table(found.judgements, found.best.name, found, examples),
        class_="type",
        open=len(analysis.types) <= 2,
    )


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────


def _times(analysis: Analysis) -> Content:
    said = [element("p", sentence) for sentence in time_sentences(analysis)]
    late = analysis.timing.lateness
    if late is not None:
        median, high, longest = (spoken(each) for each in late)
        said.append(
            element(
                "p",
                f"From event to arrival or publication: half within {median}, 99% within {high}, at most {longest}.",
            )
        )
    return [element("h2", "Retention, window and order"), element("div", said, class_="panel")]


def _certainty() -> Content:
    facts = {
        "Certain copy": "the same body under the same id of the envelope or of the message; or the same body, if the"
        " body contains the time of the event or its own id",
        "Probable copy": INFERRED,
        "May be a copy": POSSIBLE,
        "Conflict": "other content under the id, type, entity and state of another event",
        "Lost": "an event with the key of an event that is none of these. The key of a tutorial drops it. A strategy of"
        " Oncegate that binds content stores it as a dead letter.",
    }
    items = [[element("dt", name), element("dd", text)] for name, text in facts.items()]
    return [element("h2", "What is certain, and what is inferred"), element("dl", items, class_="panel")]


def _unreadable(analysis: Analysis, files: Sequence[str]) -> Content:
    if not analysis.read.unreadable:
        return None
    shown = [
        element("li", f"{files[each.file]} at byte {each.place:,}: {each.problem}")
        for each in analysis.read.shown[:_MOST_UNREADABLE]
    ]
    return [
        element("h2", "Unreadable documents"),
        element(
            "div",
            element("p", f"{analysis.read.unreadable:,} documents were left out."),
            element("ul", shown),
            class_="panel",
        ),
    ]
