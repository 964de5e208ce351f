"""The application: a bare ASGI callable, since the framework would cost half of the requests per second."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from oncegate.ingress.http_answers import CLOSE, HttpAnswer, problem
from oncegate.service.admission import InFlightBudget, InFlightLimitReached
from oncegate.service.monitoring import CONTENT_TYPE, Metrics, Readiness
from oncegate.service.openapi import DOCUMENT
from oncegate.service.route import Route
from oncegate.service.route_config import Proxies
from oncegate.signatures import Refused, Verifier

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger("oncegate.service")

_JSON = [(b"content-type", b"application/json")]


class ClientDisconnected(Exception):
    """The sender left before its body was complete: there is nothing to take and nobody to answer."""


class App:
    """Takes what is posted to the doors, by their paths, and tells how it is going."""

    def __init__(
        self,
        doors: Mapping[str, Route],
        metrics: Metrics,
        *,
        room: InFlightBudget | None = None,
        proxies: Proxies | None = None,
        readiness: Readiness | None = None,
        counting: Callable[[], Awaitable[object]] | None = None,
        starting: Callable[[], Awaitable[None]] | None = None,
        metrics_verifier: Verifier | None = None,
        metrics_apart: bool = False,
        stuck: Callable[[], str | None] | None = None,
    ) -> None:
        self._doors = doors
        # The names of routes are for their senders to know.
        self._served = " or ".join(dict.fromkeys("/events" if path == "/events" else "/events/ROUTE" for path in doors))
        self._metrics = metrics
        self._room = room or InFlightBudget()
        self._proxies = proxies or Proxies()
        self._readiness = readiness
        self._counting = counting
        self._starting = starting
        self._metrics_verifier = metrics_verifier
        self._metrics_apart = metrics_apart
        self._stuck = stuck
        self._stop: Callable[[], object] | None = None
        self._broken = False
        self.draining = False
        metrics.in_hand.set_function(lambda: self._room.requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                await _send(send, await self.answered(scope, receive))
            except (ClientDisconnected, asyncio.CancelledError):
                """A second Ctrl-C cancels what is being answered; its handler still ends in its own thread."""

    def answered(self, scope: Scope, body: bytes | Receive) -> Coroutine[Any, Any, HttpAnswer]:
        """The answer to a request, whose body is here as a whole or is yet to be received."""
        door = self._doors.get(scope["path"])
        return self._elsewhere(scope) if door is None else self._at(door, scope, body)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────

    async def _at(self, door: Route, scope: Scope, body: bytes | Receive) -> HttpAnswer:
        start = time.perf_counter()
        answer = self._refused(scope)
        if answer is None:
            try:
                answer = await (
                    self._taken(door, scope, body) if isinstance(body, bytes) else self._heard(door, scope, body)
                )
            except InFlightLimitReached:
                self._metrics.shed()
                answer = problem(503, "too many events are in hand; send it again", headers=[CLOSE])
        door.latency(time.perf_counter() - start)
        return answer

    def _refused(self, scope: Scope) -> HttpAnswer | None:
        """The answer to what need not be read."""
        if scope["method"] != "POST":
            return problem(405, "events are posted", headers=[(b"allow", b"POST")])
        headers = dict(scope["headers"])
        if b"origin" in headers:
            return problem(403, "pages in a browser may not send events")
        if b"content-encoding" in headers:
            return problem(415, "send the body as it is, without a content encoding")
        if self.draining:
            return problem(503, "the service is about to stop; send it again", headers=[CLOSE])
        return None

    async def _heard(self, door: Route, scope: Scope, receive: Receive) -> HttpAnswer:
        """A request that arrives in parts. Until it is complete it is not authenticated, and counts against the
        protocol's budget for unfinished requests."""
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return await self._taken(door, scope, bytes(body))

    async def _taken(self, door: Route, scope: Scope, body: bytes) -> HttpAnswer:
        """The signature is checked before the first await, so an unsigned body never stays in the budget."""
        room = self._room
        room.hold(len(body))
        try:
            return await door.answer(body, scope["headers"], lambda: self._proxies.sender(scope), room)
        finally:
            room.let_go(len(body))

    # ── all else ──────────────────────────────────────────────────────────────────────────────────────────

    async def metrics_alone(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """The application at the address of the metrics."""
        answer = problem(404, "there is nothing at this place; metrics are at /metrics")
        if scope["path"] == "/metrics":
            answer = await self._read(App._numbers, scope)
        await _send(send, answer)

    async def _elsewhere(self, scope: Scope) -> HttpAnswer:
        asked = _PLACES.get(scope["path"])
        if asked is None or (asked is App._numbers and self._metrics_apart):
            return problem(404, f"there is nothing at this place; events are posted to {self._served}")
        return await self._read(asked, scope)

    async def _read(self, asked: Callable[["App"], Awaitable[HttpAnswer]], scope: Scope) -> HttpAnswer:
        if scope["method"] not in ("GET", "HEAD"):
            return problem(405, "this is only there to be read", headers=[(b"allow", b"GET, HEAD")])
        if asked is App._numbers and self._metrics_verifier is not None:
            verdict = self._metrics_verifier.check(scope["headers"], b"", 0)
            if isinstance(verdict, Refused):
                return problem(verdict.code, verdict.reason, headers=[(b"www-authenticate", b"Bearer")])
        return await asked(self)

    async def _health(self) -> HttpAnswer:
        if self._broken:
            return problem(503, "the service must be started again")
        return HttpAnswer(200, b'{"status":"ok"}', _JSON)

    async def _ready(self) -> HttpAnswer:
        if self.draining:
            return problem(503, "the service is about to stop")
        if self._readiness is not None and (brief := await self._readiness.problem()) is not None:
            return problem(503, f"the store cannot be used: {brief}; see the log")
        if self._stuck is not None and (why := self._stuck()) is not None:
            return problem(503, why)
        return HttpAnswer(200, b'{"status":"ready"}', _JSON)

    async def _numbers(self) -> HttpAnswer:
        if self._counting is not None:
            await self._counting()
        return HttpAnswer(200, self._metrics.shown(), [(b"content-type", CONTENT_TYPE)])

    async def _description(self) -> HttpAnswer:
        return HttpAnswer(200, _DESCRIPTION, _JSON)

    # ── from start to stop ────────────────────────────────────────────────────────────────────────────────

    async def _at_work(self, door: Route, stop: asyncio.Event) -> None:
        """Whatever ends this early must not go unnoticed: events would be kept, and never run."""
        try:
            await door.taking.work(stop)
        except Exception:  # noqa: BLE001  # told in the log, and by healthz
            self._broken = True
            _log.exception("route %s: its events are no longer run; start the service again", door.name)

    def drain(self) -> None:
        """Take nothing more, from senders or from the store; from the handler of a signal."""
        self.draining = True
        if self._stop is not None:
            self._stop()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        if self._starting is not None:
            await self._starting()
        stop = asyncio.Event()
        self._stop = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        workers = [asyncio.create_task(self._at_work(door, stop)) for door in self._doors.values()]
        if self._readiness is not None:
            workers.append(asyncio.create_task(self._readiness.watch(stop)))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        stop.set()
        await asyncio.gather(*workers)
        await send({"type": "lifespan.shutdown.complete"})


_DESCRIPTION = msgspec.json.encode(DOCUMENT)
_PLACES: Mapping[str, Callable[[App], Awaitable[HttpAnswer]]] = {
    "/healthz": App._health,
    "/readyz": App._ready,
    "/metrics": App._numbers,
    "/openapi.json": App._description,
}


async def _send(send: Send, answer: HttpAnswer) -> None:
    headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
    await send({"type": "http.response.start", "status": answer.code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
