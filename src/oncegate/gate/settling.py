"""Settling: how claims end, many with one write, none later than 50 ms after its effect."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from oncegate import forks
from oncegate.claims import Settlement
from oncegate.errors import StoreError
from oncegate.stores.base import Store

FLUSH_WITHIN = 0.05
_RETRY_AFTER = (0.05, 0.25)
_IDLE_FOR = 10.0

# Called once for each settlement: True accepted, False lease lost, an error if the store did not answer.
Settled = Callable[[bool | StoreError], None]


class Settlements:
    """The settlements of one batch that are not written yet."""

    def __init__(self, store: Store, flusher: "Flusher") -> None:
        self._store = store
        self._flusher = flusher
        self._lock = threading.Lock()
        self._waiting: list[tuple[Settlement, Settled]] = []
        self._hurried = False

    def add(self, settlement: Settlement, settled: Settled) -> None:
        with self._lock:
            self._waiting.append((settlement, settled))

    def hurry(self) -> None:
        """Have what waits written within 50 ms, as the caller's thread may be busy until much later."""
        if self._waiting and not self._hurried:
            self._hurried = True
            self._flusher.remind(self)

    def flush(self) -> None:
        """Write all that waits; on return every one of them has been told."""
        with self._lock:
            self._hurried = False
            waiting, self._waiting = self._waiting, []
            if waiting:
                settle(self._store, waiting)


def settle(store: Store, waiting: Sequence[tuple[Settlement, Settled]]) -> None:
    """Settle in one write. The effects are done, so a store that stumbles is asked again before giving up."""
    answers: Sequence[bool | StoreError]
    for pause in (*_RETRY_AFTER, None):
        try:
            answers = store.settle([settlement for settlement, _ in waiting])
            break
        except StoreError as error:
            if pause is None:
                answers = [error] * len(waiting)
                break
            time.sleep(pause)
    for (_, settled), answer in zip(waiting, answers, strict=True):
        settled(answer)


class Flusher:
    """A thread that flushes what a batch has left waiting for 50 ms. It ends when it has been idle for long."""

    def __init__(self) -> None:
        self._reminders: SimpleQueue[tuple[float, Settlements]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        forks.watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._reminders, self._thread = SimpleQueue(), None
        self._lock.release()

    def remind(self, settlements: Settlements) -> None:
        with self._lock:
            self._reminders.put((time.monotonic() + FLUSH_WITHIN / 2, settlements))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="oncegate-flusher", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                due, settlements = self._reminders.get(timeout=_IDLE_FOR)
            except Empty:
                with self._lock:
                    if self._reminders.empty():
                        self._thread = None
                        return
                continue
            # Every reminder has the same delay, so the first in the queue is the first that is due.
            time.sleep(max(0.0, due - time.monotonic()))
            settlements.flush()
