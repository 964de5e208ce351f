"""Settling: how claims end, many with one write, none later than 50 ms after its effect."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from oncegate.claims import Settlement
from oncegate.errors import StoreError
from oncegate.gate.background import Background
from oncegate.gate.jobs import Job
from oncegate.gate.outcome import Outcome
from oncegate.stores.base import Store

FLUSH_WITHIN = 0.05
_RETRY_AFTER = (0.05, 0.25)

# What a store says to a settlement: True accepted, False lease lost, an error if it did not answer.
Answer = bool | StoreError


class Ending(Struct, frozen=True, gc=False):
    """How a job shall end, and its outcome if the store agrees."""

    job: Job
    settlement: Settlement
    outcome: Outcome


class Settlements:
    """The endings of one batch that are not written yet."""

    def __init__(self, write: Callable[[Sequence[Ending]], None], flusher: "Flusher") -> None:
        self._write = write
        self._flusher = flusher
        self._lock = threading.Lock()
        self._waiting: deque[Ending] = deque()
        self._hurried = False
        self.add = self._waiting.append

    def hurry(self) -> None:
        """Have what waits written within 50 ms, as the caller's thread may be busy until much later."""
        if self._waiting and not self._hurried:
            self._hurried = True
            self._flusher.remind(self)

    def flush(self) -> None:
        """Write all that waits; on return every one of them has been told."""
        with self._lock:
            self._hurried = False
            endings = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if endings:
                self._write(endings)


def settle(store: Store, settlements: Sequence[Settlement]) -> Sequence[Answer]:
    """Settle in one write. The effects are done, so a store that stumbles is asked again before giving up."""
    for pause in (*_RETRY_AFTER, None):
        try:
            return store.settle(settlements)
        except StoreError as error:
            if pause is None:
                return [error] * len(settlements)
            time.sleep(pause)
    raise AssertionError("the last try returns")


class Flusher:
    """Flushes what a batch has left waiting for 50 ms, from a thread of its own."""

    def __init__(self) -> None:
        self._background: Background[tuple[float, Settlements]] = Background("oncegate-flusher", self._flush)

    def remind(self, settlements: Settlements) -> None:
        self._background.put((time.monotonic() + FLUSH_WITHIN / 2, settlements))

    def _flush(self, reminders: list[tuple[float, Settlements]]) -> None:
        for due, settlements in reminders:
            # Every reminder has the same delay, so the first in the queue is the first that is due.
            time.sleep(max(0.0, due - time.monotonic()))
            settlements.flush()
