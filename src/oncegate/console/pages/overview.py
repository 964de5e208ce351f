"""The Overview screen: figures and charts of a time range, and what is going on now."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import htpy as h
from msgspec import Struct

from oncegate.console.charts import Series, stacked_bars
from oncegate.console.components import card, empty, facts, panel, problem, table
from oncegate.console.event_filter import NO_VALUE
from oncegate.console.layout import document
from oncegate.console.pages.events import nothing_yet
from oncegate.console.ranges import TimeRange, range_links, range_text, read_range
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.durations import spoken
from oncegate.errors import StoreError
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.inspection.figures import (
    Latencies,
    RangeTotals,
    StatusCounts,
    TopEntry,
    by_status_and_kind,
    count,
    handler_time_of,
    lag_of,
    read_totals,
    top_duplicates,
    top_entities,
)
from oncegate.journal import Journal, RowFilter, journal_url
from oncegate.settings.routes import name_of, routes_of
from oncegate.stores.base import Inbox, count_dead_letters

_MOST_LATENCIES: Final = 2_000  # rows
_MOST_DUPLICATES: Final = 2_000  # rows
_MOST_DEAD_LETTERS: Final = 1_000  # a count takes time in proportion to its result
_MOST_WAITING: Final = 10_000  # events
_MOST_NAMESPACES: Final = 50  # whose waiting events are counted
_TOP: Final = 10
_UNKNOWN: Final = "unknown"


class _View(Struct, frozen=True):
    """What the page shows: the range, and the route that it is limited to."""

    range: TimeRange
    route: str | None

    def events(self, number: int | None = None, **query: str | None) -> str:
        """The address of the Events screen with the range or one of its intervals, the route and these filters."""
        return self.range.events(number, **{"route": self.route, **query})


def overview(site: Site, request: Request) -> HttpAnswer:
    view = _View(read_range(request.query), request.query.get("route", "").strip() or None)
    journal = site.journal
    totals = RangeTotals([], [])
    if journal is not None:
        totals = read_totals(journal, site.settings, view.range.since, view.range.until, view.range.every)
    places = sorted({*(each.place for each in totals.everything), *map(name_of, routes_of(site.settings))})
    if view.route is not None:
        totals = totals.of_place(view.route)
    return document(
        request,
        "Overview",
        h.div(".head")[h.h1["Overview"], range_links(request, view.range)],
        view.range.problem and problem(view.range.problem),
        h.div(".head")[h.p(".soft")[range_text(view.range)], _route_form(request, view, places)],
        _history(site, journal, request, totals, view)
        if journal is not None
        else [without_journal(site), _now(site, totals, view)],
        _meanings(),
    )


def _route_form(request: Request, view: _View, places: Sequence[str]) -> h.Node:
    if len(places) < 2 and view.route is None:
        return None
    kept = ((name, request.query.get(name)) for name in ("range", "since", "until"))
    listed = places if view.route is None or view.route in places else [*places, view.route]
    return h.form(".filters", method="get", action=link("/"), data_autosubmit=True)[
        (h.input(type="hidden", name=name, value=value) for name, value in kept if value),
        h.label[
            "Route",
            h.select(name="route")[
                h.option(value="")["All routes and queues"],
                (h.option(value=each, selected=each == view.route)[each] for each in listed),
            ],
        ],
        h.button(".quiet.without-script", type="submit")["Show"],
    ]


# ── the range ─────────────────────────────────────────────────────────────────────────────────────────────


def _history(site: Site, journal: Journal, request: Request, totals: RangeTotals, view: _View) -> h.Node:
    if not totals.deliveries and not totals.attempts:
        if not journal.rows(limit=1):
            return [nothing_yet(site), _now(site, totals, view)]
        wider = h.a(href=link("/", {"range": "14d", "route": view.route}))["Show 14 days"]
        return [empty("No event arrived in this range.", wider), _now(site, totals, view)]
    where = RowFilter(place=view.route, since=view.range.since, until=view.range.until)
    newest = journal.rows(where, limit=_MOST_LATENCIES)
    deliveries, attempts = by_status_and_kind(totals.deliveries), by_status_and_kind(totals.attempts)
    return [
        _figures(deliveries, attempts, view, lag_of(newest, totals), handler_time_of(newest)),
        _now(site, totals, view),
        _chart(request, "deliveries", "Deliveries by status", deliveries, view),
        _chart(request, "attempts", "Attempts of stored events by status", attempts, view) if attempts else None,
        _tops(journal, totals, view) if count(deliveries, "duplicate") else None,
    ]


def _figures(
    deliveries: StatusCounts, attempts: StatusCounts, view: _View, lag: Latencies, handler_time: Latencies
) -> h.Element:
    def figure(label: str, status: str, note: h.Node) -> h.Element:
        number = count(deliveries, status) + count(attempts, status)
        return card(label, _linked(number, view.events(status=status)), note)

    received = count(deliveries)
    kinds: list[h.Node] = [
        [
            " · ",
            h.a(".number", href=view.events(status="duplicate", kind=kind or NO_VALUE))[
                f"{counts.total():,} {kind or 'without a kind'}"
            ],
        ]
        for (status, kind), counts in deliveries.items()
        if status == "duplicate"
    ]
    return _quarters(
        card(
            "Received",
            _linked(received, view.events()),
            "deliveries; the list also has the attempts of stored events" if attempts else "deliveries",
        ),
        figure("Processed", "processed", "handler finished"),
        figure("Duplicates", "duplicate", [f"{percent(count(deliveries, 'duplicate'), received)} of received", kinds]),
        figure("Conflicts", "conflict", "same key, different content"),
        figure("Failed", "failed", "retried, or delivered again"),
        figure("Buried", "buried", "became dead letters"),
        _latency_card("Lag", lag, "from the event to its arrival"),
        _latency_card("Handler time", handler_time, "per attempt"),
    )


def _quarters(*tiles: h.Element) -> h.Element:
    return h.div(".cards.quarters")[tiles]


def _linked(number: int, to: str) -> h.Element:
    return h.a(href=to)[f"{number:,}"]


def percent(part: int, whole: int) -> str:
    """A share in percent, with one digit after the point."""
    if not whole:
        return "0%"
    share = 100 * part / whole
    return "less than 0.1%" if 0 < share < 0.1 else f"{share:.1f}%".replace(".0%", "%")


def _latency_card(label: str, found: Latencies, what: str) -> h.Element:
    if found.median is None or found.p95 is None:
        return card(label, _UNKNOWN, "no row of this range has this time")
    return card(
        label,
        [precise(found.median), h.small[" p50"]],
        f"{precise(found.p95)} p95; {what}, the newest {found.count:,}",
    )


def precise(time_us: int) -> str:
    """A duration with two significant digits, such as `1.2 ms`. `spoken` would round 900 µs to 0 ms."""
    if time_us < 0:
        return f"-{precise(-time_us)}"
    if time_us >= 60_000_000:
        return spoken(time_us)
    number, unit = (time_us / 1e3, "ms") if time_us < 1_000_000 else (time_us / 1e6, "s")
    digits = 2 if number < 1 else 1 if number < 10 else 0
    return f"{number:.{digits}f} {unit}"


# ── charts ────────────────────────────────────────────────────────────────────────────────────────────────


def _chart(request: Request, name: str, title: str, counts: StatusCounts, view: _View) -> h.Element:
    intervals = view.range.intervals(view.events)
    return h.section(".panel", aria_label=title)[stacked_bars(request, name, title, _series(counts, view), intervals)]


def _series(counts: StatusCounts, view: _View) -> list[Series]:
    starts = view.range.starts
    with_kinds = {status for status, kind in counts if kind}
    return [
        Series(
            f"{status.replace('_', ' ')}{f' · {kind}' if kind else ''}",
            series_class(status, kind),
            [by_start[start] for start in starts],
            partial(view.events, status=status, kind=kind or (NO_VALUE if status in with_kinds else None)),
        )
        for (status, kind), by_start in counts.items()
    ]


def series_class(status: str, kind: str | None) -> str:
    """The class of the style sheet for a status. Each kind of duplicate has a class of its own."""
    return f"series-{kind}" if status == "duplicate" and kind else f"series-{status.replace('_', '-')}"


# ── the most duplicates ───────────────────────────────────────────────────────────────────────────────────


def _tops(journal: Journal, totals: RangeTotals, view: _View) -> h.Node:
    """The types, entities and routes with the most duplicates."""
    where = RowFilter(place=view.route, status="duplicate", since=view.range.since, until=view.range.until)
    rows = journal.rows(where, limit=_MOST_DUPLICATES)
    is_part = len(rows) >= _MOST_DUPLICATES or rows.next is not None
    newest = f"Of the newest {len(rows):,} rows of duplicates." if is_part else "Of all rows of duplicates."
    types = top_duplicates(totals.deliveries, lambda each: each.type, _TOP)
    routes = top_duplicates(totals.deliveries, lambda each: each.place, _TOP)
    return h.div(".columns")[
        panel("Types with the most duplicates", _top_table("Type", "type", types, view)),
        panel(
            "Conversations with the most duplicates",
            _top_table("Conversation", "entity", top_entities(rows, _TOP), view),
            h.p(".soft")[newest],
        ),
        view.route is None and panel("Routes with the most duplicates", _top_table("Route", "route", routes, view)),
    ]


def _top_table(column: str, parameter: str, entries: Sequence[TopEntry], view: _View) -> h.Element:
    """The entries with their duplicates. `parameter` is the filter of the Events screen for their names."""
    if not entries:
        return h.p(".soft")["No duplicate of this range names one."]
    has_shares = any(entry.deliveries for entry in entries)
    headers = [column, "Duplicates", *(["Of deliveries"] if has_shares else [])]
    return table(
        f"{column}s by duplicates",
        headers,
        (
            [
                h.span(".name")[entry.name or "without a name"],
                h.a(".count", href=view.events(None, status="duplicate", **{parameter: entry.name or NO_VALUE}))[
                    f"{entry.duplicates:,}"
                ],
                *([h.span(".count")[percent(entry.duplicates, entry.deliveries)]] if has_shares else []),
            ]
            for entry in entries
        ),
    )


# ── now ───────────────────────────────────────────────────────────────────────────────────────────────────


def _now(site: Site, totals: RangeTotals, view: _View) -> h.Element:
    """What the store holds and the service does now. It does not depend on the range."""
    live = None if site.live is None else site.live()
    unknown = "not known here: this console runs without the service"
    in_flight, store = card("In flight", _UNKNOWN, unknown), card("Store latency", _UNKNOWN, unknown)
    if live is not None:
        in_flight = card("In flight", f"{live.in_flight:,}", "requests that are not answered yet")
        latency = _UNKNOWN if live.store_latency is None else precise(live.store_latency)
        states = [f"{name}: {state}" for name, state in live.breakers.items() if state != "closed"]
        breaker = f"circuit breaker: {', '.join(states) or 'closed'}"
        store = card("Store latency", latency, f"median of the last answers; {breaker}")
    return h.section(".stack", aria_labelledby="now")[
        h.h2("#now")["Now"], _quarters(*_stored(site, totals, view), in_flight, store)
    ]


def _stored(site: Site, totals: RangeTotals, view: _View) -> list[h.Element]:
    """The cards of dead letters and waiting events, counted in the store."""
    namespaces = _namespaces(site, totals, view)
    try:
        return [_dead_letters(site, None if view.route is None else namespaces), _waiting(site, namespaces)]
    except StoreError as error:
        return [card("Dead letters", _UNKNOWN, str(error)), card("Waiting", _UNKNOWN, str(error))]


def _namespaces(site: Site, totals: RangeTotals, view: _View) -> list[str]:
    """The namespaces of the routes, from the settings and from the journal: a queue is not in the settings."""
    routes = {name_of(path): route["namespace"] for path, route in routes_of(site.settings).items()}
    if view.route is not None:
        routes = {name: namespace for name, namespace in routes.items() if name == view.route}
    return sorted({*routes.values(), *(each.namespace for each in totals.everything)})


def _dead_letters(site: Site, namespaces: Sequence[str] | None) -> h.Element:
    """The number of dead letters in these namespaces; with None, in all namespaces of the store: a namespace may have
    dead letters although no route has this namespace."""
    number = 0
    for namespace in [None] if namespaces is None else namespaces:
        number += count_dead_letters(site.store, namespace, _MOST_DEAD_LETTERS - number)
    chosen = namespaces[0] if namespaces is not None and len(namespaces) == 1 else None
    to = link("/dead-letters", {"namespace": chosen})
    return card("Dead letters", h.a(href=to)[_up_to(number, _MOST_DEAD_LETTERS)], "in the store")


def _up_to(number: int, most: int, *, is_part: bool = False) -> str:
    return f"{number:,}{'+' if number >= most or is_part else ''}"


def _waiting(site: Site, namespaces: Sequence[str]) -> h.Element:
    store = site.store
    if not isinstance(store, Inbox):
        return card("Waiting", _UNKNOWN, "this store runs events at once: it has no inbox")
    waiting = 0
    for namespace in namespaces[:_MOST_NAMESPACES]:
        waiting += store.kept(namespace, _MOST_WAITING - waiting)
    number = _up_to(waiting, _MOST_WAITING, is_part=len(namespaces) > _MOST_NAMESPACES)
    return card("Waiting", number, "stored, and not finished yet")


# ── explanations ──────────────────────────────────────────────────────────────────────────────────────────


def without_journal(site: Site) -> h.Element:
    """Shown in place of history: the reason why there is no journal, and what to set."""
    if journal_url(site.settings["journal"], site.settings["store"]) is not None:
        return nothing_yet(site)
    hint = ("This screen shows the history of decisions. It needs a journal: set ", h.code["journal"], ".")
    return empty(site.no_journal, *hint)


def _meanings() -> h.Element:
    """What each figure counts."""
    return h.section(".panel")[h.details(".data")[h.summary["What the figures mean"], facts(_MEANINGS)]]


_MEANINGS: Final = (
    (
        "Received",
        "Deliveries, with the first decision about each of them. A route in the mode inbox stores an event (accepted)"
        " and runs it later. The attempts of stored events are not counted again: processed, failed, buried and"
        " unguarded. So a delivery to such a route that failed because the store did not answer, or that is a copy of"
        " a dead letter, is not counted as received.",
    ),
    ("Processed", "Events whose handler finished, and whose completion is stored."),
    ("Duplicates", "Copies of an event that was processed, or that is stored and waits. Their handler did not run."),
    ("Conflicts", "Deliveries with the key of an earlier event and different content. They became dead letters."),
    (
        "Failed",
        "Attempts whose handler failed, and deliveries that failed because the store did not answer. An event that"
        " fails three times is counted three times.",
    ),
    ("Buried", "Events that became dead letters, and later copies of them."),
    ("Lag", f"From the event's own time to its arrival, without duplicates. Of the newest {_MOST_LATENCIES:,} rows."),
    ("Handler time", f"How long a handler ran, per attempt. Of the newest {_MOST_LATENCIES:,} rows."),
    ("Dead letters", f"All dead letters of the store, or those of the route. Counted up to {_MOST_DEAD_LETTERS:,}."),
    (
        "Waiting",
        "Events of the routes that the store holds with their payload, also those that run now. Counted up to"
        f" {_MOST_WAITING:,}.",
    ),
    (
        "Totals",
        "Totals are counted by minute. They include copies that share one row, and events whose row was dropped.",
    ),
)
