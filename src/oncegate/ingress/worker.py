"""The interface of a worker (of a queue or of the inbox), and the parts of a gate that a worker needs."""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from oncegate.clocks import Clock
from oncegate.events import Event
from oncegate.gate.engine import Engine
from oncegate.gate.job import Identified
from oncegate.gate.observers import Observers


class Figures(Struct, frozen=True):
    """Totals since the worker was created, and the number of events that it holds now (`in_hand`).

    `received` counts messages of a queue or events of the inbox; the other totals count events.
    """

    received: int = 0
    processed: int = 0
    duplicates: int = 0
    failed: int = 0
    in_hand: int = 0


class Worker(Protocol):
    """Receives events from a queue or from the inbox and runs them through a gate."""

    def run(self) -> None:
        """Work until `stop()` is called. In the main thread SIGTERM and Ctrl-C also stop the worker. Raises QueueError
        if the queue cannot be used."""

    def stop(self) -> None:
        """Receive nothing more, finish the events in hand and return from `run`. May be called from any thread."""

    @property
    def figures(self) -> Figures: ...

    @property
    def left_running(self) -> int:
        """The number of plain handlers that still ran at the end of the drain time. They cannot be stopped."""


class WorkerContext(Struct, frozen=True):
    """The parts of a gate that a worker uses. `read` finds the events of a payload; `identify` computes a key."""

    engine: Engine
    read: Callable[[Any], list[Event]]
    identify: Callable[[Event], Identified]
    observers: Observers
    boot: Clock
