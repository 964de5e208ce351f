"""The Events screen: search, filters with counts, the newest rows, and the live tail."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import htpy as h
from msgspec import Struct
from msgspec.structs import replace

from oncegate.clocks import wall
from oncegate.console.charts import DAY
from oncegate.console.components import empty, moment, pager, problem
from oncegate.console.curl import route_address
from oncegate.console.event_filter import EventFilter, read_filter, row_id
from oncegate.console.event_rows import conversation_link, rows_table
from oncegate.console.layout import document
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.errors import NoStore
from oncegate.gate.outcome import STATUSES
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.inspection.figures import KINDS
from oncegate.journal import GAP, OPERATOR, Journal, Row, RowFilter, Total, journal_url
from oncegate.journal.base import MINUTE, Page

FILTERS: Final = ("q", "status", "kind", "type", "entity", "route", "since", "until")
_FOLDED: Final = ("kind", "type", "entity", "route", "since", "until")  # filters that a narrow screen folds
PAGE: Final = 50  # rows
_ORDER: Final = (
    "The list is in the order of writing. The row of many copies is written when its minute ends, so it can be in the"
    " list of the next minute."
)
_MOST_COUNTED: Final = 1_000  # rows that are counted one by one, if the counters cannot count them
_MOST_CHOICES: Final = 200  # values of one filter that are listed
_RANGES: Final = (("15m", "15 minutes"), ("1h", "1 hour"), ("24h", "24 hours"), ("7d", "7 days"), (None, "Any time"))
_DIMENSIONS: Final = ("status", "kind", "type", "route")


def events(site: Site, request: Request) -> HttpAnswer:
    journal = site.journal
    if journal is None:
        return document(request, "Events", h.h1["Events"], _without_journal(site, request), scripts=["tail.js"])
    chosen = read_filter(request.query)
    newest = journal.rows(limit=1)
    counts = _counts(journal, chosen)
    page = _page(journal, request, chosen, counts)
    is_live = _is_live(request)
    return document(
        request,
        "Events",
        h.h1["Events"],
        chosen.problem and problem(chosen.problem),
        _form(request, counts),
        _found(site, chosen, counts),
        h.div(".head.live")[
            h.p(".soft")[_counted_range(chosen, counts), is_live and " Counted when the page was loaded."],
            is_live and _tail(request, page or newest),
        ],
        rows_table(page, "Events, newest first")
        if page
        else nothing_yet(site)
        if not newest
        else _nothing(request, chosen, page, counts),
        any(row.count > 1 for row in page) and h.p(".soft")[_ORDER],
        pager(request, page.next),
        scripts=["tail.js"],
    )


def _page(journal: Journal, request: Request, chosen: EventFilter, counts: "_Counts") -> Page:
    before = row_id(request.query.get("before"))
    if chosen.has_term and not chosen.where.label and before is None and not counts.is_partial:
        rows = counts.rows  # all rows with the term: a second search would find the same rows
        return Page(rows[:PAGE], rows[PAGE - 1].id if len(rows) > PAGE else None)
    return journal.rows(chosen.where, before=before, limit=PAGE)


# ── counts ────────────────────────────────────────────────────────────────────────────────────────────────


class _Counts(Struct, frozen=True):
    """The number of deliveries and attempts by dimension and value. With `is_partial`, there are more. `rows` are the
    rows that were counted, if the counters could not count them."""

    by_value: Mapping[str, Mapping[str, int]]
    total: int
    is_partial: bool = False
    rows: tuple[Row, ...] = ()

    def text(self, count: int) -> str:
        return f"{count:,}{'+' if self.is_partial else ''}"


def _counts(journal: Journal, chosen: EventFilter) -> _Counts:
    where, end = chosen.where, chosen.where.until or wall()
    start = (end - DAY) // MINUTE * MINUTE if where.since is None else where.since
    if chosen.has_term:
        return _counted_rows(journal, chosen, where)
    if where.status == GAP or start % MINUTE or (where.until or 0) % MINUTE:  # totals do not count gaps
        return _counted_rows(journal, chosen, replace(where, since=start))
    totals = journal.totals(
        RowFilter(status=_not_deliveries(chosen)), start, max(end, start + 1), every=_whole(start, end)
    )
    return _facets(chosen, ((_values(each), each.count) for each in totals))


def _not_deliveries(chosen: EventFilter) -> str | None:
    """Actions of operators and gaps are no deliveries, so they are counted only if the filter asks for them."""
    return chosen.where.status if chosen.where.status in (OPERATOR, GAP) else None


def _whole(start: int, end: int) -> int:
    """Returns an interval of whole minutes that is longer than the range, so that few totals are returned."""
    return ((end - start) // MINUTE + 2) * MINUTE


def _counted_rows(journal: Journal, chosen: EventFilter, where: RowFilter) -> _Counts:
    """Count rows one by one: the newest 1,000 rows with the term and in the range of `where`."""
    wanted = replace(where, status=_not_deliveries(chosen), kind=None, type=None, place=None)
    page = journal.rows(wanted, limit=_MOST_COUNTED)
    found = _facets(chosen, ((_values(row), row.count) for row in page))
    return replace(found, is_partial=page.next is not None, rows=tuple(page))


def _values(each: Total | Row) -> tuple[str, str, str, str]:
    return each.status, each.kind or "", each.type or "", each.place


def _facets(chosen: EventFilter, counted: Iterable[tuple[tuple[str, ...], int]]) -> _Counts:
    """Returns the counts by value. A value of one filter is counted with all other filters applied, so that its count
    is the number of deliveries and attempts after that value is chosen."""
    where = chosen.where
    wanted = (where.status, where.kind, where.type, where.place)
    found: dict[str, Counter[str]] = {name: Counter() for name in _DIMENSIONS}
    total = 0
    for values, count in counted:
        others = [
            name
            for name, value, want in zip(_DIMENSIONS, values, wanted, strict=True)
            if want is not None and value != want
        ]
        total += 0 if others else count
        for name, value in zip(_DIMENSIONS, values, strict=True):
            if value and others in ([], [name]):
                found[name][value] += count
    return _Counts(found, total)


# ── the form ──────────────────────────────────────────────────────────────────────────────────────────────


def _form(request: Request, counts: _Counts) -> h.Node:
    query = request.query
    since, until = query.get("since", ""), query.get("until", "")
    hint = "A duration such as 24h, or a time in UTC such as 2026-01-31 09:30"
    return [
        h.form(".stack", method="get", action=link("/events"), data_autosubmit=True)[
            _search(request, "Event id, conversation, key or delivery id"),
            query.get("status") and h.input(type="hidden", name="status", value=query["status"]),
            # On a wide screen, the style sheet shows the filters also if `details` is closed.
            h.details(".more", open=any(query.get(name) for name in _FOLDED))[
                h.summary["Filters"],
                h.div(".filters.narrow")[
                    _select("Kind", "kind", query.get("kind", ""), KINDS, counts),
                    _select("Type", "type", query.get("type", ""), (), counts),
                    _select("Route", "route", query.get("route", ""), (), counts),
                    h.label["Conversation", h.input(name="entity", value=query.get("entity", ""), autocomplete="off")],
                    h.label[
                        "Since", h.input(name="since", value=since, placeholder="any time", title=hint, list="ranges")
                    ],
                    h.label["Until", h.input(name="until", value=until, placeholder="now", title=hint, list="ranges")],
                    h.datalist("#ranges")[(h.option(value=value)[name] for value, name in _RANGES if value)],
                ],
            ],
        ],
        h.div(".head")[_status_links(request, counts), _range_links(request, since)],
    ]


def _search(request: Request, placeholder: str) -> h.Element:
    return h.div(".filters")[
        h.label(".wide")[
            "Search",
            h.input(
                type="search",
                name="q",
                value=request.query.get("q", ""),
                placeholder=placeholder,
                maxlength="1000",
                autocomplete="off",
                spellcheck="false",
            ),
        ],
        h.button(type="submit")["Search"],
        _is_filtered(request) and h.a(".button.quiet", href=link("/events"))["Clear"],
    ]


def _select(label: str, name: str, value: str, known: Iterable[str], counts: _Counts) -> h.Element:
    found = counts.by_value[name]
    listed = sorted({*known, *found, *([value] if value else [])}, key=lambda each: (-found.get(each, 0), each))
    choices = [*listed[:_MOST_CHOICES], *([value] if value in listed[_MOST_CHOICES:] else [])]
    return h.label[
        label,
        h.select(name=name)[
            h.option(value="")["All"],
            (
                h.option(value=each, selected=each == value)[f"{each} ({counts.text(found.get(each, 0))})"]
                for each in choices
            ),
        ],
    ]


def _status_links(request: Request, counts: _Counts) -> h.Element:
    found, chosen = counts.by_value["status"], request.query.get("status", "")
    names = dict.fromkeys([*STATUSES, *found, OPERATOR, GAP])
    listed = [name for name in names if found.get(name) or name == chosen]
    every = sum(found.values())
    return h.nav(".tabs", aria_label="Status")[
        _tab(request.url(status=None, before=None), "All", counts.text(every), is_open=chosen not in listed),
        (
            _tab(
                request.url(status=name, before=None),
                name.replace("_", " "),
                counts.text(found.get(name, 0)),
                is_open=name == chosen,
            )
            for name in listed
        ),
    ]


def _range_links(request: Request, since: str) -> h.Element:
    return h.nav(".tabs", aria_label="Time range")[
        (
            _tab(
                request.url(since=value, until=None, before=None),
                name,
                is_open=since == (value or "") and not request.query.get("until"),
            )
            for value, name in _RANGES
        )
    ]


def _tab(to: str, name: str, count: str = "", *, is_open: bool = False) -> h.Element:
    return h.a(href=to, aria_current="page" if is_open else None)[name, count and [" ", h.span(".soft.number")[count]]]


def _counted_range(chosen: EventFilter, counts: _Counts) -> h.Node:
    """The number of deliveries and attempts, and which of them are counted."""
    where, text = chosen.where, counts.text(counts.total)
    one, many = "delivery or attempt", "deliveries and attempts"
    if where.status == OPERATOR:
        one, many = "action of an operator", "actions of operators"
    elif where.status == GAP:
        one, many = "gap", "gaps"
    number = f"1 {one} matches" if text == "1" else f"{text} {many} match"
    if chosen.has_term:
        most = f"the newest {_MOST_COUNTED:,} rows" if counts.is_partial else "all rows"
        return f"{number}. The counts are of {most} with this search."
    if where.since is None and where.until is None:
        return f"{number} in the last 24 hours. The list goes back further."
    if where.since is None:
        return [f"{number} in the 24 hours before ", moment(where.until), "."]
    return [f"{number} since ", moment(where.since), where.until and [" until ", moment(where.until)], "."]


def _is_filtered(request: Request) -> bool:
    return any(request.query.get(name) for name in FILTERS)


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────


def _found(site: Site, chosen: EventFilter, counts: _Counts) -> h.Node:
    """Links to the screens of what the search found: the only event, and the conversation."""
    term = chosen.where.term or chosen.where.entity
    if term is None:
        return None
    entity = next((row.entity for row in counts.rows if row.entity == term), None)
    events = {(row.namespace, row.key.hex()) for row in counts.rows if row.key}
    if not counts.rows and chosen.where.term is not None:
        events = _in_store(site, chosen.where.term)
    links: list[h.Node] = [] if entity is None else [_conversation_button(entity)]
    if len(events) == 1 and not counts.is_partial:
        links += _event_buttons(events)
    return h.div(".row")[h.span["This search names"], links] if links else None


def _conversation_button(entity: str) -> h.Element:
    return h.a(".button", href=conversation_link(entity))[f"Conversation {entity}"]


def _event_buttons(events: Iterable[tuple[str, str]]) -> list[h.Element]:
    """Links to the events with these namespaces and keys."""
    return [
        h.a(".button", href=link("/event", {"key": key, "namespace": namespace}))[f"Event {key[:12]}"]
        for namespace, key in sorted(events)
    ]


def _in_store(site: Site, term: str) -> set[tuple[str, str]]:
    """Returns the record with this key. The journal may have no row of it any more."""
    try:
        key = bytes.fromhex(term)
        found = site.store.browse(key=key, limit=2) if len(key) == 16 else []
    except (ValueError, NoStore):
        return set()
    return {(entry.namespace, entry.key.hex()) for entry in found}


def _is_live(request: Request) -> bool:
    """Whether new rows belong on this page: it is the first page, and its range has no end."""
    return not request.query.get("before") and not request.query.get("until")


def _tail(request: Request, known: list[Row]) -> h.Element:
    """What tail.js uses: the address of the tail, and the addresses of the screens that rows lead to. The button pauses
    and continues the tail."""
    query = {name: request.query.get(name) for name in FILTERS if name != "since"}
    after = known[0].id if known else 0
    return h.div(
        "#tail.row",
        hidden=True,
        data_src=link("/tail", {**query, "after": after}),
        data_event=link("/event"),
        data_conversation=link("/conversation"),
    )[
        h.button(".quiet.small", type="button", data_pause=True)["Pause"],
        h.span(".soft", role="status", data_state=True)["Connecting"],
        h.button(".small", type="button", data_show=True, hidden=True),
    ]


def _nothing(request: Request, chosen: EventFilter, page: Page, counts: _Counts) -> h.Element:
    """What is shown in place of rows."""
    if page.next is not None:
        text = "No match in the newest rows that were searched. Older rows were not searched yet."
        return empty(text, h.a(href=request.url(before=page.next))["Search older rows"])
    if request.query.get("before") and not chosen.has_term:
        return empty("There are no older events.", h.a(href=request.url(before=None))["Show the newest events"])
    clear = h.a(href=link("/events"))["Clear the filters"]
    if counts.total and not counts.rows:
        return empty("No row is left of what was counted: the rows were dropped or deleted.", clear)
    # The store may have records of a conversation that has no row.
    term = chosen.where.term or chosen.where.entity
    other: h.Node = term and [" or ", h.a(href=conversation_link(term))["open the conversation with this id"], "."]
    return empty("No event matches these filters.", clear, other)


def nothing_yet(site: Site) -> h.Element:
    """The empty state of a journal without rows: how to send an event."""
    address = route_address(site.settings, site.address, "", next(iter(site.settings.routes), None))
    body = """'{"id": "evt-1", "type": "call.ended", "conversationId": "c-1"}'"""
    command = f"curl -H 'content-type: application/json' -d {body} {address}"
    return h.div(".empty")[
        h.p["No event has arrived yet."],
        h.p["Send one to the service. It appears here within a second:"],
        h.pre(".wrap")[command],
        h.p(".soft")['A route that checks signatures refuses this command. Set signature = "none" to try it.'],
    ]


def _without_journal(site: Site, request: Request) -> h.Node:
    """The search for a key in the store, the reason why there is no journal, and what to set. If the journal only has
    no row yet, the tail waits for the first row."""
    search = h.form(".stack", method="get", action=link("/events"))[_search(request, "Key: 32 hexadecimal digits")]
    return [search, _found_in_store(site, request.query.get("q", "").strip()), _no_rows(site, request)]


def _found_in_store(site: Site, term: str) -> h.Node:
    """What the store has for a search without a journal."""
    if not term:
        return None
    if found := _in_store(site, term):
        return h.div(".row")[h.span["This search names"], _event_buttons(found)]
    return h.div(".row")[
        h.span[
            "The store has no record with this key. Without a journal, other ids cannot be searched. A conversation"
            " with this id can still be forgotten:"
        ],
        _conversation_button(term),
    ]


def _no_rows(site: Site, request: Request) -> h.Node:
    if journal_url(site.settings["journal"], site.settings["store"]) is not None:
        return [_tail(request, []), nothing_yet(site)]
    hint = ("This screen shows the history of decisions. It needs a journal: set ", h.code["journal"], ".")
    return empty(site.no_journal, *hint)
