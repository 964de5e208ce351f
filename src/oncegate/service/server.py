"""The server: uvicorn with httptools and uvloop around the application."""

import gc
import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn

from oncegate.durations import microseconds
from oncegate.service.log import handler_for
from oncegate.service.protocol import Bounds, bounded
from oncegate.service.service import Service
from oncegate.service.tls import tls_of
from oncegate.settings import Settings

_KEEP_ALIVE = 30
_OBJECTS = 10_000


def run(service: Service, settings: Settings, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what is in hand; either ends in KeyboardInterrupt."""
    logging.basicConfig(level=logging.WARNING, handlers=[handler_for(sys.stderr)])
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every request that is not HTTP
    # uvicorn raises a signal anew when it has stopped: SIGTERM must not end the process before the gate is closed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    context = tls_of(settings)
    config = uvicorn.Config(
        service.app,
        http=bounded(Bounds(settings["serve.max_body"], microseconds(settings["serve.request_within"]) / 1e6)),
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
        Server(config, service).run(sockets=[listener])
    finally:
        service.close()


def _spare_the_collector() -> None:
    """What is there by now stays to the end, and what a request leaves is rarely a circle: to look for those after
    every few hundred objects took a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS)


class Server(uvicorn.Server):
    """Tells the application that it is to stop at once, and not only when uvicorn comes to look."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._app = service.app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.drain()
        super().handle_exit(sig, frame)
