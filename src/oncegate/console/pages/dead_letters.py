"""The screen Dead letters: groups by error, the list of a group, and the record of what operators did."""

from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from typing import Final

import htpy as h

from oncegate.console.components import (
    badge,
    disabled,
    empty,
    facts,
    moment,
    pager,
    panel,
    problem,
    short_key,
    table,
)
from oncegate.console.dead_letter_query import DeadLetterQuery, dead_letter_query
from oncegate.console.layout import document
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.durations import times
from oncegate.errors import OncegateError
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.inspection.dead_letter_groups import (
    DeadLetterGroups,
    ErrorGroup,
    group_dead_letters,
    normal_error,
)
from oncegate.inspection.operators import letters
from oncegate.journal import OPERATOR, OPERATOR_ACTIONS, Row
from oncegate.settings import Settings
from oncegate.stores.base import Entry
from oncegate.text import on_one_line

CONFIRM: Final = "/dead-letters/confirm"
FROM_EVENT: Final = "event"  # the value of the parameter `from`, if an action was chosen on the page of an event
MOST_READ: Final = 10_000  # dead letters that a page reads
_MOST_GROUPS: Final = 100
_ROWS: Final = 50  # of a page
_LONGEST_ERROR: Final = 300  # characters in a list
_MOST_TYPES: Final = 3
_NONE: Final = "none"
_ACTIONS_SHOWN: Final = 20
_RECORDED: Final = "Every redrive, drop, reset, replay and erasure is listed here, with the name of the person."
_OLDER: Final = ("1h", "24h", "7d")
_NEWER: Final = ("15m", "1h", "24h", "7d")


def dead_letters(site: Site, request: Request) -> HttpAnswer:
    query = dead_letter_query(site.settings, request.query)
    namespaces = {each["namespace"] for each in (*site.settings.routes.values(), site.settings)}
    content: Iterable[h.Node]
    if query.problem is not None:
        content = [problem(query.problem)]
    elif query.group is not None:
        content = list(_group_list(site, request, query, namespaces))
    else:
        content = list(_groups(site, query, namespaces))
    title = "Dead letters"
    return document(request, title, h.h1[title], _filters(query, namespaces), content, operator_panel(site))


def _read(site: Site, query: DeadLetterQuery, namespaces: set[str]) -> Iterator[Entry]:
    """Yields the dead letters that may match, and adds their namespaces to `namespaces`."""
    for entry in query.read(site.store):
        namespaces.add(entry.namespace)
        yield entry


# ── filters and actions ───────────────────────────────────────────────────────────────────────────────────


def _filters(query: DeadLetterQuery, namespaces: Iterable[str]) -> h.Node:
    given = query.parameters
    return h.form(".filters", method="get", action=link("/dead-letters"))[
        h.label["Type", h.input(name="type", value=given.get("type", ""))],
        h.label(".wide")["Error contains", h.input(type="search", name="error", value=given.get("error", ""))],
        _choice("Namespace", "namespace", given, ((each, each) for each in sorted(namespaces))),
        _choice("Older than", "older", given, ((each, each) for each in _OLDER)),
        _choice("Newer than", "newer", given, ((each, each) for each in _NEWER)),
        h.button(type="submit")["Filter"],
        query.is_filtered and h.a(".button.quiet", href=link("/dead-letters"))["Clear"],
    ]


def _choice(label: str, name: str, given: Mapping[str, str], options: Iterable[tuple[str, str]]) -> h.Node:
    chosen = given.get(name, "")
    values = {"": "Any", **dict(options), **({chosen: chosen} if chosen else {})}
    return h.label[
        label,
        h.select(name=name)[(h.option(value=value, selected=value == chosen)[text] for value, text in values.items())],
    ]


def _buttons(query: DeadLetterQuery, what: str = "", **more: str) -> h.Node:
    """Links to the pages that ask for confirmation. `what` is the object of their names; "" for one row of a table."""
    kind, to = ".button.quiet" if what else ".button.quiet.small", {**query.parameters, **more}
    return h.span(".row")[
        h.a(kind, href=link(CONFIRM, {**to, "action": "redrive"}))[f"Redrive {what}".strip()],
        h.a(kind, href=link(CONFIRM, {**to, "action": "drop"}))[f"Drop {what}".strip()],
    ]


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────────


