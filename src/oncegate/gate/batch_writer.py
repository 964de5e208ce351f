"""Gathering: the writes of many coroutines in few batches.

Coroutines that become ready in the same turn of their event loop hand in what they ask for together, and a thread
writes all that has been handed in since its last write. So a batch waits for one turn of the loop and for the write
before it, and for nothing else.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from oncegate.background import Background

_Asked = TypeVar("_Asked")
Waiter = asyncio.Future[None]


class _Waiting(Generic[_Asked]):
    """Somebody who waits until so many things have been worked on, and what has been so far."""

    __slots__ = ("done", "error", "loop", "number", "waiter")

    def __init__(self, waiter: Waiter, number: int = 1) -> None:
        self.waiter = waiter
        self.loop = waiter.get_loop()
        self.number = number
        self.done: list[_Asked] = []
        self.error: BaseException | None = None

    def one_is_done(self, asked: _Asked, error: BaseException | None) -> None:
        self.done.append(asked)
        self.error = self.error or error
        if len(self.done) < self.number:
            return
        if self.error is None:
            self.waiter.set_result(None)
        else:
            self.waiter.set_exception(self.error)


class _Ask(Generic[_Asked]):
    """What is asked for, since when, and who waits for it, if anybody does."""

    __slots__ = ("asked", "since", "waiting")

    def __init__(self, asked: _Asked, waiting: _Waiting[_Asked] | None) -> None:
        self.asked = asked
        self.since = time.monotonic()
        self.waiting = waiting


class WriteBatch(Generic[_Asked]):
    """What is to be worked on, and how long the first of it has waited. What is put into `again` could not be done."""

    __slots__ = ("again", "asked", "waited")

    def __init__(self, asked: Sequence[_Asked], waited: float) -> None:
        self.asked = asked
        self.waited = waited
        self.again: list[_Asked] = []


class _Turn(threading.local):
    """What was handed in during this turn of the loop that runs in this thread; no loop: nothing yet."""

    loop: asyncio.AbstractEventLoop | None = None
    handed_in: list[Any]


_Background = Background[list[_Ask[_Asked]]]


class BatchWriter(Generic[_Asked]):
    """`work` gets up to `most` things at a time, in the order in which they were asked for. What it could not do is for
    `again`, in a thread of its own, so that nothing else has to wait for it. `orphaned` gets what was worked on for a
    coroutine that has been cancelled meanwhile."""

    def __init__(
        self,
        name: str,
        work: Callable[[WriteBatch[_Asked]], None],
        again: Callable[[WriteBatch[_Asked]], None],
        orphaned: Callable[[_Asked], None],
        most: int,
    ) -> None:
        self._orphaned = orphaned
        self._most = most
        self._background: _Background[_Asked] = Background(name, partial(self._work_off, work), most=most)
        self._again: _Background[_Asked] = Background(f"{name}-again", partial(self._work_off, again), most=most)
        self._local = _Turn()

    async def done(self, *asked: _Asked) -> None:
        """Wait until all of these, which is at least one, have been worked on. A caller that is cancelled does not stop
        it."""
        loop = asyncio.get_running_loop()
        waiting: _Waiting[_Asked] = _Waiting(loop.create_future(), len(asked))
        turn = self._local
        if turn.loop is not loop:  # the first in this turn, or in this loop
            turn.loop, turn.handed_in = loop, []
            loop.call_soon(self._pass_on, turn.handed_in)
        turn.handed_in.extend([_Ask(each, waiting) for each in asked])
        try:
            await waiting.waiter
        except asyncio.CancelledError:
            for each in waiting.done:  # the caller was cancelled before it could see that
                self._orphaned(each)
            raise

    def post(self, asked: _Asked, waiter: Waiter | None = None) -> None:
        """Have this worked on, from any thread."""
        self._background.put([_Ask(asked, None if waiter is None else _Waiting(waiter))])

    def flush(self, within: float) -> bool:
        """Wait until all that was asked so far has been worked on; False if that takes too long."""
        deadline = time.monotonic() + within
        return self._background.flush(within) and self._again.flush(max(0, deadline - time.monotonic()))

    def _pass_on(self, handed_in: list[_Ask[_Asked]]) -> None:
        self._local.loop = None
        self._background.put(handed_in)

    # ── in the thread ─────────────────────────────────────────────────────────────────────────────────────

    def _work_off(self, work: Callable[[WriteBatch[_Asked]], None], handed_in: list[list[_Ask[_Asked]]]) -> None:
        asks = [ask for some in handed_in for ask in some]
        for start in range(0, len(asks), self._most):
            self._work_on(work, asks[start : start + self._most])

    def _work_on(self, work: Callable[[WriteBatch[_Asked]], None], asks: list[_Ask[_Asked]]) -> None:
        error: BaseException | None = None
        gathered = WriteBatch([ask.asked for ask in asks], time.monotonic() - asks[0].since)
        try:
            work(gathered)
        except BaseException as raised:  # noqa: BLE001  # those who wait are told
            error = raised
        if gathered.again:
            undone = set(map(id, gathered.again))
            self._again.put([ask for ask in asks if id(ask.asked) in undone])
            asks = [ask for ask in asks if id(ask.asked) not in undone]
        for loop in {ask.waiting.loop for ask in asks if ask.waiting is not None}:
            theirs = [(ask.asked, ask.waiting) for ask in asks if ask.waiting is not None and ask.waiting.loop is loop]
            try:
                loop.call_soon_threadsafe(self._wake, theirs, error)
            except RuntimeError:  # the loop was closed, and all who waited in it are gone
                for asked, _ in theirs:
                    self._orphaned(asked)

    # ── in the loop ───────────────────────────────────────────────────────────────────────────────────────

    def _wake(self, worked_on: list[tuple[_Asked, _Waiting[_Asked]]], error: BaseException | None) -> None:
        for asked, waiting in worked_on:
            if waiting.waiter.done():
                self._orphaned(asked)
            else:
                waiting.one_is_done(asked, error)
