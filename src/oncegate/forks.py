"""Forks: what must not be shared by the two processes that come of one.

SQLite's connections and every lock and thread belong to one process. What is watched here is quiesced before a fork
and starts anew after it, in the child with nothing of the parent's in hand.
"""

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def before_fork(self) -> None:
        """Come to rest, and let nobody in until `after_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on; in the child, without what was the parent's."""


_watched: WeakSet[Forkable] = WeakSet()
_at_rest: list[Forkable] = []


def watch(forkable: Forkable) -> None:
    _watched.add(forkable)


def _before() -> None:
    _at_rest.extend(_watched)
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
