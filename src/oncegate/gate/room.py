"""Room: how many coroutines of one loop may be inside and at work, and one that is to be at work alone.

What can be had at once is had without a coroutine of its own: nearly always nobody has to wait.
"""

import asyncio
from collections import deque

from oncegate.gate.running import PATIENCE

_Waiter = asyncio.Future[None]


class Room:
    """At most `most` are inside. Of those, work may be shared, or had alone: then nobody else begins until it ends, or
    for as long as patience lasts, and neither does it wait for longer for those who are at work before it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0
        self._outside: deque[_Waiter] = deque()
        self._working = 0
        self._alone: asyncio.TimerHandle | None = None  # which ends the time that one has for itself
        self._wanted_alone = 0
        self._waiters: list[_Waiter] = []

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────

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

    # ── at work ───────────────────────────────────────────────────────────────────────────────────────────

    def begin_now(self) -> bool:
        """Work beside others, unless one is or wants to be alone."""
        if self._alone is not None or self._wanted_alone:
            return False
        self._working += 1
        return True

    async def begin(self) -> None:
        while not self.begin_now():
            await self._change()

    async def begin_alone(self) -> asyncio.TimerHandle:
        """Whoever comes later waits, so that those at work become fewer until there is none. What is given is to be
        given back to `end_alone`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        waking = loop.call_at(until, self._wake)
        self._wanted_alone += 1
        try:
            while self._alone is not None or (self._working and loop.time() < until):
                await self._change()
            self._working += 1
            self._alone = loop.call_later(PATIENCE, self._open)
            return self._alone
        finally:
            waking.cancel()
            self._wanted_alone -= 1
            if self._alone is None:
                self._wake()

    def end(self) -> None:
        self._working -= 1
        if not self._working:
            self._wake()

    def end_alone(self, alone: asyncio.TimerHandle) -> None:
        alone.cancel()
        if self._alone is alone:
            self._open()
        self.end()

    def _open(self) -> None:
        self._alone = None
        self._wake()

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
