"""The service's ASGI application. It uses no framework: a framework would halve the requests per second."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from oncegate.console.app import TAIL, Console, is_console
from oncegate.ingress.http_answers import CLOSE, HttpAnswer, problem
from oncegate.service.admission import InFlightBudget, InFlightLimitReached
from oncegate.service.config import TrustedProxies
from oncegate.service.monitoring import CONTENT_TYPE, Metrics, Readiness
from oncegate.service.openapi import DOCUMENT
from oncegate.service.route import Route
from oncegate.signatures import Refused, Verifier

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger("oncegate.service")

_JSON = [(b"content-type", b"application/json")]


class ClientDisconnected(Exception):
    """The client disconnected before the body was complete. No event is read, and no response is sent."""


class App:
    """Dispatches requests by path. Passes events to their route. Serves health, readiness, metrics and the OpenAPI
    document itself."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        metrics: Metrics,
        *,
        budget: InFlightBudget | None = None,
        proxies: TrustedProxies | None = None,
        readiness: Readiness | None = None,
        update_metrics: Callable[[], Awaitable[object]] | None = None,
        on_start: Callable[[], Awaitable[None]] | None = None,
        metrics_verifier: Verifier | None = None,
        metrics_apart: bool = False,
        blocked: Callable[[], str | None] | None = None,
    ) -> None:
        """`update_metrics` is called before each scrape, and `on_start` before the first request. With `metrics_apart`,
        /metrics is served only at a separate address. `blocked` returns the reason why events can no longer run, or
        None if they can run."""
        self._routes = routes
        # A 404 response does not list the names of the routes: only the senders of a route should know its name.
        self._served = " or ".join(
            dict.fromkeys("/events" if path == "/events" else "/events/ROUTE" for path in routes)
        )
        self._metrics = metrics
        self._budget = budget or InFlightBudget()
        self._proxies = proxies or TrustedProxies()
        self._readiness = readiness
        self._update_metrics = update_metrics
        self._on_start = on_start
        self._metrics_verifier = metrics_verifier
        self._metrics_apart = metrics_apart
        self._blocked = blocked
        self.console: Console | None = None  # set before the first request
        self._stop: Callable[[], object] | None = None
        self._is_broken = False
        self.draining = False
        metrics.in_hand.set_function(lambda: self._budget.requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            with suppress(asyncio.CancelledError):  # after a second signal the server does not wait for the end
                await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            if self.console is not None and scope["path"] == TAIL and scope["method"] == "GET":
                await self.console.stream(scope, receive, send)
                return
            try:
                await _send(send, await self.respond(scope, receive))
            except (ClientDisconnected, asyncio.CancelledError):
                """A second Ctrl-C cancels open requests. Handlers that run in threads still finish."""

    def respond(self, scope: Scope, body: bytes | Receive) -> Coroutine[Any, Any, HttpAnswer]:
        """Return the response to a request. `body` is the complete body, or the ASGI function that receives it."""
        route = self._routes.get(scope["path"])
        if route is not None:
            return self._post(route, scope, body)
        if self.console is not None and is_console(scope["path"]):
            return self._show(self.console, scope, body)
        return self._get(scope)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────

    async def _post(self, route: Route, scope: Scope, body: bytes | Receive) -> HttpAnswer:
        start = time.perf_counter()
        answer = self._check_head(scope)
        if answer is None:
            try:
                if not isinstance(body, bytes):
                    body = await _receive_body(body)
                answer = await self._admit(route, scope, body)
            except InFlightLimitReached:
                self._metrics.shed()
                answer = problem(503, "rejected: in-flight limit reached; send the request again", headers=[CLOSE])
        route.latency(time.perf_counter() - start)
        return answer

    def _check_head(self, scope: Scope) -> HttpAnswer | None:
        """The error response if the head alone is enough to reject the request; None if the body must be read."""
        if scope["method"] != "POST":
            return problem(405, "send events with POST", headers=[(b"allow", b"POST")])
        headers = dict(scope["headers"])
        if b"origin" in headers:
            return problem(403, "rejected: requests from web pages (with an Origin header) are not allowed")
        if b"content-encoding" in headers:
            return problem(415, "content encodings are not supported; send the body without Content-Encoding")
        if self.draining:
            return problem(503, "the service is shutting down; send the request again", headers=[CLOSE])
        return None

    async def _admit(self, route: Route, scope: Scope, body: bytes) -> HttpAnswer:
        """Pass the request to its route, and count its body in the budget meanwhile. The route checks the signature
        before its first await, so the body of a request without a valid signature leaves the budget at once."""
        budget = self._budget
        budget.acquire_bytes(len(body))
        try:
            return await route.respond(body, scope["headers"], lambda: self._proxies.sender(scope), budget)
        finally:
            budget.release_bytes(len(body))

    # ── everything else ───────────────────────────────────────────────────────────────────────────────────

    async def _show(self, console: Console, scope: Scope, body: bytes | Receive) -> HttpAnswer:
        return await console.respond(scope, body if isinstance(body, bytes) else await _receive_body(body))

    async def metrics_only(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """The ASGI application that serves /metrics at its separate address."""
        answer = problem(404, "not found; this address serves only /metrics")
        if scope["path"] == "/metrics":
            answer = await self._read(App._metrics_answer, scope)
        await _send(send, answer)

    async def _get(self, scope: Scope) -> HttpAnswer:
        resource = _RESOURCES.get(scope["path"])
        if resource is None or (resource is App._metrics_answer and self._metrics_apart):
            return problem(404, f"not found; send events to {self._served}")
        return await self._read(resource, scope)

    async def _read(self, resource: Callable[["App"], Awaitable[HttpAnswer]], scope: Scope) -> HttpAnswer:
        if scope["method"] not in ("GET", "HEAD"):
            return problem(405, "this resource is read-only; use GET", headers=[(b"allow", b"GET, HEAD")])
        if resource is App._metrics_answer and self._metrics_verifier is not None:
            verdict = self._metrics_verifier.check(scope["headers"], b"", 0)
            if isinstance(verdict, Refused):
                return problem(verdict.code, verdict.reason, headers=[(b"www-authenticate", b"Bearer")])
        return await resource(self)

    async def _health(self) -> HttpAnswer:
        if self._is_broken:
            return problem(503, "the service no longer runs events; restart it")
        return HttpAnswer(200, b'{"status":"ok"}', _JSON)

    async def _ready(self) -> HttpAnswer:
        if self.draining:
            return problem(503, "the service is shutting down")
        if self._readiness is not None and (brief := await self._readiness.problem()) is not None:
            return problem(503, f"the store cannot be used: {brief}; see the log")
        if self._blocked is not None and (reason := self._blocked()) is not None:
            return problem(503, reason)
        return HttpAnswer(200, b'{"status":"ready"}', _JSON)

    async def _metrics_answer(self) -> HttpAnswer:
        if self._update_metrics is not None:
            await self._update_metrics()
        return HttpAnswer(200, self._metrics.exposition(), [(b"content-type", CONTENT_TYPE)])

    async def _openapi(self) -> HttpAnswer:
        return HttpAnswer(200, _OPENAPI, _JSON)

    # ── start and stop ────────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """Accept no more requests, and take no more events from the store. A signal handler may call this method."""
        self.draining = True
        if self._stop is not None:
            self._stop()

    def _end(self, stop: asyncio.Event) -> None:
        stop.set()
        if self.console is not None:
            self.console.stop_streams()

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        if self._on_start is not None:
            await self._on_start()
        stop = asyncio.Event()
        self._stop = partial(asyncio.get_running_loop().call_soon_threadsafe, self._end, stop)
        workers = [asyncio.create_task(self._run_route(route, stop)) for route in self._routes.values()]
        if self._readiness is not None:
            workers.append(asyncio.create_task(self._readiness.watch(stop)))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        stop.set()
        await asyncio.gather(*workers)
        await send({"type": "lifespan.shutdown.complete"})

    async def _run_route(self, route: Route, stop: asyncio.Event) -> None:
        """Run the events of a route until `stop` is set. If an error ends the run earlier, /healthz fails from then on.
        Otherwise events would be stored and never run, and nobody would notice."""
        try:
            await route.admission.run_until(stop)
        except Exception:  # noqa: BLE001  # reported in the log and by /healthz
            self._is_broken = True
            _log.exception("route %s: its events are no longer run; restart the service", route.name)


_OPENAPI = msgspec.json.encode(DOCUMENT)
_RESOURCES: Mapping[str, Callable[[App], Awaitable[HttpAnswer]]] = {
    "/healthz": App._health,
    "/readyz": App._ready,
    "/metrics": App._metrics_answer,
    "/openapi.json": App._openapi,
}


async def _receive_body(receive: Receive) -> bytes:
    """Receive the body of a request that arrives in parts. The signature can be checked only when the body is complete.
    Until then the request counts against the limit of unfinished requests in `protocol.py`."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


async def _send(send: Send, answer: HttpAnswer) -> None:
    headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
    await send({"type": "http.response.start", "status": answer.code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
