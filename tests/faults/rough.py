"""A proxy that cuts, resets and delays connections, as a seed decides."""

import random
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Final

from tests.stores.proxy import Proxy

# Before: the request never reaches the server. After: the server has processed the request, and the answer is lost.
BEFORE: Final = ("cut before", "reset before")
AFTER: Final = ("cut after", "reset after")
KINDS: Final = (*BEFORE, *AFTER, "delay")
_CHUNK: Final = 65_536
_ODDS: Final = 0.12
_CALM: Final = 2  # requests that pass after a disturbed one, so that an immediate retry gets an answer
_LONGER_THAN_PATIENCE: Final = 0.25
_RESET: Final = struct.pack("ii", 1, 0)


class Weather:
    """Decides what happens to a request, as long as `left` is not used up; initially it is 0."""

    def __init__(self, seed: int, kinds: tuple[str, ...] = KINDS) -> None:
        self._chance = random.Random(seed)  # noqa: S311  # must be repeatable
        self._lock = threading.Lock()
        self._kinds = kinds
        self._calm = 0
        self.left = 0
        self.struck: Counter[str] = Counter()

    def strike(self) -> str | None:
        with self._lock:
            self._calm -= 1
            if not self.left or self._calm >= 0 or self._chance.random() > _ODDS:
                return None
            kind = self._chance.choice(self._kinds)
            self.left -= 1
            self._calm = _CALM
            self.struck[kind] += 1
            return kind


class _Line:
    """One connection through the proxy, and the fault for its current request."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.fault: str | None = None

    def end(self) -> None:
        """Close both sides, also while a thread reads. A shutdown wakes that thread; a shutdown for reading sends
        nothing."""
        reset = self.fault is not None and self.fault.startswith("reset")
        with suppress(OSError):
            if reset:
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.client.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
        with suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.client.close()


class RoughProxy(Proxy):
    """Forwards to a port of this machine, with faults."""

    def __init__(self, port: int, weather: Weather) -> None:
        self._weather = weather
        super().__init__(port)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as server:
            line = _Line(client, server)
            threading.Thread(target=self._answers, args=(line,), daemon=True).start()
            self._requests(line)

    def _requests(self, line: _Line) -> None:
        """One arrival of bytes is one request: clients wait for an answer before the next request."""
        with suppress(OSError):
            while asked := line.client.recv(_CHUNK):
                line.fault = self._weather.strike()
                if line.fault in BEFORE:
                    break
                line.server.sendall(asked)
        line.end()

    def _answers(self, line: _Line) -> None:
        with suppress(OSError):
            while answered := line.server.recv(_CHUNK):
                if line.fault in AFTER:
                    break
                if line.fault == "delay":
                    time.sleep(_LONGER_THAN_PATIENCE)
                line.client.sendall(answered)
        line.end()
