"""Gathering: the writes of many coroutines in few batches.

Coroutines that become ready in the same turn of their event loop hand in what they ask for together, and a thread
writes all that has been handed in since its last write. So a batch waits for one turn of the loop and for the write
before it, and for nothing else.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from oncegate.gate.background import Background

_Asked = TypeVar("_Asked")
Waiter = asyncio.Future[None]


class _Ask(Generic[_Asked]):
    """What is asked for, and where somebody waits for it, if anybody does."""

    __slots__ = ("asked", "loop", "waiter")

    def __init__(self, asked: _Asked, waiter: Waiter | None) -> None:
        self.asked = asked
        self.waiter = waiter
        self.loop = None if waiter is None else waiter.get_loop()


class _Turn(threading.local):
    """What was handed in during this turn of the loop that runs in this thread; no loop: nothing yet."""

    loop: asyncio.AbstractEventLoop | None = None
    handed_in: list[Any]


class Gatherer(Generic[_Asked]):
    """`work` gets up to `most` things at a time, in the order in which they were asked for. `orphaned` gets what was
    worked on for a coroutine that has been cancelled meanwhile."""

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[_Asked]], None],
        orphaned: Callable[[_Asked], None],
        most: int,
    ) -> None:
        self._work = work
        self._orphaned = orphaned
        self._most = most
        self._background: Background[list[_Ask[_Asked]]] = Background(name, self._work_off, most=most)
        self._local = _Turn()

    async def done(self, asked: _Asked) -> None:
        """Wait until this has been worked on. A caller that is cancelled does not stop it."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        turn = self._local
        if turn.loop is not loop:  # the first in this turn, or in this loop
            turn.loop, turn.handed_in = loop, []
            loop.call_soon(self._pass_on, turn.handed_in)
        turn.handed_in.append(_Ask(asked, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it was answered, and the caller cancelled before it could see that
                self._orphaned(asked)
            raise

    def post(self, asked: _Asked, waiter: Waiter | None = None) -> None:
        """Have this worked on, from any thread."""
        self._background.put([_Ask(asked, waiter)])

    def flush(self, within: float) -> bool:
        """Wait until all that was asked so far has been worked on; False if that takes too long."""
        return self._background.flush(within)

    def _pass_on(self, handed_in: list[_Ask[_Asked]]) -> None:
        self._local.loop = None
        self._background.put(handed_in)

    # ── in the thread ─────────────────────────────────────────────────────────────────────────────────────

    def _work_off(self, handed_in: list[list[_Ask[_Asked]]]) -> None:
        asks = [ask for some in handed_in for ask in some]
        for start in range(0, len(asks), self._most):
            self._work_on(asks[start : start + self._most])

    def _work_on(self, asks: list[_Ask[_Asked]]) -> None:
        error: BaseException | None = None
        try:
            self._work([ask.asked for ask in asks])
        except BaseException as raised:  # noqa: BLE001  # those who wait are told
            error = raised
        for loop in {ask.loop for ask in asks if ask.loop is not None}:
            theirs = [ask for ask in asks if ask.loop is loop]
            try:
                loop.call_soon_threadsafe(self._wake, theirs, error)
            except RuntimeError:  # the loop was closed, and all who waited in it are gone
                for ask in theirs:
                    self._orphaned(ask.asked)

    # ── in the loop ───────────────────────────────────────────────────────────────────────────────────────

    def _wake(self, asks: list[_Ask[_Asked]], error: BaseException | None) -> None:
        for ask in asks:
            if ask.waiter is None or ask.waiter.done():
                self._orphaned(ask.asked)
            elif error is None:
                ask.waiter.set_result(None)
            else:
                ask.waiter.set_exception(error)
