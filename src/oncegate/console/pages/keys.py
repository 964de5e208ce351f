"""The Keys screen: which strategy makes the keys of each route and type, and how well the keys fit."""

from collections.abc import Mapping, Sequence
from typing import Final

import htpy as h

from oncegate.console.charts import sparkline
from oncegate.console.components import empty, facts, panel, problem, table
from oncegate.console.event_filter import NO_VALUE
from oncegate.console.layout import document
from oncegate.console.pages.events import nothing_yet
from oncegate.console.pages.overview import percent, without_journal
from oncegate.console.pages.rule import rule_panel
from oncegate.console.ranges import TimeRange, range_links, range_text, read_range
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.inspection.figures import read_totals
from oncegate.inspection.key_use import CONTENT, NEWEST, NEWEST_REFUSED, KeyUse, read_key_uses
from oncegate.journal import Journal
from oncegate.settings.routes import name_of, routes_of

_MOST_LISTED: Final = 100  # routes and types


def keys(site: Site, request: Request) -> HttpAnswer:
    chosen = read_range(request.query)
    settings = {name_of(path): route["key"] for path, route in routes_of(site.settings).items()}
    return document(
        request,
        "Keys",
        h.div(".head")[h.h1["Keys"], range_links(request, chosen)],
        chosen.problem and problem(chosen.problem),
        h.p(".soft")[
            range_text(chosen),
            ". Two deliveries with the same key are one event. ",
            "A key that is too weak joins different events. A key that is too strict lets copies run again. ",
            'The guide "Which key to choose" in the documentation of Oncegate compares the strategies.',
        ],
        panel("Keys in the settings", facts((name, h.code[key]) for name, key in settings.items())),
        without_journal(site) if site.journal is None else _uses(site, site.journal, chosen, settings),
        None if site.journal is None else rule_panel(site, site.journal, request),
    )


def _uses(site: Site, journal: Journal, chosen: TimeRange, settings: Mapping[str, str]) -> h.Node:
    totals = read_totals(journal, site.settings, chosen.since, chosen.until, chosen.every)
    uses = read_key_uses(journal, totals, chosen.starts, chosen.since, chosen.until, settings)
    if not uses:
        if not journal.rows(limit=1):
            return nothing_yet(site)
        return empty("No event arrived in this range.", h.a(href=link("/keys", {"range": "14d"}))["Show 14 days"])
    more = len(uses) - _MOST_LISTED
    return [
        _table(uses[:_MOST_LISTED], chosen),
        more > 0 and h.p(".soft")[f"{more:,} more types with fewer deliveries are not listed."],
        h.p(".soft")["The column Deliveries counts deliveries; the list also has the attempts of stored events."]
        if totals.attempts
        else None,
        h.p(".soft")[
            f"Numbers are totals of the range. Strategies are those of the newest {NEWEST:,} rows of deliveries and of"
            f" attempts; attempts of stored events do not have a strategy. Reasons are read from the newest"
            f" {NEWEST_REFUSED:,} rows of refused and of unguarded events."
        ],
    ]


def _table(uses: Sequence[KeyUse], chosen: TimeRange) -> h.Element:
    headers = ["Route and type", "Strategy", "Deliveries", "Duplicates", "Conflicts", "Without a key", "What it means"]
    return table(
        "Keys by route and type",
        headers,
        (
            [
                h.div(".name")[h.strong[use.place], h.br, use.type or "no type"],
                _strategies(use),
                _number(use.deliveries, chosen.events(route=use.place, type=use.type or NO_VALUE)),
                _duplicates(use, chosen),
                _number(use.conflicts, chosen.events(route=use.place, type=use.type or NO_VALUE, status="conflict")),
                _without_key(use, chosen),
                _meaning(use),
            ]
            for use in uses
        ),
    )


def _number(number: int, to: str) -> h.Element:
    return h.a(".count", href=to)[f"{number:,}"] if number else h.span(".count.soft")["0"]


def _without_key(use: KeyUse, chosen: TimeRange) -> h.Node:
    if not use.refused and not use.unguarded:
        return _number(0, "")
    refused = chosen.events(route=use.place, type=use.type or NO_VALUE, status="invalid")
    unguarded = chosen.events(route=use.place, type=use.type or NO_VALUE, status="unguarded")
    return [
        h.a(".count", href=refused)[f"{use.refused:,} refused"] if use.refused else None,
        h.a(".count", href=unguarded)[f"{use.unguarded:,} unguarded"] if use.unguarded else None,
    ]


def _strategies(use: KeyUse) -> h.Node:
    """The strategies of the newest rows with their shares."""
    total = use.strategies.total()
    listed = [
        h.div[
            h.code(".number")[name],
            [" ", h.span(".soft")[percent(number, total)]] if number < total else None,
            h.small[" no id"] if name in CONTENT and not use.is_content_chosen else None,
        ]
        for name, number in use.strategies.most_common(3)
    ]
    return listed or h.span(".soft")["none" if use.is_skipped else "unknown"]


def _duplicates(use: KeyUse, chosen: TimeRange) -> h.Element:
    share = percent(use.duplicates, use.deliveries)
    text = f"{share} of deliveries are duplicates; the line shows the share over time, from 0% to 100%"
    return h.div(".share")[
        h.a(".count", href=chosen.events(route=use.place, type=use.type or NO_VALUE, status="duplicate"))[
            f"{use.duplicates:,}", h.small(".soft")[f" {share}"]
        ],
        sparkline(use.ratios, text),
    ]


def _meaning(use: KeyUse) -> h.Node:
    found = use.judgement
    return h.div(".stack.meaning")[
        h.div[h.span(class_=["badge", f"tone-{found.tone}"])[found.name], " ", found.sentence],
        use.reason and h.div(".soft")["The newest reason: ", use.reason],
    ]
