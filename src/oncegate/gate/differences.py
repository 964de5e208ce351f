"""Differences: where two bodies say different things."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

_MOST: Final = 5
_LONGEST: Final = 100


def differences(one: Any, other: Any) -> tuple[str, ...]:
    """The first few paths at which these bodies differ, such as `data.status`; lists differ as a whole. There is none
    to what is no object."""
    return tuple(_short(path) for path in islice(_paths(one, other, ""), _MOST) if path)


def _short(path: str) -> str:
    """Whoever sends it may call a member anything, and it stands in logs."""
    return path if len(path) <= _LONGEST else f"{path[:_LONGEST]}…"


def _paths(one: Any, other: Any, at: str) -> Iterator[str]:
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one != other or type(one) is not type(other):
            yield at
        return
    for name in sorted(one.keys() | other.keys()):
        name_ = name or '""'
        path = f"{at}.{name_}" if at else name_
        if name in one and name in other:
            yield from _paths(one[name], other[name], path)
        else:
            yield path
