"""The frame of every page, the login page and error pages."""

from collections.abc import Sequence
from functools import cache, lru_cache
from html import escape
from typing import Final

import htpy as h
from msgspec.structs import replace

from oncegate.console.requests import PREFIX, Request, link, page
from oncegate.console.static import static_url
from oncegate.ingress.http_answers import HttpAnswer

_SCREENS: Final = (
    ("/", "Overview"),
    ("/events", "Events"),
    ("/dead-letters", "Dead letters"),
    ("/keys", "Keys"),
    ("/settings", "Settings"),
)
# Stands for an address in a page that is made once. Anyone can load such a page at any rate, and to make it anew would
# delay the events of the service.
_ADDRESS: Final = "\0"


def document(
    request: Request,
    title: str,
    *content: h.Node,
    scripts: Sequence[str] = (),
    refresh: int | None = None,
    code: int = 200,
) -> HttpAnswer:
    """Returns a page of the console with this title and content. `scripts` names more modules of the folder `static`,
    such as `tail.js`. A browser without scripts loads the page again every `refresh` seconds."""
    main = h.main("#main", tabindex="-1")[content]
    again = refresh and h.noscript[h.meta(http_equiv="refresh", content=str(refresh))]
    return page(_html(_title(request, title), _header(request), main, head=again, scripts=scripts), code)


def _title(request: Request, title: str) -> str:
    """The title of a page with the name of the store, so that the tabs of two consoles differ."""
    return f"{title} · {request.site_name}" if request.site_name else title


def csrf_field(request: Request) -> h.VoidElement:
    """The hidden field that every form with method=post needs."""
    return h.input(type="hidden", name="csrf", value=request.csrf)


def _html(title: str, *body: h.Node, head: h.Node = None, scripts: Sequence[str] = ()) -> h.Renderable:
    return h.html(lang="en")[
        h.head[
            h.meta(charset="utf-8"),
            h.meta(name="viewport", content="width=device-width, initial-scale=1"),
            h.meta(name="color-scheme", content="light dark"),
            head,
            h.title[f"{title} · Oncegate"],
            h.link(rel="icon", href=static_url("icon.svg")),
            h.link(rel="stylesheet", href=static_url("console.css")),
            (h.script(type="module", src=static_url(name)) for name in ("console.js", *scripts)),
        ],
        h.body[body],
    ]


def _header(request: Request) -> h.Node:
    return [
        h.a(".skip", href="#main")["Skip to content"],
        h.header(".bar")[
            h.a(".brand", href=link("/"))[
                h.img(src=static_url("icon.svg"), alt=""), h.span["Oncegate", _store(request)]
            ],
            h.nav(aria_label="Screens")[
                (
                    h.a(href=link(path), aria_current="page" if _is_open(request.path, path) else None)[name]
                    for path, name in _SCREENS
                )
            ],
            request.path != "/events" and _search(),
            h.form(".logout", method="post", action=link("/logout"))[
                csrf_field(request), h.span(".user")[request.user], h.button(".quiet", type="submit")["Log out"]
            ],
        ],
    ]


def _store(request: Request) -> h.Node:
    name = request.site_name
    return name and [" ", h.span(".store", title=name)[name]]


def _search() -> h.Element:
    """The search of the screen Events, on every other screen."""
    return h.form(".search", method="get", action=link("/events"), role="search")[
        h.input(type="search", name="q", aria_label="Search events", placeholder="Search by any id", autocomplete="off")
    ]


def _is_open(current: str, path: str) -> bool:
    return current == path or (path != "/" and current.startswith(f"{path}/"))


def login_page(to: str, problem: str | None = None, code: int = 200) -> HttpAnswer:
    """Returns the form of the login. After the login, the browser loads the address `to`."""
    return _with_address(_login_page(problem, code), to)


@cache  # there are only a few problems
def _login_page(problem: str | None, code: int) -> HttpAnswer:
    html = _html(
        "Log in",
        h.main("#main.login")[
            h.h1(".row")[h.img(".icon", src=static_url("icon.svg"), alt=""), "Oncegate console"],
            problem and h.p(".problem", role="alert")[problem],
            h.form(method="post", action=link("/login"))[
                h.input(type="hidden", name="next", value=_ADDRESS),
                h.label(for_="token")["Token"],
                h.input(
                    "#token",
                    name="token",
                    type="password",
                    autocomplete="current-password",
                    required=True,
                    autofocus=True,
                ),
                h.p(".hint")["The start message of the service says where the token is."],
                h.label(for_="user")["Your name, for the record of changes"],
                h.input("#user", name="user", autocomplete="username", maxlength="60", required=True),
                h.button(type="submit")["Log in"],
            ],
        ],
    )
    return page(html, code)


def passing_page(to: str) -> HttpAnswer:
    """Returns a page that leads to another page of this site without a redirect. The browser then counts the other page
    as loaded from this site, and sends the cookie."""
    return _with_address(_passing_page(), to)


@cache
def _passing_page() -> HttpAnswer:
    main = h.main("#main.login")[h.p[h.a(href=_ADDRESS)["Continue to the login"]]]
    return page(_html("Log in", main, head=h.meta(http_equiv="refresh", content=f"0; url={_ADDRESS}")), 401)


def _with_address(answer: HttpAnswer, to: str) -> HttpAnswer:
    return replace(answer, body=answer.body.replace(_ADDRESS.encode(), escape(to).encode(errors="replace")))


def error_page(code: int, text: str, request: Request | None = None) -> HttpAnswer:
    """Returns a page with an error. Without the request of a person who is logged in, the text must be a constant."""
    if request is None:
        return _error_page(code, text)
    return page(_html(_title(request, f"Error {code}"), _header(request), _error(code, text)), code)


@lru_cache(maxsize=32)
def _error_page(code: int, text: str) -> HttpAnswer:
    return page(_html(f"Error {code}", _error(code, text)), code)


def _error(code: int, text: str) -> h.Element:
    return h.main("#main")[h.h1[str(code)], h.p(".problem", role="alert")[text], h.p[h.a(href=PREFIX)["Overview"]]]
