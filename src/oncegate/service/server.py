"""The server: uvicorn with httptools and uvloop around the application."""

import logging
import signal
import socket

import uvicorn

from oncegate.gate import Gate
from oncegate.gate.handlers import Handler
from oncegate.service.app import App

_DRAIN_WITHIN = 25


def run(gate: Gate, handler: Handler, listener: socket.socket, *, threads: int, most_in_hand: int) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what is in hand; either ends in KeyboardInterrupt."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # uvicorn raises a signal anew when it has stopped: SIGTERM must not end the process before the gate is closed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app = App(gate, handler, threads=threads, most_in_hand=most_in_hand)
    config = uvicorn.Config(
        app,
        http="httptools",
        loop="auto",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_WITHIN,
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        app.drain()
