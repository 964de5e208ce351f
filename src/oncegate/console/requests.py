"""Requests and responses of the console."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from htpy import Renderable
from msgspec import Struct

from oncegate.ingress.http_answers import HttpAnswer

PREFIX: Final = "/console"
# Characters that change the direction of the text after them. tail.js has the same list.
_DIRECTION: Final = re.compile("[\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")
_TEXT: Final = re.compile(">[^<]*")  # in attributes and texts, these characters are escaped
_MOST_FIELDS: Final = 200  # of a form or a query
_HTML: Final = (b"content-type", b"text/html; charset=utf-8")


class Request(Struct, frozen=True):
    """A request of a person who is logged in. `path` starts after `/console`. `user` is the name that the person gave
    at login. `csrf` is the token that every form must send. `site_name` says which store the console shows."""

    method: str
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    sender: str = ""
    user: str = ""
    csrf: str = ""
    site_name: str = ""

    def url(self, **changes: object) -> str:
        """Returns the address of this page with other parameters. A parameter with the value None is left out."""
        return link(self.path, {**self.query, **changes})


def link(path: str, query: Mapping[str, object] | None = None) -> str:
    """Returns the address of a page of the console. `path` starts after `/console`. Parameters with the value None or
    "" are left out."""
    given = {name: str(value) for name, value in (query or {}).items() if value not in (None, "")}
    return f"{PREFIX}{path}{'?' if given else ''}{urlencode(given)}"


def page(content: Renderable, code: int = 200) -> HttpAnswer:
    return HttpAnswer(code, _with_visible_controls(str(content)).encode(errors="replace"), [_HTML])


def _with_visible_controls(html: str) -> str:
    """Show the characters that change the direction of text, in the text between two tags. Otherwise a sender could
    reorder the words of a sentence. Attributes keep these characters: some of them are copied."""
    return html if not _DIRECTION.search(html) else _TEXT.sub(_escaped, html)


def _escaped(text: re.Match[str]) -> str:
    return _DIRECTION.sub(lambda found: f"\\u{ord(found[0]):04x}", text[0])


def redirect(to: str) -> HttpAnswer:
    """Returns a response after which the browser loads another page with GET. `to` is an address of this site."""
    return HttpAnswer(303, b"", [(b"location", to.encode())])


def fields(encoded: bytes) -> dict[str, str]:
    """Returns the fields of a query or a form. If a name occurs several times, the last value counts. Raises ValueError
    if there are too many fields."""
    text = encoded.decode("utf-8", "replace")
    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="replace"))


def header(scope: Mapping[str, Any], name: bytes) -> str | None:
    """Returns the first header with this name in lower case."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)
