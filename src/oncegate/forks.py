"""Forks: what must not be shared by the two processes that come of one.

SQLite's connections and every lock and thread belong to one process. What is watched here is quiesced before a fork
and starts anew after it, in the child with nothing of the parent's in hand.
"""

import os
import threading
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def before_fork(self) -> None:
        """Come to rest, and let nobody in until `after_fork`."""

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


_watched: WeakSet[Forkable] = WeakSet()
_at_rest: list[Forkable] = []


def watch(forkable: Forkable) -> None:
    _watched.add(forkable)


def _before() -> None:
    # Stores first: whoever holds one may be on the way to another lock, but not the other way round.
    _at_rest.extend(sorted(_watched, key=lambda forkable: getattr(forkable, "fork_order", 1)))
    for forkable in _at_rest:
        forkable.before_fork()


def _after(*, in_child: bool) -> None:
    while _at_rest:
        _at_rest.pop().after_fork(in_child=in_child)


def _after_in_parent() -> None:
    _after(in_child=False)


def _after_in_child() -> None:
    _after(in_child=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
