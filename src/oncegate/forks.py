"""Make locks, threads and connections safe across a fork.

A lock, a thread or an SQLite connection belongs to one process. Before a fork, all use of each registered object is
finished or blocked. After the fork, the object can be used again. In the child, the object continues without the
resources of the parent.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def before_fork(self) -> None:
        """Finish or block all use of the object until `after_fork`. If this method raises, it must leave the object as
        it was."""

    def after_fork(self, *, in_child: bool) -> None:
        """Allow use again. In the child, drop the resources of the parent first."""


class Holding:
    """Holds a lock during a fork, so that no other thread holds the lock at that time. In the child, `reset_in_child`
    is called before the lock is released."""

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
        """The objects in the order in which they are locked before a fork. Stores come first: a thread that holds a
        store may wait for another lock, but a thread that holds another lock never waits for a store. All threads use
        the same order, so two threads that fork at the same time do not deadlock."""
        with self._lock:
            return sorted(self._all, key=lambda forkable: (getattr(forkable, "fork_order", 1), id(forkable)))

    def unlock(self) -> None:
        """Replace the lock in the child, because a thread of the parent may have held the old lock."""
        self._lock = threading.RLock()


class _Fork(threading.local):
    """The state of a fork in this thread: the objects to lock, in order, and how many of them are locked."""

    order: list[Forkable] | None = None
    locked = 0


_registry = _Registry()
_fork = _Fork()


def watch(forkable: Forkable) -> None:
    """Register an object. The registry holds a weak reference."""
    _registry.add(forkable)


def _before() -> None:
    if _fork.order is None:
        _fork.order = _registry.in_order()
    while _fork.locked < len(_fork.order):
        _fork.order[_fork.locked].before_fork()
        _fork.locked += 1


def _after(*, in_child: bool) -> None:
    if in_child:
        _registry.unlock()
    while _fork.order is not None and _fork.locked:
        _fork.locked -= 1
        _fork.order[_fork.locked].after_fork(in_child=in_child)
    _fork.order = None


if hasattr(os, "register_at_fork"):
    # If a signal handler raises in one of these functions, the function ends early, but the fork continues. So each
    # function is registered twice: the second call finishes the work of the first call.
    for _ in range(2):
        os.register_at_fork(
            before=_before,
            after_in_parent=partial(_after, in_child=False),
            after_in_child=partial(_after, in_child=True),
        )
