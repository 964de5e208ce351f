"""The messages in hand: kept from others while they are, then deleted or shown again."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from oncegate.clocks import Clock
from oncegate.errors import QueueError
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.dispatcher import Dispatcher
from oncegate.ingress.sqs.client import AT_A_TIME, BatchSender, FailedEntry, QueueMissing, SqsClient
from oncegate.ingress.sqs.messages import Message, MessageEvent
from oncegate.ingress.sqs.options import SqsOptions
from oncegate.ingress.supervision import OutageLogger

_log: Final = logging.getLogger("oncegate.work")


class InFlightMessages:
    """`visibility` is for how long, in microseconds, a message is kept from others at a time, and `max_hold` for how
    long that is repeated."""

    def __init__(self, calls: SqsClient, threads: CallThreads, boot: Clock, *, visibility: int, max_hold: int) -> None:
        self._calls = calls
        self._threads = threads
        self._boot = boot
        self._visibility = visibility
        self._max_hold = max_hold
        self._messages: dict[Message, None] = {}
        self._deletions = BatchSender(self._delete, self._deleted)
        self._showings = BatchSender(self._show, self._shown)
        # A message that is kept a little longer and shown at the same time would stay hidden.
        self._changing = asyncio.Lock()
        self._shows = asyncio.Event()
        self._shows.set()

    def take(self, received: dict[str, Any]) -> Message:
        message = Message(received, self._boot(), self._visibility)
        self._messages[message] = None
        return message

    def end(self, message: Message) -> None:
        """All of its events have come to an end: it is deleted, or comes again."""
        if message.again_after is None:
            self._deletions.put(message)
        else:
            del self._messages[message]
            self._showings.put(message)

    def hold_back(self) -> None:
        """Let nothing go until `let_go`."""
        self._shows.clear()

    def let_go(self) -> None:
        self._shows.set()

    async def keep_hidden(self) -> None:
        """Renew the time for which each is kept from others, after a third of it or half at most, until cancelled."""
        while True:
            await asyncio.sleep(self._visibility / 6e6)
            now = self._boot()
            due = [message for message in self._messages if self._is_due(message, now)]
            async with self._changing:
                for start in range(0, len(due), AT_A_TIME):
                    await self._renew(due[start : start + AT_A_TIME])

    async def flush(self, within: float) -> None:
        """Wait until all that has come to an end is deleted or shown, at most so many seconds."""
        await asyncio.gather(self._deletions.flush(within), self._showings.flush(within))

    def _is_due(self, message: Message, now: int) -> bool:
        held = now - message.received_at
        return now - message.renewed_at >= self._visibility / 3 and held < self._max_hold

    async def _renew(self, due: Sequence[Message]) -> None:
        sent_at, seconds = self._boot(), self._visibility / 1e6
        try:
            refused = await self._threads.call(self._calls.show, [(message.handle, seconds) for message in due])
        except QueueError:
            return  # they still have half of their time: the next round tries again
        for at, message in enumerate(due):
            if at not in refused:
                message.renew(sent_at, self._visibility)
            elif not refused[at].passes:
                message.lose()

    async def _delete(self, messages: Sequence[Message]) -> dict[int, FailedEntry]:
        return await self._threads.call(self._calls.delete, [message.handle for message in messages])

    def _deleted(self, message: Message, problem: str | None) -> None:
        del self._messages[message]
        if problem is not None:
            _log.warning("message %s was not deleted (%s); it comes again, as a duplicate", message.name, problem)

    async def _show(self, messages: Sequence[Message]) -> dict[int, FailedEntry]:
        await self._shows.wait()
        async with self._changing:
            shown = [(message.handle, message.again_after or 0) for message in messages]
            return await self._threads.call(self._calls.show, shown)

    def _shown(self, message: Message, problem: str | None) -> None:
        if problem is not None:
            _log.warning("message %s was not let go (%s); it comes again when its time is over", message.name, problem)


# Receiving: polls, as many at a time as there are messages and room for.
#
# A poll that finds nothing stays open, and cannot be broken off. A worker that is stopped lets messages go, and its own
# open polls would catch them. So polls are long only while nothing is in hand.


SHORT: Final = 1


class Receiver:
    """`take` gets the messages of each poll, which is sent when the dispatcher has room.

    `store` is the trouble that others have with the store: without it nothing can be done with a message."""

    def __init__(
        self,
        calls: SqsClient,
        threads: CallThreads,
        boot: Clock,
        ways: SqsOptions,
        dispatcher: Dispatcher[MessageEvent],
        take: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._calls = calls
        self._threads = threads
        self._ways = ways
        self._dispatcher = dispatcher
        self._take = take
        self._queue = OutageLogger(boot)
        self.store = OutageLogger(boot)
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
        except QueueMissing:
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
