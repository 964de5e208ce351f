"""Threads for calls that may take long, such as a long poll.

An executor was turned down: at the end of the process it waits for its threads, and so for the poll.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

_R = TypeVar("_R")


class _Call(Struct):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: asyncio.Future[Any]


class CallThreads:
    """Runs at most `most` calls at a time for one event loop; further ones wait."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._started = 0
        self._asked = 0

    async def call(self, function: Callable[..., _R], *arguments: Any) -> _R:
        """What the function answers. It runs on if the caller does not wait for it."""
        future: asyncio.Future[_R] = asyncio.get_running_loop().create_future()
        self._asked += 1
        if self._asked > self._started and self._started < self._most:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._calls.put(_Call(function, arguments, future))
        try:
            return await future
        finally:
            self._asked -= 1

    def close(self) -> None:
        """Each thread ends when its call does."""
        for _ in range(self._started):
            self._calls.put(None)
        self._started = 0

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            answer, error = None, None
            try:
                answer = call.function(*call.arguments)
            except BaseException as raised:  # noqa: BLE001  # whoever waits is told
                error = raised
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                call.future.get_loop().call_soon_threadsafe(_settle, call.future, answer, error)


def _settle(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
