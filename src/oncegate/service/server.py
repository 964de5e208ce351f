"""The server: uvicorn with httptools and uvloop around the application."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn

from oncegate.durations import microseconds
from oncegate.service.files import most_connections, raised
from oncegate.service.handshakes import TlsListener
from oncegate.service.log import handler_for
from oncegate.service.protocol import BoundedProtocol, Bounds, bounded
from oncegate.service.service import Service
from oncegate.service.tls import tls_of
from oncegate.settings import Settings

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