def _groups(site: Site, query: DeadLetterQuery, namespaces: set[str]) -> Iterator[h.Node]:
    found = group_dead_letters(_read(site, query, namespaces), query.chosen, MOST_READ)
    if not found.groups:
        yield _nothing(query, found)
        return
    count, groups = letters(found.count), times(len(found.groups), "group")
    headers = ("Error", "Count", "First", "Last", "Types", "Routes", "Actions")
    rows = [_group_row(site.settings, query, group) for group in found.groups[:_MOST_GROUPS]]
    title = f"{count} in {groups}"
    yield h.section(".panel", aria_label=title)[
        h.div(".head")[h.h2[title], _buttons(query, "all that match" if query.is_filtered else "all")],
        found.scanned is not None and _bound(found.scanned),
        len(found.groups) > _MOST_GROUPS
        and h.p(".soft")[f"The largest {_MOST_GROUPS} groups are shown. Use a filter to see others."],
        table("Dead letters by error", headers, rows),
    ]


def _group_row(settings: Settings, query: DeadLetterQuery, group: ErrorGroup) -> tuple[h.Node, ...]:
    common = [named for named, _ in group.types.most_common(_MOST_TYPES)]
    more = len(group.types) - len(common)
    return (
        h.a(href=link("/dead-letters", {**query.parameters, "group": group.id}))[group.error],
        h.span(".count")[f"{group.count:,}"],
        moment(group.first),
        moment(group.last),
        _short(f"{', '.join(common)}{f' and {more} more' if more else ''}"),
        _short(", ".join(route_names(settings, group.namespaces))),
        _buttons(query, group=group.id),
    )


def route_names(settings: Settings, namespaces: Iterable[str]) -> list[str]:
    """The routes that have these namespaces. A namespace that no route has is named itself."""
    names: list[str] = []
    for namespace in sorted(namespaces):
        routes = [name for name, route in settings.routes.items() if route["namespace"] == namespace]
        names += routes or [namespace]
    return names


def _bound(scanned: int) -> h.Node:
    return h.p(".soft")[
        f"The store has more dead letters. The first {scanned:,} were read, in no order of time. Choose a namespace to"
        " read others. Redrive and Drop change all that match."
    ]


def _nothing(query: DeadLetterQuery, found: DeadLetterGroups) -> h.Node:
    if query.is_filtered:
        clear = h.a(href=link("/dead-letters"))["Clear the filter"]
        read = "" if found.scanned is None else f" Only the first {found.scanned:,} were read."
        return empty(f"No dead letter matches.{read}", clear, ".")
    return empty(
        "There are no dead letters.",
        "An event becomes a dead letter after its last attempt, if its key is known with other content, or if it cannot"
        " be read.",
    )


# ── the list of a group ───────────────────────────────────────────────────────────────────────────────────


def _group_list(site: Site, request: Request, query: DeadLetterQuery, namespaces: set[str]) -> Iterator[h.Node]:
    groups = {name: value for name, value in query.parameters.items() if name != "group"}
    yield h.p[h.a(href=link("/dead-letters", groups))["← All groups"]]
    entries, count, after = _newest(_read(site, query, namespaces), query, request.query.get("before", ""))
    if not entries:
        yield empty("This group has no dead letters any more.", "They were redriven, dropped, or have expired.")
        return
    title = normal_error(entries[0])
    yield h.section(".panel", aria_label=title)[
        h.div(".head")[h.h2[title], _buttons(query, "this group")],
        h.p(".soft")[f"{count}, the newest first."],
        entry_table(site.settings, query, entries, actions=True),
    ]
    yield pager(request, after)


