"""The Conversation screen: everything that happened to one entity, in the order in which it happened."""

from collections.abc import Iterable, Iterator
from typing import Final

import htpy as h

from oncegate.console.components import badge, disabled, empty, moment, pager
from oncegate.console.event_filter import row_id
from oncegate.console.event_rows import copies_text, event_link, gap_text, wrapped
from oncegate.console.layout import document
from oncegate.console.pages.forgetting import FORGET
from oncegate.console.requests import Request, link
from oncegate.console.site import Site
from oncegate.durations import times
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.inspection.conversations import Conversation, ConversationLine, Mark
from oncegate.inspection.conversations import conversation as read_conversation
from oncegate.inspection.stories import name_of
from oncegate.journal import Row, RowFilter
from oncegate.times import readable_time, rfc3339

_PAGE: Final = 100  # rows
_SMALL_GAP: Final = 1_000  # microseconds; a smaller gap is not shown
_COLUMNS: Final = ("Event time", "Status", "Event", "Part, state", "Route", "Reason")
_MARKS: Final[dict[Mark, str]] = {"echo": "tone-warn", "possible echo": "tone-warn", "stale": "tone-bad"}
_MARK_TEXTS: Final[dict[Mark, str]] = {
    "echo": "Another emission of the same state change",
    "possible echo": "Reports the same state at nearly the same time",
    "stale": "Older than a state that was already known",
}


def conversation(site: Site, request: Request) -> HttpAnswer:
    entity, journal = request.query.get("id", ""), site.journal
    if not entity:
        hint = h.a(href=link("/events"))["Search the events"]
        return document(request, "Conversation", h.h1["Conversation"], empty("No conversation is chosen.", hint))
    head = h.div(".head")[
        h.h1[f"Conversation {entity}"],
        journal is not None and h.a(".button.quiet", href=link("/events", {"entity": entity}))["Filter events"],
        h.a(".button.quiet", href=link(FORGET, {"id": entity}))["Forget…"],
    ]
    title = f"Conversation {entity}"
    if journal is None:
        return document(request, title, head, disabled(site.no_journal))
    found = read_conversation(
        journal, entity, RowFilter(operators=True), before=row_id(request.query.get("before")), most=_PAGE
    )
    if not found.lines and found.next is None:
        hint = h.a(href=link("/events", {"q": entity}))["Search for this text"]
        return document(request, title, head, empty("The journal has no row of this conversation.", hint))
    return document(
        request,
        title,
        head,
        _summary(request, found),
        _table(_in_order(found.lines)),
        pager(request, found.next),
    )


def _summary(request: Request, found: Conversation) -> h.Element:
    """How much of the conversation this page shows."""
    events = len({(line.row.namespace, line.row.key) for line in found.lines if line.row.key})
    parts = len({line.row.part for line in found.lines if line.row.part})
    is_part = found.next is not None or bool(request.query.get("before"))
    marks = [f"{count} {name}" for name in _MARKS if (count := sum(line.mark == name for line in found.lines))]
    return h.p(".soft")[
        f"{times(len(found.lines), 'row')} of {times(events, 'event')}{f' in {parts} parts' if parts > 1 else ''}"
        f"{' on this page' if is_part else ''}, in the order of their event times.",
        marks and f" Marked: {', '.join(marks)}.",
    ]


def _in_order(lines: Iterable[ConversationLine]) -> list[ConversationLine]:
    """The lines by event time; a row without an event time counts from its arrival."""
    return sorted(lines, key=lambda line: (_time(line.row), line.row.id))


def _time(row: Row) -> int:
    return row.start if row.occurred_at is None else row.occurred_at


def _table(lines: list[ConversationLine]) -> h.Element:
    return h.table(".list.events.conversation")[
        h.caption(".hidden")["Rows of the conversation, by event time"],
        h.thead[h.tr[(h.th(scope="col")[name] for name in _COLUMNS)]],
        h.tbody[_rows(lines)],
    ]


def _rows(lines: Iterable[ConversationLine]) -> Iterator[h.Element]:
    before: int | None = None
    for line in lines:
        yield _row(line, before)
        before = _time(line.row)


def _row(line: ConversationLine, before: int | None) -> h.Element:
    row, at = line.row, _time(line.row)
    cells: tuple[h.Node, ...] = (
        [
            moment(at),
            h.span(".line.soft")[
                "recorded"
                if row.occurred_at is None
                else ["recorded ", h.time(datetime=rfc3339(row.start))[_clock(row.start)]]
            ],
            before is not None
            and at - before >= _SMALL_GAP
            and h.span(".line.soft")[gap_text(at - before, "after the row above")],
        ],
        [badge(row.status), row.kind and h.span(".line.soft")[row.kind]],
        [
            wrapped(row.type),
            h.a(".line", href=event_link(row), title=name_of(row))[name_of(row)],
        ],
        [
            row.part and h.span(".line.soft", title=row.part)[row.part],
            row.state and h.span(".line")[row.state],
            line.mark and _mark(line.mark, line.of),
        ],
        wrapped(row.place),
        [(text := copies_text(row)) and h.strong(".line")[text], row.reason],
    )
    return h.tr[(h.td(data_label=name)[cell] for name, cell in zip(_COLUMNS, cells, strict=True))]


def _clock(at: int) -> str:
    return (readable_time(at) or "")[11:]


def _mark(mark: Mark, of: Row | None) -> h.Node:
    return [
        h.span(class_=["badge", _MARKS[mark]], title=_MARK_TEXTS[mark])[mark],
        of is not None and h.span(".line.soft")["of ", h.a(href=event_link(of))[name_of(of)]],
    ]
