"""Patience: the pauses of somebody who looks again and again until something is done."""

import time
from typing import Final

_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.25


class Patience:
    """Each pause is longer than the one before; the last goes up to the end. `wait` is in microseconds."""

    def __init__(self, wait: int) -> None:
        self._deadline = time.monotonic() + wait / 1e6
        self._next = _FIRST_PAUSE

    @property
    def left(self) -> float:
        """The seconds until the end."""
        return self._deadline - time.monotonic()

    def pause(self) -> float | None:
        """How long to wait until the next look; None if that was the last."""
        left = self.left
        if left <= 0:
            return None
        pause, self._next = min(self._next, left), min(2 * self._next, _LONGEST_PAUSE)
        return pause
