"""The protocol without a network: the test is the client."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from oncegate.ingress.http_answers import HttpAnswer
from oncegate.service.protocol import Bounds, bounded

HEAD = b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"


def post(body: bytes, *headers: bytes) -> bytes:
    return HEAD % len(body) + b"".join(headers) + b"\r\n" + body


class RecordingApp:
    """An application that records how each request reached it: in one piece, or in parts over ASGI."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.requests: list[str] = []
        self._gate = gate

    async def respond(self, scope: Any, body: bytes) -> HttpAnswer:
        self.requests.append(f"whole {scope['path']} {body.decode()}")
        if self._gate is not None:
            await self._gate.wait()
        if body == b"break":
            raise RuntimeError("broken")
        return HttpAnswer(200, b"{}", [(b"content-type", b"application/json")])

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        await receive()
        self.requests.append(f"parts {scope['path']}")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})


class Transport(asyncio.Transport):
    """Records each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """There is nothing to read from."""

    def resume_reading(self) -> None:
        """There is nothing to read from."""


class Server:
    """A server with a connection limit."""

    def __init__(self, app: RecordingApp, most: int = 100) -> None:
        self._protocol = bounded(Bounds(1024, 10.0, most), app)
        self._config = uvicorn.Config(app, http=self._protocol, log_config=None)
        self._config.load()
        self._state = ServerState()

    def connected(self) -> tuple[Any, Transport]:
        found = self._protocol(config=self._config, server_state=self._state, app_state={}), Transport()
        found[0].connection_made(found[1])
        return found


def connected(app: RecordingApp) -> tuple[Any, Transport]:
    return Server(app).connected()


def connections(app: RecordingApp, count: int) -> list[tuple[Any, Transport]]:
    server = Server(app)
    return [server.connected() for _ in range(count)]


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*fixtures: Any, **named: Any) -> None:
        asyncio.run(test(*fixtures, **named))  # type: ignore[arg-type]  # a coroutine

    return run


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
