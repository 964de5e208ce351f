"""A background thread for work that must not delay its caller. The thread starts on demand and ends when idle."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from oncegate import forks

_IDLE_FOR = 10.0  # seconds

_Item = TypeVar("_Item")


class Background(Generic[_Item]):
    """A daemon thread that processes items in order, up to `most` at a time.

    The thread starts with the first item and ends after 10 idle seconds, so that it delays neither a shutdown nor a
    freeze of a Lambda. `work` must not raise, because no caller could catch the error.
    """

    def __init__(self, name: str, work: Callable[[list[_Item]], None], *, most: int = 1) -> None:
        self._name = name
        self._work = work
        self._most = most
        self._queue: SimpleQueue[_Item | threading.Event] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        forks.watch(self)

    def __len__(self) -> int:
        return self._queue.qsize()

    def put(self, item: _Item) -> None:
        with self._lock:
            self._queue.put(item)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def flush(self, within: float) -> bool:
        """Wait until all items that were put so far are processed. Returns False if this takes longer than `within`
        seconds."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                return self._queue.empty()
            done = threading.Event()
            self._queue.put(done)
        return done.wait(within)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._queue, self._thread = SimpleQueue(), None
        self._lock.release()

    def _run(self) -> None:
        queue = self._queue
        while True:
            try:
                items = [queue.get(timeout=_IDLE_FOR)]
            except Empty:
                with self._lock:
                    if queue.empty():
                        self._thread = None
                        return
                continue
            while len(items) < self._most and not queue.empty():
                items.append(queue.get())
            self._process(items)

    def _process(self, items: list[_Item | threading.Event]) -> None:
        """Process the items, then wake the callers of `flush`."""
        work = [item for item in items if not isinstance(item, threading.Event)]
        if work:
            self._work(work)
        for item in items:
            if isinstance(item, threading.Event):
                item.set()
