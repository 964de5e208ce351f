"""TLS handshakes: connections that count from when they are accepted, not only from the end of their handshake."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from oncegate.service.log import RepeatedWarning
from oncegate.service.protocol import BoundedProtocol

_log = logging.getLogger("oncegate.service")

_MOST: Final = 512
_AT_A_TIME: Final = 16
_GRACE: Final = 0.5
_FAREWELL: Final = 1.0


class TlsListener:
    """Accepts connections and performs the TLS handshake. asyncio's own server can neither count nor close a connection
    whose handshake is unfinished.

    An unfinished handshake takes tens of kilobytes, so there are at most 512, or half of `max_connections`. For one
    more the oldest is closed, once it has had `_GRACE` seconds; until then new connections wait in the listener's
    queue."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext, made: Callable[[], BoundedProtocol]) -> None:
        self._listener = listener
        self._tls = tls
        self._made = made
        protocol = made()
        self._bounds = protocol.bounds
        self._line = protocol.line
        self._connections = protocol.connections
        self._handshakes = protocol.handshakes
        self._most = min(max(1, self._bounds.connections // 2), _MOST)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed = RepeatedWarning(_log)
        self._closed = RepeatedWarning(_log, most=1)
        self._unaccepted = RepeatedWarning(_log)
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """As a server of asyncio is closed; half handshakes end with it."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        while self._handshakes:
            self._close_oldest()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks)

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_A_TIME):
            if len(self._handshakes) >= self._most and (wait := self._make_room()) > 0:
                self._pause(wait)
                return
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # without files or memory it would fail again at once
                self._unaccepted("connections cannot be accepted: %s", error.strerror)
                self._pause(_GRACE)
                return
            self._begin(connection, str(address[0]))

    def _make_room(self) -> float:
        """Close the oldest handshake; if it may still end, the seconds until then instead."""
        wait = next(iter(self._handshakes.values())) + _GRACE - self._loop.time()
        if wait <= 0:
            self._closed("more than %d TLS handshakes are unfinished: the oldest are closed", self._most)
            self._close_oldest()
        return wait

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._loop.call_later(seconds, self._listen)

    def _begin(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        self._handshakes[connection] = self._loop.time()
        if len(self._connections) + len(self._handshakes) > self._bounds.connections and self._line:
            self._line.tell(self._bounds.connections, self._loop.time())
            self._line.let_one_go()
        task = self._loop.create_task(self._shake_hands(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_oldest(self) -> None:
        """The transport, which has the socket, then ends the handshake and closes it."""
        connection = next(iter(self._handshakes))
        del self._handshakes[connection]
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            """It was closed by its other side."""

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        def made() -> BoundedProtocol:
            protocol = self._made()
            protocol.accepted = connection
            return protocol

        within = self._bounds.within
        try:
            await self._loop.connect_accepted_socket(
                made,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=within,
                ssl_shutdown_timeout=_FAREWELL,  # for the other side to say that it has closed, which many do not
            )
        except ssl.SSLError as error:
            self._failed("a TLS handshake with %s failed: %s", address, error.reason)
        except ConnectionAbortedError:
            self._failed("a TLS handshake with %s did not end within %g s", address, within)
        except OSError:
            """The other side has gone, or it was closed to make room."""
        finally:
            self._handshakes.pop(connection, None)
