"""The limit on open files, of which every connection is one."""

import asyncio
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from oncegate.durations import microseconds
from oncegate.errors import SettingError
from oncegate.service.log import RepeatedWarning, handler_for
from oncegate.service.protocol import BoundedProtocol, Bounds, bounded
from oncegate.service.service import Service
from oncegate.settings import Settings

_log = logging.getLogger("oncegate.service")

_MOST_FILES: Final = 65_536


def raised() -> int:
    """How many files may be open, now that it is as many as the system lets this process have, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # some systems have a lower limit besides, and do not tell
        return soft
    return most


def most_connections(asked: int, files: int) -> int:
    """Half of the files are for the store, for handlers and for what is forwarded."""
    if asked <= files // 2:
        return asked
    _log.warning(
        "serve.max_connections is %d, but only %d files may be open, so %d connections are; raise the limit, as with"
        " ulimit -n",
        asked,
        files,
        files // 2,
    )
    return files // 2


# TLS towards those who send.


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with the certificate that was named; None if none was."""
    certificate, key = settings["serve.tls_cert"], settings["serve.tls_key"]
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        named, other = ("tls_key", "tls_cert") if certificate is None else ("tls_cert", "tls_key")
        raise SettingError(f"{settings.where(f'serve.{named}')}: TLS needs serve.{other} too")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        where = settings.where("serve.tls_cert")
        raise SettingError(f"{where}: {certificate} and {key} cannot be used: {_why(error)}") from error
    return context


def _no_passphrase() -> bytes:
    """Asked for where a person would be: a service has nobody to ask."""
    raise ValueError("the key has a passphrase; keep it without one, readable by the service alone")


def _why(error: Exception) -> str:
    """The reason without the numbers of OpenSSL."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is that of another certificate"
        return "they must be PEM files, tls_cert that of the certificate chain and tls_key that of its private key"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# TLS handshakes: connections that count from when they are accepted, not only from the end of their handshake.


_MOST_HANDSHAKES: Final = 512
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
        self._most = min(max(1, self._bounds.connections // 2), _MOST_HANDSHAKES)
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


# The server: uvicorn with httptools and uvloop around the application.


_KEEP_ALIVE = 30
_OBJECTS = 10_000
_BODIES = 4  # of the largest size must be able to arrive at a time


def run(service: Service, settings: Settings, listener: socket.socket, metrics: socket.socket | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what is in hand; either ends in KeyboardInterrupt. If there is a
    listener for `metrics`, they are served there."""
    logging.basicConfig(level=logging.WARNING, handlers=[handler_for(sys.stderr)])
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every request that is not HTTP
    # uvicorn raises a signal anew when it has stopped: SIGTERM must not end the process before the gate is closed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    context = tls_of(settings)
    within = microseconds(settings["serve.request_within"]) / 1e6
    connections = most_connections(settings["serve.max_connections"], raised())
    body, arriving = settings["serve.max_body"], settings["serve.max_bytes_arriving"]
    protocol = bounded(Bounds(body, within, connections, max(arriving, _BODIES * body)), service.app)
    config = uvicorn.Config(
        service.app,
        http=protocol,
        ws="none",
        loop="auto",
        lifespan="on",
        workers=1,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, microseconds(settings["serve.drain_within"]) // 1_000_000),
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )
    _spare_the_collector()
    try:
        Server(config, service, protocol).run(sockets=[listener] if metrics is None else [listener, metrics])
    finally:
        service.close()


def _spare_the_collector() -> None:
    """What is there by now stays to the end, and what a request leaves is rarely a circle: to look for those after
    every few hundred objects took a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS)


class Server(uvicorn.Server):
    """Tells the application that it is to stop at once, and not only when uvicorn comes to look; and bounds TLS
    handshakes, for which uvicorn has no setting."""

    def __init__(self, config: uvicorn.Config, service: Service, protocol: type[BoundedProtocol]) -> None:
        super().__init__(config)
        self._app = service.app
        self._protocol = protocol

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """All that uvicorn does but for listening: with TLS it would count connections from the end of their handshake
        only, and give that a minute."""
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()
        tls = self.config.ssl
        for listener, made in zip(sockets or [], (self._connection, self._metrics_connection), strict=False):
            self.servers.append(
                await loop.create_server(made, sock=listener, backlog=self.config.backlog)
                if tls is None
                else TlsListener(listener, tls, made)  # type: ignore[arg-type]  # all that is asked of a server
            )

    def _connection(self) -> BoundedProtocol:
        return self._protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _metrics_connection(self) -> BoundedProtocol:
        protocol = self._connection()
        protocol.serve_only(self._app.metrics_alone)
        return protocol

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.drain()
        super().handle_exit(sig, frame)
