"""Exponential backoff with jitter: the only rule for how long to wait before a retry. Only `wait_until`, which waits
for a part of a deployment, has pauses of the same length.

Each pause is twice as long as the pause before it, up to a limit. Jitter takes away up to half of a pause, so that
clients that failed together do not retry together. The caller chooses the unit of time.
"""

import random
import time
from collections.abc import Callable
from typing import Final

from oncegate.errors import OncegateError

_MOST_DOUBLINGS: Final = 40
_POLL_FIRST: Final = 0.01  # seconds
_POLL_LONGEST: Final = 0.25
_WAIT_LIMIT: Final = 120.0  # seconds
_WAIT_INTERVAL: Final = 0.5


def pause_after(attempt: int, first: int, longest: int) -> int:
    """The pause after the attempt with this number (the first attempt is 1), without jitter."""
    return min(first << min(attempt - 1, _MOST_DOUBLINGS), longest)


def jittered(pause: float) -> float:
    """A random pause between half of `pause` and the whole `pause`."""
    return random.uniform(pause / 2, pause)  # noqa: S311  # a pause is no secret


class Backoff:
    """The pauses of one retry loop."""

    def __init__(self, first: float, longest: float, *, jitter: bool = True) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._next = first

    def next_pause(self) -> float:
        pause = self._next
        self._next = min(2 * pause, self._longest)
        return jittered(pause) if self._jitter else pause

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._next = self._first


class PollBackoff:
    """The pauses between polls until a deadline, which is `wait` microseconds from now. The last pause ends at the
    deadline."""

    def __init__(self, wait: int) -> None:
        self._deadline = time.monotonic() + wait / 1e6
        self._backoff = Backoff(_POLL_FIRST, _POLL_LONGEST, jitter=False)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - time.monotonic()

    def pause(self) -> float | None:
        """Seconds until the next poll; None after the deadline."""
        left = self.left
        return min(self._backoff.next_pause(), left) if left > 0 else None


def wait_until(
    ready: Callable[[], bool], what: str, on_wait: Callable[[str], None], error: type[OncegateError]
) -> None:
    """Call `ready` twice a second until it returns true. Before each pause, `on_wait` is called with `what`. Raises
    `error` after two minutes."""
    deadline = time.monotonic() + _WAIT_LIMIT
    while not ready():
        if time.monotonic() > deadline:
            raise error(f"{what} was not ready after {_WAIT_LIMIT:.0f} s; run the command again later")
        on_wait(what)
        time.sleep(_WAIT_INTERVAL)
