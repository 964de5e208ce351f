"""Webhooks through a message bus into Postgres, with kills: the example of examples/bus, on every bus."""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.ingress.rabbit_server import RabbitServer

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "bus"
sys.path.append(str(EXAMPLE))

import parts  # noqa: E402  # the modules of the example
import pipeline  # noqa: E402


class KilledRabbit(RabbitServer):
    """A RabbitMQ server as a part of the pipeline."""

    name = "rabbitmq"

    def crash(self) -> None:
        self.kill()
        self.start()

    def revive(self) -> None:
        """It exits only when it is killed."""


class OwnRabbit(parts.RabbitQueue):
    """A queue on a RabbitMQ server of its own, which is killed, too. A quorum queue with one member, a few seconds old,
    may stay without a leader after a kill of RabbitMQ 3.10, so this is a classic queue."""

    kind = "classic"

    def __init__(self, folder: Path) -> None:
        self._server = KilledRabbit(folder)
        super().__init__(f"amqp://127.0.0.1:{self._server.port}/events")
        self.parts = [self._server]  # type: ignore[list-item]  # it has all that the pipeline uses of a part

    def stop(self) -> None:
        self._server.stop()


BUSES: Final[dict[str, Callable[[Path], Any]]] = {
    "NATS": parts.Nats,
    "Kafka": parts.MockKafka,
    "RabbitMQ": OwnRabbit,
}


def through(bus: str, **changed: Any) -> pipeline.Verdict:
    """Send simulated events through a bus, and kill each part. Many webhooks at a time make larger batches, which need
    half of the CPU time."""
    given = Namespace(**{"rate": 4_000, "parallel": 16, "mode": "lease", "patience": 60.0, **changed})
    with tempfile.TemporaryDirectory(prefix="oncegate-bus-") as name:
        Path(name).chmod(0o755)  # root runs Postgres as `nobody`
        return pipeline.run(Path(name), BUSES[bus], given)