def _newest(source: Iterator[Entry], query: DeadLetterQuery, before: str) -> tuple[list[Entry], str, str | None]:
    """The dead letters of one page, the number of all that match as text, and the cursor of the next page. No store has
    them in the order of time, so each page reads all of them, up to 10,000."""
    start, count = _cursor(before), 0

    def older() -> Iterator[tuple[int, bytes, Entry]]:
        nonlocal count
        for entry in islice(source, MOST_READ):
            if query.matches(entry):
                count += 1
                at = (query.time_of(entry), entry.key)
                if start is None or at < start:
                    yield *at, entry

    found = nlargest(_ROWS + 1, older(), key=lambda each: each[:2])
    shown = found[:_ROWS]
    after = f"{shown[-1][0]}-{shown[-1][1].hex()}" if len(found) > _ROWS else None
    counted = letters(count)
    if next(source, None) is not None:
        counted = f"{counted} among the first {MOST_READ:,}"
    return [entry for _, _, entry in shown], counted, after


def _cursor(written: str) -> tuple[int, bytes] | None:
    at, _, key = written.partition("-")
    try:
        return int(at), bytes.fromhex(key)
    except ValueError:
        return None


def _short(text: str) -> h.Element:
    return h.span(".short")[on_one_line(text)]


def entry_table(
    settings: Settings, query: DeadLetterQuery, entries: Iterable[Entry], *, actions: bool = False
) -> h.Element:
    headers = ("Key", "Event", "Type", "Route", "Attempts", "Dead since", "Error")
    rows = (
        (
            short_key(entry.key.hex(), link("/event", {"key": entry.key.hex(), "namespace": entry.namespace})),
            _short(entry.record.about.delivery_id or _NONE),
            _short(entry.record.about.type or _NONE),
            _short(", ".join(route_names(settings, [entry.namespace]))),
            h.span(".count")[entry.record.attempts],
            moment(query.time_of(entry)),
            on_one_line((entry.record.error or "")[:_LONGEST_ERROR]),
            *([_buttons(query, key=entry.key.hex(), namespace=entry.namespace)] if actions else ()),
        )
        for entry in entries
    )
    return table("Dead letters", (*headers, "Actions") if actions else headers, rows)


# ── the record of what operators did ──────────────────────────────────────────────────────────────────────


def operator_panel(site: Site) -> h.Node:
    """The latest actions of operators, and the tasks that run now."""
    title = "Who did what"
    running = [
        h.li[h.a(href=link("/task", {"id": task.id}))[task.title], f" by {task.who}, running"]
        for task in site.tasks.running
    ]
    tasks = running and h.ul[running]
    try:
        journal = site.journal
        rows = [] if journal is None else journal.rows(OPERATOR_ACTIONS, limit=_ACTIONS_SHOWN)
    except OncegateError as error:
        return panel(title, tasks, problem(f"The journal cannot be read: {error}"))
    if journal is None:
        return panel(title, tasks, disabled(f"Actions are recorded in the log of the service only: {site.no_journal}"))
    if not rows:
        return panel(title, tasks, empty("No action is recorded yet.", _RECORDED))
    headers = ("Time", "Action", "Who", "What")
    return panel(
        title,
        tasks,
        table(title, headers, [_action_row(row) for row in sorted(rows, key=lambda row: row.at, reverse=True)]),
        h.p[h.a(href=link("/events", {"status": OPERATOR}))["All actions"]],
    )


def _action_row(row: Row) -> tuple[h.Node, ...]:
    to = row.key_text and link("/event", {"key": row.key_text, "namespace": row.namespace})
    return (
        moment(row.at),
        badge("operator", row.kind),
        on_one_line(row.worker),
        [to and [short_key(row.key_text or "", to), " "], on_one_line(row.reason)],
    )


def query_facts(query: DeadLetterQuery, example: Entry | None) -> h.Node:
    """What was chosen, in words. `example` is one of the selected dead letters."""
    if not query.is_filtered:
        return h.p["All dead letters are selected."]
    names = {"older": "Older than", "newer": "Newer than", "error": "Error contains", "group": "Error like"}
    values = {**query.parameters, **({"group": normal_error(example)} if query.group and example else {})}
    return facts((names.get(name, name.capitalize()), on_one_line(value)) for name, value in values.items())
