"""The ASGI application of the console: login, routing, security headers, static files and the live tail."""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final, Protocol

from msgspec.structs import replace

from oncegate.console.access import Access, Session, tidy_name
from oncegate.console.layout import error_page, login_page, passing_page
from oncegate.console.pages import ACTIONS, PAGES
from oncegate.console.pages.tail import Tails
from oncegate.console.requests import PREFIX, Request, fields, header, link, redirect
from oncegate.console.site import Site
from oncegate.console.static import static_file
from oncegate.errors import OncegateError
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.http_answers import HttpAnswer

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger("oncegate.console")

_MOST_STREAMS: Final = 16  # open at a time; each takes a connection
_LONGEST_ADDRESS: Final = 1_000  # characters of the address to load after the login
# Queries and forms are parsed in the event loop, where they delay events: a form of 60 kB takes 4 ms.
_LARGEST_FORM: Final = 64 * 1024  # bytes
_LONGEST_QUERY: Final = 8_000  # bytes
_LARGEST_OF_STRANGER: Final = 4_000  # bytes of a form or a query without a session; an encoded address has up to 3,000
TAIL: Final = f"{PREFIX}/tail"
_SECURITY_HEADERS: Final = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
        b" frame-ancestors 'none'; form-action 'self'; base-uri 'none'; require-trusted-types-for 'script';"
        b" trusted-types 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, a form would send `Origin: null`
    (b"cross-origin-opener-policy", b"same-origin"),
]
_NOT_STORED: Final = (b"cache-control", b"no-store")
_NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})
_FAILED: Final = "The page could not be made. The log of the service has the reason."
_ENDED: Final = "Your session has ended. Nothing was changed."
_NO_NAME: Final = "Enter your name: the journal records who did what."
_OTHER_SITE: Final = (
    "The request comes from another site. If the console is behind a reverse proxy, the proxy must pass on the Host"
    " header of the browser. In nginx: proxy_set_header Host $http_host"
)


class Peers(Protocol):
    """What is known about the client of a request, behind the proxies that the service trusts."""

    def sender(self, scope: Scope) -> str:
        """Returns the address of the client."""

    def is_https(self, scope: Scope) -> bool:
        """Whether the client uses https."""


