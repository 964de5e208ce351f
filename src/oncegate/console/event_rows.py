"""Rows of the journal as the console shows them: in a table, and as JSON for the live tail."""

from collections.abc import Iterable
from typing import Final

import htpy as h
import msgspec
from msgspec import Struct

from oncegate.console.components import badge, short_key
from oncegate.console.requests import link
from oncegate.durations import spoken
from oncegate.journal import Row
from oncegate.times import readable_time, rfc3339

# The names of the columns. tail.js makes the same cells of the fields of `ShownRow`.
COLUMNS: Final = ("Time", "Status", "Event", "Conversation, key", "Route", "Timing", "Reason")
_MINUS: Final = "\N{MINUS SIGN}"
_TIMES: Final = "\N{MULTIPLICATION SIGN}"


class ShownRow(Struct, frozen=True, gc=False, omit_defaults=True):
    """The texts of a row. `id` is text, because a number in a browser has only 53 bits. `at` is for programs, and
    `time` for people. `copies` is set for a row that stands for several copies."""

    id: str
    at: str
    time: str
    status: str
    route: str
    reason: str
    kind: str | None = None
    type: str | None = None
    entity: str | None = None
    event: str | None = None
    key: str | None = None
    namespace: str = ""
    attempt: str = ""
    lag: str = ""
    took: str = ""
    copies: str = ""


def shown_row(row: Row) -> ShownRow:
    return ShownRow(
        str(row.id),
        rfc3339(row.at) or "",
        readable_time(row.at) or "",
        row.status,
        row.place,
        row.reason,
        row.kind,
        row.type,
        row.entity,
        row.event_id or row.delivery_id,
        row.key.hex() or None,
        row.namespace,
        str(row.attempt) if row.attempt else "",
        lag_text(row.lag),
        "" if row.took is None else spoken(row.took),
        copies_text(row),
    )


def copies_text(row: Row) -> str:
    """Returns how many copies a row stands for, such as `x 37 copies from 09:30:00.123 to 09:30:59.870`; "" for one
    delivery."""
    if row.count <= 1:
        return ""
    first, last = readable_time(row.since or row.at) or "", readable_time(row.at) or ""
    end = last[11:] if first[:10] == last[:10] else last
    return f"{_TIMES} {row.counted} from {first[11:]} to {end}"


def lag_text(lag: int | None) -> str:
    """Returns the lag. The event time of a sender whose clock is ahead may be later than the delivery."""
    if lag is None:
        return ""
    return spoken(lag) if lag >= 0 else f"{_MINUS}{spoken(-lag)}"


def gap_text(gap: int, after: str = "later") -> str:
    """Returns the time between two rows: to a tenth of a second below a minute. `after` says what it is measured
    from."""
    if gap < 1_000:
        return f"less than 1 ms {after}"
    if 1_000_000 <= gap < 60_000_000:
        return f"{gap / 1e6:.1f} s {after}"
    return f"{spoken(gap)} {after}"


encode_rows: Final = msgspec.json.Encoder().encode


def event_link(row: Row) -> str:
    """Returns the address of the Event screen that is about this row."""
    if row.key:
        return link("/event", {"key": row.key.hex(), "namespace": row.namespace, "row": row.id})
    return link("/event", {"row": row.id})


def conversation_link(entity: str) -> str:
    return link("/conversation", {"id": entity})


def rows_table(rows: Iterable[Row], caption: str) -> h.Element:
    """The table of the Events screen. On a narrow screen, each row is shown as a block, and each cell has the name of
    its column."""
    return h.table(".list.events")[
        h.caption(".hidden")[caption],
        h.thead[h.tr[(h.th(scope="col")[name] for name in COLUMNS)]],
        h.tbody("#rows")[(_table_row(row) for row in rows)],
    ]


def _table_row(row: Row) -> h.Element:
    shown = shown_row(row)
    cells: tuple[h.Node, ...] = (
        h.a(href=event_link(row))[
            h.time(datetime=shown.at)[h.span(".clock")[shown.time[11:]], " ", h.span(".soft")[shown.time[:10]]]
        ],
        [badge(shown.status), shown.kind and h.span(".line.soft")[shown.kind]],
        [wrapped(shown.type), _line(shown.event, ".soft")],
        [
            shown.entity and h.a(".line", href=conversation_link(shown.entity), title=shown.entity)[shown.entity],
            shown.key and short_key(shown.key, event_link(row)),
        ],
        [wrapped(shown.route), _line(shown.attempt and f"attempt {shown.attempt}", ".soft")],
        [_line(shown.lag and f"lag {shown.lag}", ".soft"), _line(shown.took and f"took {shown.took}", ".soft")],
        [shown.copies and h.strong(".line")[shown.copies], shown.reason],
    )
    return h.tr(data_id=shown.id)[(h.td(data_label=name)[cell] for name, cell in zip(COLUMNS, cells, strict=True))]


def wrapped(text: str | None) -> h.Node:
    """A text of a cell that wraps at its dots: types of one service often differ only at their end."""
    if not text:
        return None
    *parts, last = text.split(".")
    return h.span(".line.wrap", title=text)[([f"{part}.", h.wbr] for part in parts), last]


def _line(text: str | None, classes: str = "") -> h.Node:
    """One line of a cell. A long text is cut by the style sheet; its title has the whole text."""
    return h.span(f".line{classes}", title=text)[text] if text else None
