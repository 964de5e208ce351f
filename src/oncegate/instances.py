"""A random name for this process. The owner of every claim that the process makes starts with this name.

A store that can detect whether a process still runs (SQLite does, with a file lock) identifies the process by this
name. A process id would not work: the system reuses process ids, and processes in other containers may have the same
id.
"""

import os
from struct import Struct as Layout
from typing import Final

SIZE: Final = 8  # bytes
_SUFFIX: Final = Layout(f"{SIZE}s")

_name: bytes = os.urandom(SIZE)


def instance() -> bytes:
    """The name of this process. A forked child gets a new name."""
    return _name


def instance_of(owner: bytes) -> bytes | None:
    """The name of the process that made a claim; None if the owner has another length."""
    return owner[:SIZE] if len(owner) == 2 * SIZE else None


def owners(count: int) -> list[bytes]:
    """New owners for `count` requests. All random bytes are read in one system call."""
    name = _name
    return [name + suffix for (suffix,) in _SUFFIX.iter_unpack(os.urandom(SIZE * count))]


def _rename() -> None:
    global _name  # noqa: PLW0603  # one name for each process
    _name = os.urandom(SIZE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rename)
