"""Background threads: work that must not hold up its caller, done in order by a thread that comes and goes."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from oncegate import forks

_IDLE_FOR = 10.0

_Item = TypeVar("_Item")


class Background(Generic[_Item]):
    """A daemon thread that works off what it is given, up to `most` things at a time.

    It starts with the first thing and ends when it has been idle for long, so that it holds up neither a shutdown nor
    a freeze. `work` must not raise: there is nobody to tell.
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
        """Wait until all that was given so far is worked off; False if that takes too long."""
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
            self._work_off(items)

    def _work_off(self, items: list[_Item | threading.Event]) -> None:
        """Work on these, and tell those who wait for all before them."""
        work = [item for item in items if not isinstance(item, threading.Event)]
        if work:
            self._work(work)
        for item in items:
            if isinstance(item, threading.Event):
                item.set()
