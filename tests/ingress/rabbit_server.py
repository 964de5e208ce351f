"""A RabbitMQ server that all test processes of a run share, and a queue for each test.

The server needs 6 seconds to start. So the first test process starts this module as a program. It runs the server
until no test process holds the lock on the file `users`. A test process that is killed loses its lock, too.
"""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, HeadersType
from msgspec import Struct

from tests.debian import unpacked
from tests.stores.servers import ServerProcess, free_port, missing, until

_R = TypeVar("_R")
_PACKAGE = "rabbitmq-server"
_START_WITHIN = 60.0
_STOP_WITHIN = 4.0
LARGEST = 200_000  # bytes of a message

# Messages larger than `LARGEST` are rejected. The files of the packages stay as they are: `erl` of the package only
# works in /usr/lib, so a script in the folder of the server replaces it.
_CONFIG = f"""
max_message_size = {LARGEST}
log.file = false
log.console = true
log.console.level = warning
disk_free_limit.absolute = 1MB
"""
_ARGUMENTS = (
    "-kernel inet_dist_use_interface {127,0,0,1}"
    " +S 1:1 +SDcpu 1:1 +SDio 1 +sbwt none +sbwtdcpu none +sbwtdio none"  # few threads, which do not wait in loops
)

_COUNT = """
{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{name}">>)),
case amqqueue:get_type(Q) of
    rabbit_quorum_queue ->
        case ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1) of
            {{ok, {{_, N}}, _}} -> N;
            _ -> -1  % the queue recovers after a restart
        end;
    _ -> [{{messages, M}}] = rabbit_amqqueue:info(Q, [messages]), M
end
"""


class Installation(Struct, frozen=True):
    """The folders of RabbitMQ and Erlang."""

    erlang: Path
    programs: Path
    script: Path
    libraries: str


def installation() -> Installation:
    """RabbitMQ of the system, or of Debian's package, which is downloaded without root."""
    root = Path("/") if Path("/usr/lib/rabbitmq").is_dir() else unpacked(_PACKAGE)
    if root is None:
        missing("RabbitMQ", f"apt-get install {_PACKAGE}")
    erlang = root / "usr/lib/erlang"
    script = next((root / "usr/lib/rabbitmq/lib").glob("*/sbin/rabbitmq-server"))
    libraries = {str(path.parent) for path in root.glob("usr/lib/*/*.so*")} if root != Path("/") else set()
    return Installation(erlang, next(erlang.glob("erts-*/bin")), script, ":".join(sorted(libraries)))


class RabbitServer:
    """A node with an epmd of its own. All ports are on 127.0.0.1, chosen by the system."""

    def __init__(self, folder: Path) -> None:
        self._files = installation()
        self.port = free_port()
        self.node = f"oncegate-{self.port}@localhost"
        self._environment = self._variables(folder, epmd=free_port())
        self._prepare(folder)
        epmd = [str(self._files.programs / "epmd"), "-port", self._environment["ERL_EPMD_PORT"]]
        self._epmd = ServerProcess([*epmd, "-address", "127.0.0.1"], folder / "epmd", self._environment)
        self._server = ServerProcess([str(self._files.script)], folder, self._environment)
        self.wait()

    def _variables(self, folder: Path, epmd: int) -> dict[str, str]:
        files = self._files
        return {
            "ROOTDIR": str(files.erlang),
            "BINDIR": str(files.programs),
            "EMU": "beam",
            "PROGNAME": "erl",
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "HOME": str(folder),
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": files.libraries,
            "RUNNING_UNDER_SYSTEMD": "true",  # the script is replaced by the server, so it has its process id
            "RABBITMQ_SCRIPTS_DIR": f"{folder}/home/sbin",
            "RABBITMQ_MAX_NUMBER_OF_PROCESSES": "50000",
            "RABBITMQ_MAX_NUMBER_OF_ATOMS": "500000",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ARGUMENTS,
        }

    def _prepare(self, folder: Path) -> None:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "erl").write_text(f'#!/bin/sh\nexec "{self._files.programs}/erlexec" "$@"\n')
        (folder / "bin" / "erl").chmod(0o755)
        (folder / "rabbitmq.conf").write_text(_CONFIG)
        (folder / "plugins").write_text("[].\n")
        self._link_applications(folder / "home")

    def _link_applications(self, home: Path) -> None:
        """Link the server without its plugins. Erlang looks for each module in the folders of all applications, so
        plugins that are not enabled double the CPU time of a start."""
        (home / "plugins").mkdir(parents=True)
        (home / "sbin").symlink_to(self._files.script.parent)
        for application in self._files.script.parents[1].glob("plugins/*"):
            if application.name.startswith("rabbitmq_prelaunch-") or not application.name.startswith("rabbitmq_"):
                (home / "plugins" / application.name).symlink_to(application)

    def wait(self) -> None:
        until(self._is_ready, "RabbitMQ", _START_WITHIN)

    def _is_ready(self) -> bool:
        output = (self._server.folder / "output.log").read_text(errors="replace")
        assert self._server.running, output[-2_000:]
        return "completed with" in output

    @property
    def described(self) -> dict[str, Any]:
        return {"port": self.port, "node": self.node, "environment": self._environment}

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        (self._server.folder / "output.log").unlink()
        self._server.start()
        self.wait()

    def stop(self) -> None:
        self._server.stop()
        self._epmd.stop()


