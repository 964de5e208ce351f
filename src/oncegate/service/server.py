"""Run the service with uvicorn, httptools and uvloop; limit TLS handshakes; raise the limit of open files."""

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
from typing import Final, Protocol

import uvicorn

from oncegate.durations import microseconds
from oncegate.service.app import App
from oncegate.service.config import tls_of
from oncegate.service.log import RateLimitedWarning, handler_for
from oncegate.service.protocol import BoundedProtocol, Bounds, bounded
from oncegate.settings import Settings

_log = logging.getLogger("oncegate.service")

_KEEP_ALIVE: Final = 30  # seconds
_GC_THRESHOLD: Final = 10_000
# Seconds for which a thread may hold the interpreter while the event loop waits for it. With the default of 5 ms, a
# webhook took 10 ms instead of 6 ms beside pages of the console. No cost was found without pages.
_SWITCH_INTERVAL: Final = 0.0005
_MIN_ARRIVING_BODIES: Final = 4  # bodies of the maximum size that can arrive at the same time


class Served(Protocol):
    """What `run` serves: the service, or the console alone."""

    @property
    def app(self) -> App: ...

    def close(self) -> None: ...


def run(service: Served, settings: Settings, listener: socket.socket, metrics: socket.socket | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests in flight. Both signals raise KeyboardInterrupt. If
    `metrics` is given, /metrics is served on this second listener."""
    logging.basicConfig(level=logging.WARNING, handlers=[handler_for(sys.stderr)])
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # uvicorn warns about every invalid HTTP request
    # uvicorn raises the signal again after it has stopped. SIGTERM must not end the process before the gates close.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    context = tls_of(settings)
    within = microseconds(settings["serve.request_within"]) / 1e6
    connections = max_connections(settings["serve.max_connections"], raise_file_limit())
    body, arriving = settings["serve.max_body"], settings["serve.max_bytes_arriving"]
    bounds = Bounds(body, within, connections, max(arriving, _MIN_ARRIVING_BODIES * body))
    protocol = bounded(bounds, service.app)
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
    _tune_garbage_collector()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        Server(config, service, protocol).run(sockets=[listener] if metrics is None else [listener, metrics])
    finally:
        service.close()


def _tune_garbage_collector() -> None:
    """Exclude all objects that exist at the start from garbage collection, and collect less often. Requests rarely
    leave reference cycles, and with the default threshold the collector took 5 % of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


class Server(uvicorn.Server):
    """uvicorn's server, with two changes. The application drains as soon as a signal arrives; uvicorn would check for
    the signal later. The number of TLS handshakes is limited; uvicorn has no setting for this limit."""

    def __init__(self, config: uvicorn.Config, service: Served, protocol: type[BoundedProtocol]) -> None:
        super().__init__(config)
        self._app = service.app
        self._protocol = protocol

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, but create the listeners here. With TLS, the listeners of uvicorn would count a
        connection only after its handshake, and would allow a minute for the handshake."""
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()
        tls = self.config.ssl
        factories = (self._create_protocol, self._create_metrics_protocol)
        for listener, create_protocol in zip(sockets or [], factories, strict=False):
            self.servers.append(
                await loop.create_server(create_protocol, sock=listener, backlog=self.config.backlog)
                if tls is None
                else TlsListener(listener, tls, create_protocol)  # type: ignore[arg-type]  # has the methods uvicorn uses
            )

    def _create_protocol(self) -> BoundedProtocol:
        return self._protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _create_metrics_protocol(self) -> BoundedProtocol:
        protocol = self._create_protocol()
        protocol.serve_only(self._app.metrics_only)
        return protocol

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.drain()
        super().handle_exit(sig, frame)


# ── TLS handshakes ────────────────────────────────────────────────────────────────────────────────────────


_MAX_HANDSHAKES: Final = 512
_ACCEPTS_PER_EVENT: Final = 16
_GRACE: Final = 0.5  # seconds
_SHUTDOWN_TIMEOUT: Final = 1.0  # seconds


class TlsListener:
    """Accepts connections and performs the TLS handshake. The server of asyncio can neither count nor close a
    connection whose handshake is unfinished.

    An unfinished handshake takes tens of kilobytes of memory. The number of unfinished handshakes is therefore limited
    to 512 or half of `max_connections`, whichever is less. At this limit, a new connection is accepted only after the
    oldest handshake is closed. The oldest handshake is closed when it is `_GRACE` seconds old. Until then, new
    connections wait in the queue of the listener."""

    def __init__(
        self, listener: socket.socket, tls: ssl.SSLContext, create_protocol: Callable[[], BoundedProtocol]
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._create_protocol = create_protocol
        protocol = create_protocol()
        self._bounds = protocol.bounds
        self._idle = protocol.idle
        self._connections = protocol.connections
        self._handshakes = protocol.handshakes
        self._max_handshakes = min(max(1, self._bounds.connections // 2), _MAX_HANDSHAKES)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._warn_failed = RateLimitedWarning(_log)
        self._warn_closed = RateLimitedWarning(_log, most=1)
        self._warn_accept = RateLimitedWarning(_log)
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Close the listener, as `asyncio.Server.close` does, and end all unfinished handshakes."""
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
        for _ in range(_ACCEPTS_PER_EVENT):
            if len(self._handshakes) >= self._max_handshakes and (wait := self._close_oldest_if_due()) > 0:
                self._pause(wait)
                return
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of file descriptors or memory: the next accept would fail at once
                self._warn_accept("connections cannot be accepted: %s", error.strerror)
                self._pause(_GRACE)
                return
            self._start_handshake(connection, str(address[0]))

    def _close_oldest_if_due(self) -> float:
        """Close the oldest handshake if its grace period is over. Returns the seconds until the grace period is over; 0
        or less if the handshake was closed."""
        wait = next(iter(self._handshakes.values())) + _GRACE - self._loop.time()
        if wait <= 0:
            self._warn_closed("more than %d TLS handshakes are unfinished: closing the oldest", self._max_handshakes)
            self._close_oldest()
        return wait

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._loop.call_later(seconds, self._listen)

    def _start_handshake(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        self._handshakes[connection] = self._loop.time()
        if len(self._connections) + len(self._handshakes) > self._bounds.connections and self._idle:
            self._idle.warn(self._bounds.connections, self._loop.time())
            self._idle.abort_oldest()
        task = self._loop.create_task(self._handshake(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_oldest(self) -> None:
        """Shut down the socket of the oldest handshake. The socket is not closed here, because its transport owns it.
        After the shutdown, the transport ends the handshake and closes the socket."""
        connection = next(iter(self._handshakes))
        del self._handshakes[connection]
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            """The client has closed the connection."""

    async def _handshake(self, connection: socket.socket, address: str) -> None:
        def create_protocol() -> BoundedProtocol:
            protocol = self._create_protocol()
            protocol.accepted = connection
            return protocol

        within = self._bounds.within
        try:
            await self._loop.connect_accepted_socket(
                create_protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=within,
                ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT,  # many clients never send the close_notify to wait for
            )
        except ssl.SSLError as error:
            self._warn_failed("a TLS handshake with %s failed: %s", address, error.reason)
        except ConnectionAbortedError:
            self._warn_failed("a TLS handshake with %s did not end within %g s", address, within)
        except OSError:
            """The client has disconnected, or `_close_oldest` has closed the connection."""
        finally:
            self._handshakes.pop(connection, None)


# ── the limit of open files ───────────────────────────────────────────────────────────────────────────────


_MAX_FILES: Final = 65_536


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit, but at most to 65,536. Returns the new limit, or 65,536 if
    the soft limit was unlimited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return _MAX_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):  # some systems have a lower limit that getrlimit does not report
        return soft
    return target


def max_connections(setting: int, files: int) -> int:
    """The limit of connections: `serve.max_connections`, but at most half of the limit of open files. The other half is
    for the store, the handlers and forwarding."""
    if setting <= files // 2:
        return setting
    _log.warning(
        "serve.max_connections is %d, but only %d files may be open: the limit is %d connections; raise the limit of"
        " open files (ulimit -n)",
        setting,
        files,
        files // 2,
    )
    return files // 2
