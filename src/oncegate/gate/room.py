"""Room: how many coroutines of one loop may be at work, and one that must be at work alone."""

import asyncio
from types import TracebackType


class Room:
    """At most `most` are inside. `work` may be shared, or had alone: then nobody else works until it is given up."""

    def __init__(self, most: int) -> None:
        self.inside = asyncio.Semaphore(most)
        self._working = 0
        self._alone = False
        self._wanted_alone = 0
        self._waiters: list[asyncio.Future[None]] = []

    def work(self, *, alone: bool) -> "_Turn":
        return _Turn(self, alone)

    async def begin(self, *, alone: bool) -> None:
        if alone:
            await self._begin_alone()
        else:
            while self._alone or self._wanted_alone:
                await self._change()
            self._working += 1

    async def _begin_alone(self) -> None:
        """Whoever comes later waits, so that those at work become fewer until there is none."""
        self._wanted_alone += 1
        try:
            while self._working:
                await self._change()
            self._working, self._alone = 1, True
        finally:
            self._wanted_alone -= 1
            if not self._alone:
                self._wake()

    def end(self) -> None:
        self._working -= 1
        self._alone = False
        if not self._working:
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


class _Turn:
    """A context manager by hand: one made from a generator would cost more than all of the above."""

    def __init__(self, room: Room, alone: bool) -> None:
        self._room = room
        self._alone = alone

    async def __aenter__(self) -> None:
        await self._room.begin(alone=self._alone)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.end()
