"""Sites with real stores and journals, and what a page of them says."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from oncegate.console.requests import PREFIX, Request, fields
from oncegate.console.site import Site
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.journal import Journal, open_journal
from oncegate.journal.base import MINUTE, NewRow, NewRows
from oncegate.journal.rows import Fields, Label
from oncegate.settings import load

SECOND = 1_000_000  # microseconds
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\u202e\x1b[2J\njavascript:alert(1)"
EMPTY_TAGS = {"meta", "link", "input", "img", "br", "hr", "wbr"}


def make_site(folder: Path, **settings: object) -> Site:
    """A site whose store and journal are files of this folder."""
    flags = {"store": f"sqlite:///{folder}/oncegate.db", **settings}
    loaded = load(environ={}, flags=flags)
    return Site(loaded, loaded.open_store)


def make_journal(folder: Path) -> Journal:
    return open_journal(f"sqlite:///{folder}/oncegate.journal.db")


def row(
    number: int,
    at: int,
    status: str = "processed",
    kind: str = "",
    *,
    named: str = "call.ended",
    place: str = "default",
    **more: object,
) -> NewRow:
    """A row of the event with this number. `more` are further fields of the row."""
    label: Label = (place, "crm", "plain", named, status, kind)
    values = {"key": number.to_bytes(16, "big"), "event_id": f"evt-{number}", "entity": f"conversation-{number % 10}"}
    return NewRow(label, Fields(**{**values, "at": at, "attempt": 1, "reason": f"Reason {number}.", **more}))  # type: ignore[arg-type]


def write(journal: Journal, rows: Sequence[NewRow]) -> None:
    counts: Counter[tuple[int, Label]] = Counter()
    for each in rows:
        counts[each.fields.at // MINUTE, each.label] += each.fields.count
    journal.append(NewRows(rows, counts, {}))


def get(page: Callable[[Site, Request], HttpAnswer], site: Site, address: str) -> "Shown":
    """The page at an address such as `/events?status=failed`."""
    path, _, query = address.removeprefix(PREFIX).partition("?")
    answer = page(site, Request("GET", path, fields(query.encode()), {}, "127.0.0.1", "Ada", "csrf-token"))
    return Shown(answer)


class Shown(HTMLParser):
    """A page as a browser sees it: its text, its elements and its links. The parser fails if elements are not
    balanced, so a text that escapes from its place is found."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__()
        self.code = answer.code
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._open: list[str] = []
        self._parts: list[str] = []
        self.feed(answer.body.decode())
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in EMPTY_TAGS:
            self._open.append(tag)
        elif tag == "wbr":
            self._parts.append("\0")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self._parts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self._parts).replace(" \0 ", ""))

    @property
    def links(self) -> list[str]:
        return [attributes["href"] for tag, attributes in self.elements if tag == "a"]

    def find(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """The attributes of the elements with this tag and these attributes."""
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]

    def query_of_link(self, path: str) -> dict[str, str]:
        """The parameters of the first link to a path of the console."""
        found = next(link for link in self.links if urlsplit(link).path == f"{PREFIX}{path}")
        return dict(parse_qsl(urlsplit(found).query))

    def check_nothing_escapes(self) -> None:
        """No element or address is made of the text of an event."""
        scripts = [attributes.get("src", "") for tag, attributes in self.elements if tag == "script"]
        assert all(address.startswith(f"{PREFIX}/static/") for address in scripts)
        assert not any("onerror" in attributes or "style" in attributes for _, attributes in self.elements)
        assert all(link.startswith((f"{PREFIX}/", f"{PREFIX}?", "#")) or link == PREFIX for link in self.links)
        assert all(link.isprintable() and "<" not in link for link in self.links)
