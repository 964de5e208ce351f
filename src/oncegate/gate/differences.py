"""Differences: where two bodies say different things."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

_MOST: Final = 5


def differences(one: Any, other: Any) -> tuple[str, ...]:
    """The first few paths at which these bodies differ, such as `data.status`; lists differ as a whole."""
    return tuple(islice(_paths(one, other, ""), _MOST))


def _paths(one: Any, other: Any, at: str) -> Iterator[str]:
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one != other or type(one) is not type(other):
            yield at
        return
    for name in sorted(one.keys() | other.keys()):
        path = f"{at}.{name}" if at else name
        if name in one and name in other:
            yield from _paths(one[name], other[name], path)
        else:
            yield path
