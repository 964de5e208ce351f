"""`python -m benchmarks.load URL`: a load generator in its own process, over raw keep-alive connections.

Each connection sends its next request after the answer to the last one. The rest of the time belongs to the server.
"""

import argparse
import asyncio
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import uvloop

from benchmarks.reading import deliveries

_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


class Connection(asyncio.Protocol):
    """One sender: it sends a request, waits for the whole response, and repeats."""

    def __init__(
        self, bodies: Iterator[bytes], report: Callable[[float, bytes], None], done: Callable[[], None]
    ) -> None:
        self._bodies = bodies
        self._report = report
        self._done = done
        self._answer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        body = next(self._bodies, None)
        if body is None:
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        head = b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        end = self._answer.find(_END)
        if end < 0:
            return
        at = self._answer.index(_LENGTH) + len(_LENGTH)
        length = int(self._answer[at : self._answer.index(b"\r", at)])
        if len(self._answer) < end + len(_END) + length:
            return
        self._report(time.perf_counter() - self._sent_at, self._answer[9:12])
        self._answer = b""
        self._ask()

    def connection_lost(self, _error: Exception | None) -> None:
        self._done()


async def load(url: str, bodies: Iterator[bytes], connections: int) -> dict[str, object]:
    """Send all bodies. Returns requests per second, latencies in seconds, and the number of responses by status
    code."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    host, port = place.hostname or "", place.port or 80
    latencies: list[float] = []
    codes: Counter[str] = Counter()
    open_connections = asyncio.Semaphore(0)

    def report(seconds: float, code: bytes) -> None:
        latencies.append(seconds)
        codes[code.decode()] += 1

    start = time.perf_counter()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(bodies, report, open_connections.release), host, port)
    for _ in range(connections):
        await open_connections.acquire()
    seconds = time.perf_counter() - start
    latencies.sort()
    return {
        "rate": len(latencies) / seconds,
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[math.ceil(len(latencies) * 0.99) - 1],
        "codes": codes,
    }


def new(count: int) -> list[bytes]:
    """Events that were never sent before."""
    return deliveries(count)


def storm(count: int) -> list[bytes]:
    """A few events, repeated."""
    return list(itertools.islice(itertools.cycle(deliveries(16)), count))


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.load", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--storm", action="store_true", help="send copies of a few events instead of new ones")
    arguments = parser.parse_args()
    bodies = (storm if arguments.storm else new)(arguments.requests)
    print(json.dumps(uvloop.run(load(arguments.url, iter(bodies), arguments.connections))))


if __name__ == "__main__":
    main()
