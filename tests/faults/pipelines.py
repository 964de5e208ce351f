"""Webhooks through a message bus into Postgres, with kills: the example of examples/bus, on every bus."""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "bus"
sys.path.append(str(EXAMPLE))

import parts  # noqa: E402  # the modules of the example
import pipeline  # noqa: E402

BUSES: Final[dict[str, Callable[[Path], Any]]] = {"NATS": parts.Nats, "Kafka": parts.MockKafka}


def through(bus: str, **changed: Any) -> pipeline.Verdict:
    """Send simulated events through a bus, and kill each part."""
    given = Namespace(**{"rate": 400, "parallel": 4, "mode": "lease", "patience": 60.0, **changed})
    with tempfile.TemporaryDirectory(prefix="oncegate-bus-") as name:
        Path(name).chmod(0o755)  # root runs Postgres as `nobody`
        return pipeline.run(Path(name), BUSES[bus], given)