class Console:
    """Answers requests below /console. Pages are made in one thread. Two threads would share the interpreter, so they
    would hardly be faster, and would delay the events of a service in the same process more. Live tails have a thread
    of their own, so that they do not wait for a slow page."""

    def __init__(self, site: Site, access: Access, peers: Peers) -> None:
        self._site = site
        self._access = access
        self._peers = peers
        self._thread = CallThreads("oncegate-console", 1)
        self._tail_thread = CallThreads("oncegate-console-tail", 1)
        self._tails = Tails(site, self._tail_thread.call)
        self._closing = asyncio.Event()
        self._streams = 0

    async def respond(self, scope: Scope, body: bytes) -> HttpAnswer:
        """Returns the response to a request with this complete body."""
        try:
            answer = await self._answer(scope, body)
        except Exception:  # noqa: BLE001  # logged; the person gets a page
            _log.exception("the console could not answer a request")
            answer = error_page(500, _FAILED)
        cached = any(name == b"cache-control" for name, _ in answer.headers)
        return replace(answer, headers=[*answer.headers, *_SECURITY_HEADERS, *([] if cached else [_NOT_STORED])])

    async def _answer(self, scope: Scope, body: bytes) -> HttpAnswer:
        path = scope["path"].removeprefix(PREFIX) or "/"
        if (file := static_file(path)) is not None:
            return file
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _with_header(error_page(405, "This page supports GET and POST only."), b"allow", "GET, HEAD, POST")
        session = self._session(scope)
        if (refusal := self._refusal(scope, path, body, session)) is not None:
            return refusal
        try:
            query = fields(scope["query_string"])
            form = fields(body) if scope["method"] == "POST" else _NO_FIELDS
        except ValueError:
            return error_page(400, "The form or the address has too many fields.")
        if session is None or path == "/login":
            return self._login(scope, query, form, session)
        return await self._authorized(scope, session, self._request(scope, session, query, form))

    def _refusal(self, scope: Scope, path: str, body: bytes, session: Session | None) -> HttpAnswer | None:
        """Returns the response if the request can be answered before its query and its form are parsed."""
        if scope["method"] == "POST":
            if not _is_same_origin(scope):
                return error_page(403, _OTHER_SITE)
            if session is None and path != "/login":
                return login_page(link("/"), _ENDED, 401)
            if len(body) > (_LARGEST_OF_STRANGER if session is None else _LARGEST_FORM):
                return error_page(413, "The form is too large.")
            if path == "/login" and self._access.is_blocked(self._peers.sender(scope)):
                wait = "Too many wrong tokens. Wait a minute, then try again."
                return _with_header(login_page(link("/"), wait, 429), b"retry-after", "60")
        if session is None and path != "/login":
            # A browser withholds the cookie when a link of another site leads here. The login page is loaded from this
            # site, so it gets the cookie, and leads back to this page if the cookie is valid.
            address = f"{PREFIX}{path}?{scope['query_string'].decode(errors='replace')}"
            return passing_page(link("/login", {"next": _within_site(address)}))
        if len(scope["query_string"]) > (_LARGEST_OF_STRANGER if session is None else _LONGEST_QUERY):
            return error_page(414, "The address is too long.")
        return None

    async def _authorized(self, scope: Scope, session: Session, request: Request) -> HttpAnswer:
        if request.method == "POST":
            if not hmac.compare_digest(request.form.get("csrf", "").encode(), request.csrf.encode()):
                return error_page(403, "This form is out of date. Load the page again.", request)
            if request.path == "/logout":
                self._access.end(session)
                cookie = self._access.ended_cookie(secure=self._peers.is_https(scope))
                return _with_header(redirect(link("/login")), b"set-cookie", cookie)
        pages = ACTIONS if request.method == "POST" else PAGES
        make = pages.get(request.path)
        if make is None:
            return error_page(404, "This page does not exist.", request)
        try:
            return await self._thread.call(make, self._site, request)
        except OncegateError as error:
            return error_page(503, str(error), request)
        except Exception:  # noqa: BLE001  # logged; the person gets a page
            _log.exception("the console could not make the page %s", request.path)
            return error_page(500, _FAILED, request)

    # ── login ─────────────────────────────────────────────────────────────────────────────────────────────

    def _session(self, scope: Scope) -> Session | None:
        return self._access.session(header(scope, b"cookie"))

    def _request(
        self, scope: Scope, session: Session, query: Mapping[str, str], form: Mapping[str, str] = _NO_FIELDS
    ) -> Request:
        path = scope["path"].removeprefix(PREFIX) or "/"
        sender, name = self._peers.sender(scope), self._site.name
        return Request(scope["method"], path, query, form, sender, session.user, session.csrf, name)

    def _login(
        self, scope: Scope, query: Mapping[str, str], form: Mapping[str, str], session: Session | None
    ) -> HttpAnswer:
        to = _within_site((form if scope["method"] == "POST" else query).get("next", ""))
        if scope["method"] != "POST":
            return login_page(to) if session is None else redirect(to)
        if not self._access.is_valid(form.get("token", ""), self._peers.sender(scope)):
            return login_page(to, "This token is not valid.", 401)
        user = tidy_name(form.get("user", ""))
        if not user:
            return login_page(to, _NO_NAME, 400)
        cookie = self._access.cookie(user, secure=self._peers.is_https(scope))
        return _with_header(redirect(to), b"set-cookie", cookie)

    # ── the live tail ─────────────────────────────────────────────────────────────────────────────────────

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for TAIL: send server-sent events until the browser disconnects or the service stops."""
        session = self._session(scope)
        if session is None:
            await _refuse_stream(send, 401, "Log in again.")
        elif len(scope["query_string"]) > _LONGEST_QUERY:
            await _refuse_stream(send, 414, "The address is too long.")
        elif self._closing.is_set():
            await _refuse_stream(send, 503, "The service is shutting down.")
        elif self._streams >= _MOST_STREAMS:
            await _refuse_stream(send, 503, f"{_MOST_STREAMS} live tails are open, the maximum. Close one of them.")
        else:
            try:
                request = self._request(scope, session, fields(scope["query_string"]))
            except ValueError:
                await _refuse_stream(send, 400, "The address has too many fields.")
                return
            self._streams += 1
            try:
                await self._send_events(scope, request, session.until, receive, send)
            finally:
                self._streams -= 1

    async def _send_events(self, scope: Scope, request: Request, until: float, receive: Receive, send: Send) -> None:
        # nginx would collect the events and pass them on late.
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"), _NOT_STORED]
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *_SECURITY_HEADERS]})
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            async with aclosing(self._tails.events(request, header(scope, b"last-event-id"), until)) as events:
                # The tail ends with the next event or heartbeat after the person has logged out.
                while (event := await self._next(events, gone)) is not None and self._session(scope) is not None:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _next(self, events: AsyncIterator[bytes], gone: "asyncio.Future[None]") -> bytes | None:
        """Returns the next event of the stream; None if the browser has disconnected or the service stops."""
        event = asyncio.ensure_future(anext(events))
        closing = asyncio.ensure_future(self._closing.wait())
        await asyncio.wait((event, gone, closing), return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if event.done() and not (gone.done() or self._closing.is_set()):
            return None if isinstance(event.exception(), StopAsyncIteration) else event.result()
        event.cancel()
        await asyncio.wait([event])
        return None

    def stop_streams(self) -> None:
        """End the open streams, so that the server can stop. Must be called in the event loop."""
        self._closing.set()

    def close(self) -> None:
        self._thread.close()
        self._tail_thread.close()
        self._site.close()


def is_console(path: str) -> bool:
    """Whether a path belongs to the console."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def _is_same_origin(scope: Scope) -> bool:
    """Whether a POST comes from a page of this site. A client that is no browser sends neither of the two headers. A
    browser sends Sec-Fetch-Site to https and to loopback addresses. Origin is compared with the Host header, which a
    proxy may have changed."""
    site, origin = header(scope, b"sec-fetch-site"), header(scope, b"origin")
    if site is not None:
        return site == "same-origin"
    return origin is None or origin.partition("://")[2] == header(scope, b"host")


def _within_site(to: str) -> str:
    """Returns the address if it is a page of the console; otherwise the address of the first page. A link must not lead
    from the login to another site. The address is made anew of a known path and of the fields of the query."""
    path, _, query = to.partition("?")
    page_path = path.removeprefix(PREFIX) or "/"
    if len(to) > _LONGEST_ADDRESS or not path.startswith(PREFIX) or page_path not in PAGES:
        return link("/")
    try:
        found = link(page_path, fields(query.encode(errors="replace")))
    except ValueError:
        return link("/")
    return found if len(found) <= _LONGEST_ADDRESS else link("/")


def _with_header(answer: HttpAnswer, name: bytes, value: str) -> HttpAnswer:
    return replace(answer, headers=[*answer.headers, (name, value.encode())])


async def _refuse_stream(send: Send, code: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), _NOT_STORED, *_SECURITY_HEADERS]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        """A request of the tail has no body."""
