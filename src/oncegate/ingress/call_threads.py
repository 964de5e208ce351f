"""This module runs the blocking calls of an event loop in daemon threads.

ThreadPoolExecutor was rejected. It joins its threads when the interpreter exits, so an open long poll or a store that
hangs would delay the end of the process.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

_R = TypeVar("_R")


class _Call(Struct):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: Future[Any]


class CallThreads:
    """Runs at most `limit` calls at a time, in the order of submission. Further calls are queued."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0

    def submit(self, function: Callable[..., _R], *arguments: Any) -> Future[_R]:
        """Queue a call and return its future. The call cannot be cancelled. May be called from any thread."""
        future: Future[_R] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._unfinished += 1
            if self._unfinished > self._threads and self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._run_calls, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._calls.put(_Call(function, arguments, future))
        return future

    async def call(self, function: Callable[..., _R], *arguments: Any) -> _R:
        """Run a call and return its result. The call continues if the caller is cancelled."""
        return await asyncio.wrap_future(self.submit(function, *arguments))

    def close(self) -> None:
        """End the threads after the calls that were submitted so far. Does not wait for the threads."""
        with self._lock:
            threads, self._threads = self._threads, 0
        for _ in range(threads):
            self._calls.put(None)

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call.function(*call.arguments)
            except BaseException as raised:  # noqa: BLE001  # the future raises this error
                error = raised
            with self._lock:
                self._unfinished -= 1
            if error is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(error)
