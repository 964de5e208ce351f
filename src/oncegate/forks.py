"""Make locks, threads and connections safe across a fork.

A lock, a thread or an SQLite connection belongs to one process. A registered object is brought to rest before a fork
and continues after it. In the child it continues without the resources of the parent.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def before_fork(self) -> None:
        """Finish or block all use until `after_fork`. An error must leave the object as it was."""

    def after_fork(self, *, in_child: bool) -> None:
        """Allow use again. In the child, drop the resources of the parent first."""


class Holding:
    """Holds a lock during a fork, so that no other thread does. The child calls `reset_in_child` before the release."""

    fork_order = 2

    def __init__(self, lock: threading.Lock, reset_in_child: Callable[[], object] | None = None) -> None:
        self._lock = lock
        self._reset_in_child = reset_in_child

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child and self._reset_in_child is not None:
            self._reset_in_child()
        self._lock.release()


def holding(lock: threading.Lock, reset_in_child: Callable[[], object] | None = None) -> Holding:
    """Hold a lock during every fork, for as long as the caller keeps a reference to the result."""
    held = Holding(lock, reset_in_child)
    watch(held)
    return held


class _Registry:
    """The registered objects. The lock is reentrant, because a signal handler may fork in the middle of `add`."""

    def __init__(self) -> None:
        self._all: WeakSet[Forkable] = WeakSet()
        self._lock = threading.RLock()

    def add(self, forkable: Forkable) -> None:
        with self._lock:
            self._all.add(forkable)

    def in_order(self) -> list[Forkable]:
        """The objects in the order in which they are locked. Stores come first: a thread that holds a store may wait
        for another lock, but never the reverse. The order is total, so that two threads that fork at the same time do
        not deadlock."""
        with self._lock:
            return sorted(self._all, key=lambda forkable: (getattr(forkable, "fork_order", 1), id(forkable)))

    def unlock(self) -> None:
        """Replace the lock in the child: a thread of the parent may have held it."""
        self._lock = threading.RLock()


class _Fork(threading.local):
    """The fork in this thread: the objects to bring to rest, in order, and how many of them are at rest."""

    order: list[Forkable] | None = None
    rested = 0


_registry = _Registry()
_fork = _Fork()


def watch(forkable: Forkable) -> None:
    """Register an object. The registry holds a weak reference."""
    _registry.add(forkable)


def _before() -> None:
    if _fork.order is None:
        _fork.order = _registry.in_order()
    while _fork.rested < len(_fork.order):
        _fork.order[_fork.rested].before_fork()
        _fork.rested += 1


def _after(*, in_child: bool) -> None:
    if in_child:
        _registry.unlock()
    while _fork.order is not None and _fork.rested:
        _fork.rested -= 1
        _fork.order[_fork.rested].after_fork(in_child=in_child)
    _fork.order = None


if hasattr(os, "register_at_fork"):
    # A signal handler that raises in one of these ends the function, and the fork continues. So each function is
    # registered twice: the second call finishes the work of the first.
    for _ in range(2):
        os.register_at_fork(
            before=_before,
            after_in_parent=partial(_after, in_child=False),
            after_in_child=partial(_after, in_child=True),
        )
