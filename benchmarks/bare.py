"""`python -m benchmarks.bare`: the same server as the service's, around an ASGI application that only parses its JSON;
with `--keeping`, around the service's own endpoint with nobody who runs what it keeps."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import uvicorn

from oncegate import Event, Gate
from oncegate.gate.outcome import Outcome
from oncegate.service.app import App
from oncegate.service.monitoring import Metrics
from oncegate.service.protocol import Bounds, bounded
from oncegate.service.route import Route

_ANSWER = b'{"status":"parsed"}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_ANSWER)).encode())]
_decode = msgspec.json.Decoder().decode


async def parse(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message["body"]
        more = message.get("more_body", False)
    _decode(body)
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _ANSWER})


class _Keeping:
    """Has the store keep events, and leaves it at that."""

    left_running = hung = 0
    threads_left = 1

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def admit(self, events: Sequence[Event]) -> list[Outcome]:
        return [outcome for event in events for outcome in await self._gate.aadmit(event)]

    async def run_until(self, stop: asyncio.Event) -> None:
        await stop.wait()


def _keeping() -> App:
    metrics = Metrics()
    return App({"/events": Route("default", _Keeping(Gate("sqlite:///kept.db")), metrics)}, metrics)


def main() -> None:
    keeping = _keeping() if "--keeping" in sys.argv else None
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    protocol = bounded(Bounds(1024 * 1024, 10.0), keeping)
    config = uvicorn.Config(
        keeping or parse, http=protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        proxy_headers=False, server_header=False,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
