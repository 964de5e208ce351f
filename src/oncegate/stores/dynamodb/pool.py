"""Threads on which the keys of a batch are worked at side by side."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from oncegate import forks
from oncegate.claims import Address

_Asked = TypeVar("_Asked", bound=Address)


class Pool:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        forks.watch(self)

    def each(self, work: Callable[[_Asked], Any], batch: Sequence[_Asked]) -> list[Any]:
        """What comes of each, in the order of the batch."""
        answers: list[Any] = [None] * len(batch)
        self.fill(answers, work, batch)
        return answers

    def fill(self, answers: list[Any], work: Callable[[_Asked], Any], batch: Sequence[_Asked]) -> None:
        """The same, put in its place as it comes; those of one key come one after the other."""
        places: dict[tuple[str, bytes], list[int]] = {}
        for place, asked in enumerate(batch):
            places.setdefault((asked.namespace, asked.key), []).append(place)

        def of_one_key(where: tuple[str, bytes]) -> None:
            for place in places[where]:
                answers[place] = work(batch[place])

        if len(places) > 1:
            self._together(of_one_key, list(places))
        else:
            list(map(of_one_key, places))

    def _together(self, work: Callable[[tuple[str, bytes]], None], wheres: Sequence[tuple[str, bytes]]) -> None:
        """After a failure nothing more is begun, and it is raised when all that was begun has ended."""
        executor = self._started()
        futures = [executor.submit(work, where) for where in wheres]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            begun = [future for future in futures if not future.cancel()]
            wait(begun)
        for future in begun:
            future.result()

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, "oncegate-dynamodb")
            return self._executor

    def close(self) -> None:
        with self._lock:
            if self._executor is not None:
                self._executor.shutdown(wait=False)
                self._executor = None

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """Threads are not forked: the child starts its own."""
        if in_child:
            self._executor = None
        self._lock.release()
