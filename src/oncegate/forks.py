"""Forks: what must not be shared by the two processes that come of one.

SQLite's connections and every lock and thread belong to one process. What is watched here is quiesced before a fork
and starts anew after it, in the child with nothing of the parent's in hand.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def before_fork(self) -> None:
        """Come to rest, and let nobody in until `after_fork`; or raise, and be as before."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on; in the child, without what was the parent's."""


class Holding:
    """A lock that nobody has in the middle of a fork; the child does `afresh` before it goes on."""

    fork_order = 2

    def __init__(self, lock: threading.Lock, afresh: Callable[[], object] | None = None) -> None:
        self._lock = lock
        self._afresh = afresh

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child and self._afresh is not None:
            self._afresh()
        self._lock.release()


def holding(lock: threading.Lock, afresh: Callable[[], object] | None = None) -> Holding:
    """Have a lock held over forks, for as long as what is answered is kept."""
    held = Holding(lock, afresh)
    watch(held)
    return held


class _Watched:
    """All that is watched. A signal's handler may fork in the middle of an `add`, hence the kind of lock."""

    def __init__(self) -> None:
        self._all: WeakSet[Forkable] = WeakSet()
        self._lock = threading.RLock()

    def add(self, forkable: Forkable) -> None:
        with self._lock:
            self._all.add(forkable)

    def in_order(self) -> list[Forkable]:
        """Stores first: whoever holds one may be on the way to another lock, but not the other way round. Two threads
        that fork at a time go the same way, or each would wait for what the other holds."""
        with self._lock:
            return sorted(self._all, key=lambda forkable: (getattr(forkable, "fork_order", 1), id(forkable)))

    def unlock(self) -> None:
        """In a child, where whoever had the lock is no more."""
        self._lock = threading.RLock()


class _Fork(threading.local):
    """The fork that this thread is at: what is to come to rest, in this order, and how many of them have."""

    order: list[Forkable] | None = None
    at_rest = 0


_watched = _Watched()
_fork = _Fork()


def watch(forkable: Forkable) -> None:
    _watched.add(forkable)


def _before() -> None:
    if _fork.order is None:
        _fork.order = _watched.in_order()
    while _fork.at_rest < len(_fork.order):
        _fork.order[_fork.at_rest].before_fork()
        _fork.at_rest += 1


def _after(*, in_child: bool) -> None:
    if in_child:
        _watched.unlock()
    while _fork.order is not None and _fork.at_rest:
        _fork.at_rest -= 1
        _fork.order[_fork.at_rest].after_fork(in_child=in_child)
    _fork.order = None


if hasattr(os, "register_at_fork"):
    # What a signal raises in one of these ends it, and the fork goes on. So there are two of each: the second does what
    # the first has left undone.
    for _ in range(2):
        os.register_at_fork(
            before=_before,
            after_in_parent=partial(_after, in_child=False),
            after_in_child=partial(_after, in_child=True),
        )
