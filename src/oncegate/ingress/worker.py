"""Working: what a worker of a queue or of the inbox is to its user, and what it is given of its gate."""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from oncegate.clocks import Clock
from oncegate.events import Event
from oncegate.gate.engine import Engine
from oncegate.gate.job import Identified
from oncegate.gate.observers import Observers


class Figures(Struct, frozen=True):
    """What a worker has done since it was made: messages or events received, what became of the events, and how many
    of them it has in hand."""

    received: int = 0
    processed: int = 0
    duplicates: int = 0
    failed: int = 0
    in_hand: int = 0


class Worker(Protocol):
    """Takes the messages of a queue through a gate, or runs what its store keeps."""

    def run(self) -> None:
        """Work until it is stopped, by `stop()` or, in the main thread, by SIGTERM or Ctrl-C. Raises QueueError if the
        queue cannot be used."""

    def stop(self) -> None:
        """Receive nothing more, end what is in hand and return from `run`. May be called from any thread."""

    @property
    def figures(self) -> Figures: ...

    @property
    def left_running(self) -> int:
        """How many plain handlers had not ended when the time to drain was over; they cannot be stopped."""


class WorkerContext(Struct, frozen=True):
    """What a gate lends to a worker: `read` finds the events of a payload, and `identify` their keys."""

    engine: Engine
    read: Callable[[Any], list[Event]]
    identify: Callable[[Event], Identified]
    observers: Observers
    boot: Clock
