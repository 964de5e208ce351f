"""The servers on which faults are tested, each with the place that workers share on it.

To add a store, add a function that starts its server, a row in `GROUNDS`, and for transactions a way to write rows in
`tests.kills.places`.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from tests.kills.places import SQLITE, Place
from tests.stores import postgres_server
from tests.stores.redis_server import RedisCluster, RedisServer
from tests.stores.servers import until

_NAME: Final = "{world}"


def _nothing(*_: Any) -> Any:
    raise NotImplementedError("a file has no network and no server")


class Ground(Struct, frozen=True):
    """A store on its own server. `at(port)` is the same place through a proxy, with a client that has a short timeout.
    `crash` and `start` are for restarts."""

    place: Place
    folder: Path | None = None
    port: int = 0
    at: Callable[[int], Place] = _nothing
    crash: Callable[[], None] = _nothing
    start: Callable[[], None] = _nothing


@contextmanager
def sqlite() -> Iterator[Ground]:
    yield Ground(SQLITE)


@contextmanager
def redis(*options: str) -> Iterator[Ground]:
    with tempfile.TemporaryDirectory(prefix="oncegate-redis-") as folder:
        server = RedisServer(Path(folder), *options)

        def start() -> None:
            server.start()
            server.wait()

        try:
            at = partial(_redis_at, wait="150ms")
            yield Ground(_redis_at(server.port), server.folder, server.port, at, server.kill, start)
        finally:
            server.stop()


def _redis_at(port: int, wait: str = "5s") -> Place:
    return Place("Redis", f"redis://127.0.0.1:{port}?prefix={_NAME}&timeout={wait}")


@contextmanager
def redis_cluster() -> Iterator[Ground]:
    with tempfile.TemporaryDirectory(prefix="oncegate-cluster-") as folder:
        # A long failover timeout: a promotion on a busy machine would lose data that was not replicated yet, and no
        # test here is about that.
        cluster = RedisCluster(Path(folder), node_timeout=15_000)
        try:
            yield Ground(Place("Redis Cluster", f"{cluster.url}?prefix={_NAME}"))
        finally:
            cluster.stop()


@contextmanager
def promoting(wait_replicas: int, lag: float = 0.0) -> Iterator[Ground]:
    """A cluster whose primaries are killed in turn. Each joins again when its replica has taken over. For so many
    seconds before the kill, the replica receives no writes."""
    with tempfile.TemporaryDirectory(prefix="oncegate-cluster-") as folder:
        cluster = RedisCluster(Path(folder))
        killed: list[RedisServer] = []

        def crash() -> None:
            pair = cluster.nodes[len(killed) % 3 :: 3]
            primary = next(node for node in pair if node in cluster.primaries())
            (replica,) = (node for node in pair if node is not primary)
            killed.append(primary)
            with behind(replica, primary, lag):
                primary.kill()

        def start() -> None:
            until(lambda: len(cluster.primaries()) == 3 and cluster.whole(), "a replica to take over")
            killed[-1].start()
            killed[-1].wait()
            until(cluster.whole, "the cluster to be whole again")

        try:
            url = f"{cluster.url}?prefix={_NAME}&timeout=1s&wait_replicas={wait_replicas}"
            yield Ground(Place("Redis Cluster", url), crash=crash, start=start)
        finally:
            cluster.stop()


@contextmanager
def behind(replica: RedisServer, primary: RedisServer, lag: float) -> Iterator[None]:
    """Stop a replica for so many seconds, if any, and continue it. Its connection is cut while it is stopped; otherwise
    the data would wait in the connection."""
    if lag:
        os.kill(replica.pid, signal.SIGSTOP)
        primary.client.client_kill_filter(_type="replica")
        time.sleep(lag)
    try:
        yield
    finally:
        os.kill(replica.pid, signal.SIGCONT)


@contextmanager
def postgres() -> Iterator[Ground]:
    with postgres_server.running() as server:
        crash = partial(server.stop, signal.SIGQUIT)
        at = partial(_postgres_at, wait="150ms")
        yield Ground(_postgres_at(server.port), server.data, server.port, at, crash, server.start)


def _postgres_at(port: int, wait: str = "5s") -> Place:
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    return Place("Postgres", f"{url}?oncegate_schema={_NAME}&oncegate_timeout={wait}")


GROUNDS: Final[dict[str, Callable[[], AbstractContextManager[Ground]]]] = {
    "sqlite": sqlite,
    "redis": redis,
    "redis-cluster": redis_cluster,
    "postgres": postgres,
}