# ── one server for all test processes ─────────────────────────────────────────────────────────────────────


# A process that is forgotten while it runs is a warning, and so an error of whatever test runs next.
_still_used: list[subprocess.Popen[bytes]] = []


@contextmanager
def shared(folder: Path) -> Iterator["Rabbit"]:
    """The server of this run of the tests. `folder` is the same for all test processes."""
    installation()
    folder.mkdir(exist_ok=True)
    state, supervisor = folder / "server.json", None
    with (folder / "users").open("w") as users, (folder / "start").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not state.exists():
            supervisor = _supervise(folder, state)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield Rabbit(**json.loads(state.read_text()))
    if supervisor is not None:
        try:
            supervisor.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:  # other test processes still use the server
            _still_used.append(supervisor)


def _supervise(folder: Path, state: Path) -> subprocess.Popen[bytes]:
    with (folder / "supervisor.log").open("ab") as output:
        command = [sys.executable, "-m", "tests.ingress.rabbit_server", str(folder)]
        supervisor = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def is_ready() -> bool:
        assert supervisor.poll() is None, (folder / "supervisor.log").read_text()
        return state.exists()

    until(is_ready, "RabbitMQ", _START_WITHIN)
    return supervisor


def _serve(folder: Path) -> None:
    """Run a server until no test process uses it."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # also if the terminal of the tests is closed
        signal.signal(number, lambda *_: sys.exit(0))
    server = RabbitServer(folder / f"node-{os.getpid()}")
    state = folder / "server.json"
    try:
        state.with_suffix(".new").write_text(json.dumps(server.described))
        state.with_suffix(".new").rename(state)
        with (folder / "users").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            state.unlink()
            server.stop()
    except BaseException:
        server.stop()
        raise


# ── queues ────────────────────────────────────────────────────────────────────────────────────────────────


class Rabbit:
    """The address of a server, and queues on it."""

    def __init__(self, port: int, node: str, environment: dict[str, str]) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._node = node
        self._environment = environment

    def queue(self, kind: Literal["quorum", "classic"] = "quorum", **arguments: Any) -> "RabbitQueue":
        """A new durable queue. The names of arguments are those of RabbitMQ, with _ for -."""
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        queue = RabbitQueue(self, f"events-{uuid4().hex[:12]}")
        self.call(
            lambda channel: channel.declare_queue(queue.name, durable=True, arguments=given | {"x-queue-type": kind})
        )
        return queue

    def call(self, request: Callable[[AbstractChannel], Awaitable[_R]]) -> _R:
        """Send a request on a connection of its own."""

        async def connected() -> _R:
            connection = await aio_pika.connect(f"amqp://{self.address}")
            async with connection, connection.channel() as channel:
                return await request(channel)

        return asyncio.run(connected())

    def evaluate(self, expression: str) -> str:
        """Evaluate an expression of Erlang in the server. AMQP does not show how many messages are unacknowledged."""
        programs = Path(self._environment["BINDIR"])
        (cookie,) = Path(self._environment["HOME"]).glob(".erlang.cookie")
        call = next(programs.parents[1].glob("lib/erl_interface-*/bin/erl_call"), programs.parents[1] / "bin/erl_call")
        done = subprocess.run(
            # The server refuses a second connection of the same name.
            [str(call), "-h", f"test{uuid4().hex}", "-sname", self._node, "-c", cookie.read_text(), "-e"],
            input=f"{expression}.\n".encode(),
            capture_output=True,
            env=os.environ | self._environment,
            timeout=20,
        )
        assert done.returncode == 0, done.stderr
        kind, _, value = done.stdout.decode().strip("{}").partition(", ")
        assert kind == "ok", value
        return value


class RabbitQueue:
    """A queue, and its address for workers and publishers."""

    def __init__(self, rabbit: Rabbit, name: str) -> None:
        self.rabbit = rabbit
        self.name = name
        self.source = self.target = f"amqp://{rabbit.address}/{name}"

    def send(self, *bodies: Any, headers: HeadersType | None = None, **properties: Any) -> None:
        async def publish(channel: AbstractChannel) -> None:
            for body in bodies:
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                message = aio_pika.Message(raw, headers=headers, delivery_mode=2, **properties)
                await channel.default_exchange.publish(message, self.name)

        self.rabbit.call(publish)

    def received(self) -> list[AbstractIncomingMessage]:
        """The messages that are ready. They are removed."""

        async def get(channel: AbstractChannel) -> list[AbstractIncomingMessage]:
            queue, found = await channel.get_queue(self.name), []
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                found.append(message)
            return found

        return self.rabbit.call(get)

    def left(self) -> int:
        """The number of messages that are ready or not acknowledged."""
        return int(self.rabbit.evaluate(_COUNT.format(name=self.name)))

    def until_empty(self, patience: float = 60) -> None:
        until(lambda: self.left() == 0, f"{self.name} to be worked off", patience)

    def delete(self) -> None:
        self.rabbit.call(lambda channel: channel.queue_delete(self.name))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
