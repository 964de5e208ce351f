"""Room: how many coroutines of one loop may be inside, and how a coroutine waits to run beside others or alone.

What can be had at once is had without a coroutine of its own: nearly always nobody has to wait.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from math import inf
from typing import Any

from oncegate.gate.alone import LOOK_EVERY, PROCESS

_Waiter = asyncio.Future[None]


class Room:
    """At most `most` are inside."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0
        self._outside: deque[_Waiter] = deque()

    def enter_now(self) -> bool:
        if self._inside >= self._most:
            return False
        self._inside += 1
        return True

    async def enter(self) -> None:
        """Wait for a place, which whoever leaves passes on; a caller that gives up passes it on too."""
        waiter = asyncio.get_running_loop().create_future()
        self._outside.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        while self._outside:
            waiter = self._outside.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._inside -= 1


async def entered(
    token: object, hold: float, *, alone_for: float = 0.0, within: float = inf, unless: asyncio.Event | None = None
) -> bool:
    """Wait to run beside others, or alone for so many seconds: whether it may, within so many seconds and unless an
    event happens before. See `oncegate.gate.alone`."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(woken.set)

    waiter = PROCESS.ask(token, hold, alone_for, wake, within)
    try:
        while not waiter.admitted and not (unless is not None and unless.is_set()):
            if (left := waiter.deadline - time.monotonic()) <= 0:
                break
            events = [woken] if unless is None else [woken, unless]
            await first_of(*(event.wait() for event in events), within=min(LOOK_EVERY, left))
            PROCESS.look()
    except BaseException:
        if PROCESS.give_up(waiter):
            PROCESS.leave(token)
        raise
    return PROCESS.give_up(waiter)


async def first_of(*awaited: Coroutine[Any, Any, object], within: float | None = None) -> None:
    """Wait for the first of these, at most so many seconds."""
    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
