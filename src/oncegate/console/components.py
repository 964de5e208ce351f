"""Parts of pages that several screens use."""

from collections.abc import Iterable, Sequence
from typing import Final

import htpy as h

from oncegate.console.requests import Request
from oncegate.times import readable_time, rfc3339

_SHORT: Final = 12  # characters of a shortened key


def moment(time_us: int | None) -> h.Node:
    """A time in UTC, in microseconds since 1970."""
    return None if time_us is None else h.time(datetime=rfc3339(time_us))[readable_time(time_us)]


def badge(status: str, kind: str | None = None) -> h.Element:
    """The status of a row or a record, and the kind of a duplicate. Colour is never the only sign."""
    return h.span(class_=["badge", f"status-{status.replace(' ', '-').replace('_', '-')}"])[
        status.replace("_", " "), kind and [" · ", kind]
    ]


def short_key(key: str, to: str | None = None) -> h.Element:
    """The start of a key, with the whole key as its title; with `to`, as a link."""
    text = h.code(title=key)[key[:_SHORT]]
    return text if to is None else h.a(href=to)[text]


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[h.Node]]) -> h.Element:
    """A table. On a narrow screen, each row is shown as a block, and each cell has the name of its column."""
    return h.table(".list")[
        h.caption(".hidden")[caption],
        h.thead[h.tr[(h.th(scope="col")[header] for header in headers)]],
        h.tbody[
            (h.tr[(h.td(data_label=header)[cell] for header, cell in zip(headers, row, strict=True))] for row in rows)
        ],
    ]


def facts(pairs: Iterable[tuple[str, h.Node]]) -> h.Element:
    """Names and values. A pair with the value None is left out."""
    return h.dl(".facts")[((h.dt[name], h.dd[value]) for name, value in pairs if value is not None)]


def pager(request: Request, before: int | str | None) -> h.Node:
    """A link to the next page of a list that is paged by the parameter `before`. None: there is no next page."""
    if before is None and "before" not in request.query:
        return None
    return h.nav(".pager", aria_label="Pages")[
        "before" in request.query and h.a(href=request.url(before=None))["Newest"],
        before is not None and h.a(rel="next", href=request.url(before=before))["Older"],
    ]


def card(label: str, figure: h.Node, note: h.Node = None, to: str | None = None) -> h.Element:
    """A tile with one figure; with `to`, as a link."""
    tile = h.div(".card") if to is None else h.a(".card", href=to)
    return tile[h.span(".label")[label], h.span(".figure")[figure], note and h.span(".note")[note]]


def panel(title: str, *content: h.Node) -> h.Element:
    """A part of a page with a title of its own."""
    return h.section(".panel", aria_label=title)[h.h2[title], content]


def notice(*content: h.Node) -> h.Element:
    """What an action has done. Screen readers read it aloud."""
    return h.p(".notice", role="status")[content]


def problem(*content: h.Node) -> h.Element:
    """Why something is not possible or has failed. Screen readers read it aloud."""
    return h.p(".problem", role="alert")[content]


def copy_button(text: str, name: str = "Copy") -> h.Element:
    """A button that copies a text. The script shows it, if the browser lets pages copy."""
    return h.button(".quiet.small", type="button", hidden=True, data_copy=text)[name]


def progress(done: int, total: int, label: str) -> h.Element:
    return h.progress(".progress", value=str(done), max=str(max(total, 1)), aria_label=label)[f"{done:,} of {total:,}"]


def prose(text: str) -> h.Node:
    """A sentence whose `parts in backquotes` are shown as code. If a backquote has no partner, the text stays as it
    is."""
    parts = text.split("`")
    return text if len(parts) % 2 == 0 else [h.code[part] if at % 2 else part for at, part in enumerate(parts)]


def empty(text: str, *hint: h.Node) -> h.Element:
    """What a list without rows shows: that there is nothing, and what to do next."""
    return h.div(".empty")[h.p[text], hint and h.p[hint]]


def disabled(reason: str) -> h.Element:
    """Shown in place of a function that is not available: the reason, and the setting that enables it."""
    return h.p(".disabled")[prose(reason)]
