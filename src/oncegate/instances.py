"""Instances: a random name for this process, which starts the owner of every claim that it makes.

A store that can find out whether a process still runs (SQLite does, by a lock on a file) looks it up by this name. A
process id would not do: the system gives it to another process later, and another container has the same ones.
"""

import os
from struct import Struct as Layout
from typing import Final

SIZE: Final = 8  # bytes
_REST: Final = Layout(f"{SIZE}s")

_name: bytes = os.urandom(SIZE)


def instance() -> bytes:
    """The name of this process. A forked child has another."""
    return _name


def instance_of(owner: bytes) -> bytes | None:
    """The name of the process that made a claim, if its owner can hold one."""
    return owner[:SIZE] if len(owner) == 2 * SIZE else None


def owners(count: int) -> list[bytes]:
    """New owners for so many requests. The random bytes are drawn at once, because each draw is a system call."""
    name = _name
    return [name + rest for (rest,) in _REST.iter_unpack(os.urandom(SIZE * count))]


def _rename() -> None:
    global _name  # noqa: PLW0603  # there is one for each process
    _name = os.urandom(SIZE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rename)
