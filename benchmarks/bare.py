"""`python -m benchmarks.bare`: the same server as the service's, around an endpoint that only parses its JSON."""

import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvicorn

from oncegate.service.protocol import Bounds, bounded

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


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        parse, http=bounded(Bounds(1024 * 1024, 10.0)), ws="none", lifespan="off", log_config=None, access_log=False,
        proxy_headers=False, server_header=False,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
