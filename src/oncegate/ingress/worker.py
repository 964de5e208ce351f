"""This module defines the interface of a worker, and the parts of a gate that a worker needs. There are workers for
queues and for the inbox."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from oncegate.clocks import Clock
from oncegate.events import Event
from oncegate.gate.engine import Engine
from oncegate.gate.job import Identified
from oncegate.gate.observers import Observers
from oncegate.gate.outcome import Outcome


class Figures(Struct, frozen=True):
    """The counters of a worker since it was created. `in_hand` is the number of events that wait or run now.

    `received` counts messages of a queue or events of the inbox. The other counters count events.
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
        """Stop receiving, finish the events that run, and make `run` return. May be called from any thread."""

    @property
    def figures(self) -> Figures: ...

    @property
    def left_running(self) -> int:
        """The number of plain handlers that still ran at the end of the drain time. They cannot be stopped."""


class WorkerContext(Struct, frozen=True):
    """The parts of a gate that a worker uses. `read` returns the events of a payload. `identify` computes the key of an
    event. `keep` stores invalid events as dead letters. `inbox` creates an InboxWorker, with the options of
    `Gate.inbox`; it is None if the store has no inbox, or if the mode does not allow one."""

    engine: Engine
    read: Callable[[Any], list[Event]]
    identify: Callable[[Event], Identified]
    observers: Observers
    boot: Clock
    keep: Callable[[Sequence[Outcome]], list[Outcome]]
    inbox: Callable[..., Any] | None = None
