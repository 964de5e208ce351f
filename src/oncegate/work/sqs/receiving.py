"""Receiving: polls, as many at a time as there are messages and room for.

A poll that finds nothing stays open, and cannot be broken off. A worker that is stopped lets messages go, and its own
open polls would catch them. So polls are long only while nothing is in hand.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from oncegate.clocks import Clock
from oncegate.errors import QueueError
from oncegate.work.dispatcher import Dispatcher
from oncegate.work.sqs.calls import Calls
from oncegate.work.sqs.failures import NoQueue
from oncegate.work.sqs.messages import Work
from oncegate.work.sqs.ways import Ways
from oncegate.work.threads import Threads
from oncegate.work.trouble import Trouble

SHORT: Final = 1


class Receiver:
    """`take` gets the messages of each poll, which is sent when the dispatcher has room.

    `store` is the trouble that others have with the store: without it nothing can be done with a message."""

    def __init__(
        self,
        calls: Calls,
        threads: Threads,
        boot: Clock,
        ways: Ways,
        dispatcher: Dispatcher[Work],
        take: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._calls = calls
        self._threads = threads
        self._ways = ways
        self._dispatcher = dispatcher
        self._take = take
        self._queue = Trouble(boot)
        self.store = Trouble(boot)
        self._turn = asyncio.Lock()
        self._reserved = 0
        self._plenty = asyncio.Event()
        self._left = False

    async def receive(self, stopping: asyncio.Event) -> None:
        """Until it is stopped; NoQueue if the queue is gone."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._ways.receivers):
                group.create_task(self._go_on(stopping, further=number > 0))
            await stopping.wait()
            self._plenty.set()

    def leave(self) -> None:
        """Nobody waits for what polls bring from now on."""
        self._left = True

    async def _go_on(self, stopping: asyncio.Event, *, further: bool) -> None:
        """The first always polls. The further ones help it while polls come back full."""
        while not stopping.is_set():
            if further:
                await self._plenty.wait()
            await self._rest(stopping)
            async with self._turn:
                await self._dispatcher.room_for(self._reserved + self._ways.batch)
                if stopping.is_set():
                    return
                self._reserved += self._ways.batch
            try:
                await self._receive(SHORT if further or self._dispatcher.in_hand else self._ways.wait)
            finally:
                self._reserved -= self._ways.batch

    async def _rest(self, stopping: asyncio.Event) -> None:
        """Wait while there is trouble."""
        while (pause := max(self._queue.pause, self.store.pause)) and not stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stopping.wait()

    async def _receive(self, wait: int) -> None:
        try:
            messages = await self._threads.call(self._poll, min(wait, self._ways.wait))
        except NoQueue:
            raise
        except QueueError as error:
            self._plenty.clear()
            self._queue.met(str(error))
            return
        self._queue.over(f"{self._calls.place} answers")
        if len(messages) == self._ways.batch:
            self._plenty.set()
        else:
            self._plenty.clear()
        self._take(messages)

    def _poll(self, wait: int) -> list[dict[str, Any]]:
        """In a thread, which may come back when nobody waits any more: what it brings is then let go at once."""
        messages = self._calls.receive(self._ways.batch, wait)
        if self._left and messages:
            with suppress(QueueError):
                self._calls.show([(message["ReceiptHandle"], 0) for message in messages])
        return messages
