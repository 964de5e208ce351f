"""The application: a bare ASGI callable, since the framework would cost half of the requests per second."""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from oncegate.errors import StoreError
from oncegate.events import Event
from oncegate.gate import Gate
from oncegate.gate.answers import Answer, answer_of, keep_refused, problem
from oncegate.gate.handlers import Handler

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger("oncegate.service")

_LARGEST_BODY = 1024 * 1024
_BODY_WITHIN = 10.0
_LOOK_FOR_WAITING_EVERY = 1.0


class TooLarge(Exception):
    """The body is larger than will be read."""


class Gone(Exception):
    """The sender left before its body was complete: there is nothing to take and nobody to answer."""


class App:
    """Takes POST /events through the gate, and runs what waits in the store with its payload."""

    def __init__(self, gate: Gate, handler: Handler, *, threads: int = 32, most_in_hand: int = 1_000) -> None:
        self._gate = gate
        self._handler = handler
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="oncegate-worker")
        self._most_in_hand = most_in_hand
        self._in_hand = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            # A second Ctrl-C cancels what is being answered; its handler still ends in its own thread.
            with suppress(Gone, asyncio.CancelledError):
                await _send(send, await self._answer(scope, receive))

    def drain(self) -> None:
        """Wait for the handlers that are running."""
        self._workers.shutdown()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        method, path = scope["method"], scope["path"]
        if path == "/healthz" and method in ("GET", "HEAD"):
            return Answer(200, b'{"status":"ok"}', [(b"content-type", b"application/json")])
        if path != "/events":
            return problem(404, f"there is nothing at {path}; events are posted to /events")
        if method != "POST":
            return problem(405, "events are posted", headers=[(b"allow", b"POST")])
        headers = {name for name, _ in scope["headers"]}
        if b"origin" in headers:
            return problem(403, "pages in a browser may not send events")
        if b"content-encoding" in headers:
            return problem(415, "send the body as it is, without a content encoding")
        if self._in_hand >= self._most_in_hand:
            return problem(503, "too many events are in hand; send it again")
        self._in_hand += 1
        try:
            return await self._taken(receive)
        finally:
            self._in_hand -= 1

    async def _taken(self, receive: Receive) -> Answer:
        try:
            async with asyncio.timeout(_BODY_WITHIN):
                body = await _body(receive)
        except TimeoutError:
            return problem(408, f"the body did not arrive within {_BODY_WITHIN:.0f} s", headers=_CLOSE)
        except TooLarge:
            return problem(413, f"the body is larger than {_LARGEST_BODY} bytes", headers=_CLOSE)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, self._through, body)

    def _through(self, body: bytes) -> Answer:
        """In a worker thread: gate and store are synchronous. Whatever goes wrong here is no acknowledgement."""
        try:
            outcomes = keep_refused(self._gate.run_batch([body], self._handle), self._gate.keep)
        except BaseException as error:  # noqa: BLE001  # a handler may even call sys.exit
            _log.error("a request failed with %s\n%s", type(error).__name__, _trace(error))
            return problem(503, "the event could not be taken; send it again")
        return answer_of(outcomes)

    def _handle(self, event: Event) -> Any:
        """The handler; the gate keeps the text of its error, which may be of the payload, and the log says where it
        came from."""
        try:
            return self._handler(event)
        except Exception as error:
            _log.warning("the handler failed at event %r with %s\n%s", event.id, type(error).__name__, _trace(error))
            raise

    # ── from start to stop ────────────────────────────────────────────────────────────────────────────────

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        stop = asyncio.Event()
        dispatcher = asyncio.create_task(self._dispatch(stop))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        stop.set()
        await dispatcher
        self.drain()
        await send({"type": "lifespan.shutdown.complete"})

    async def _dispatch(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            await loop.run_in_executor(self._workers, self._run_waiting)
            try:
                async with asyncio.timeout(_LOOK_FOR_WAITING_EVERY):
                    await stop.wait()
            except TimeoutError:
                continue

    def _run_waiting(self) -> None:
        try:
            self._gate.run_waiting(self._handle)
        except StoreError as error:
            _log.warning("waiting events could not be taken: %s", error)
        except BaseException:  # noqa: BLE001  # whatever one event does, the others must not wait for ever
            _log.exception("a waiting event could not be run")


def _trace(error: BaseException) -> str:
    """Where an error came from; not what it said, which may be of the payload."""
    return "".join(traceback.format_tb(error.__traceback__))


_CLOSE = [(b"connection", b"close")]


async def _body(receive: Receive) -> bytes:
    """The whole body, refused as soon as it is larger than allowed."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _LARGEST_BODY:
            raise TooLarge
        if not message.get("more_body", False):
            return b"".join(parts)


async def _send(send: Send, answer: Answer) -> None:
    headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
    await send({"type": "http.response.start", "status": answer.code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
