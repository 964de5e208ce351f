"""The named points at which a worker can be struck. A store is observed from outside and has no code for it."""

import signal
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from oncegate.claims import ClaimProof, Complete
from oncegate.stores.base import Store

# In the order of an event. A verb is "called" before its first statement, "sent" when its first bytes were sent to a
# server and no part of the answer was read, and "written" when its commit is done and the answer is not used yet.
LEASED: Final = (
    "claim called",
    "claim written",
    "before the effect",
    "half-way",
    "after the effect",
    "renew called",
    "renew written",
    "settle called",
    "settle written",
    "before the ack",
)
TRANSACTED: Final = (
    "claim called",
    "claim written",
    "transact called",
    "before the effect",
    "half-way",
    "after the effect",
    "before the commit",
    "transact written",
    "before the ack",
)


# Events with state changes have their timeline read and written first.
CHANGED: Final = ("load called", "load written", "swap called", "swap written", "half-way", "before the ack")


class _Asking(threading.local):
    """The current call of this thread to its store, until its first bytes are sent."""

    verb: str | None = None


asking: Final = _Asking()


class Strike(Struct, frozen=True):
    """What happens to a worker when it passes a point for the n-th time."""

    point: str
    passage: int = 1
    signal: int = signal.SIGKILL


# Held by a thread that writes to the sink of its world: a worker stopped by another thread would keep the sink locked.
at_rest: Final = threading.RLock()


class Trap:
    """Called at every point. Strikes its own process at the chosen point, and knows whether it has."""

    def __init__(self, strike: Strike | None) -> None:
        self._strike = strike
        self._passed = 0
        self.sprung = False

    def __call__(self, point: str) -> None:
        strike = self._strike
        if strike is None or strike.point != point:
            return
        self._passed += 1
        if self._passed == strike.passage:
            self.sprung = True
            with at_rest:
                # To this thread: with a signal to the process, another thread could take it, and this one would run on
                # for a while.
                signal.pthread_kill(threading.get_ident(), strike.signal)


def watch(store: Store, trap: Trap) -> None:
    """Make the verbs of a store pass their points."""
    for verb in ("claim", "settle", "renew", "load", "swap"):
        setattr(store, verb, partial(_passing, trap, verb, getattr(store, verb)))
    if hasattr(store, "transact"):
        transact = partial(_transact, trap, store.transact)
        setattr(store, "transact", partial(_passing, trap, "transact", transact))  # noqa: B010  # the class has no such slot


def _passing(trap: Trap, name: str, verb: Callable[..., Any], *arguments: Any) -> Any:
    trap(f"{name} called")
    asking.verb = name
    try:
        answer = verb(*arguments)
    finally:
        asking.verb = None
    trap(f"{name} written")
    return answer


def _transact(trap: Trap, transact: Callable[..., bool], held: ClaimProof, effect: Callable[[Any], Complete]) -> bool:
    def watched(connection: Any) -> Complete:
        complete = effect(connection)
        trap("before the commit")
        return complete

    return transact(held, watched)


def watch_statements(trap: Trap) -> None:
    """Make every SQL statement of this process pass the point "statement" before it runs."""

    connect = sqlite3.connect

    def traced(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **settings)
        connection.set_trace_callback(lambda _: trap("statement"))
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]  # it has a signature for each count of arguments


def points_of(way: str, *, remote: bool = False) -> Sequence[str]:
    points = {"transaction": TRANSACTED, "change": CHANGED}.get(way, LEASED)
    return [each for point in points for each in _around(point, remote=remote)]


def _around(point: str, *, remote: bool) -> list[str]:
    """A call that wrote something has sent it before its answer was read."""
    verb = point.removesuffix(" written")
    return [f"{verb} sent", point] if remote and verb != point else [point]
