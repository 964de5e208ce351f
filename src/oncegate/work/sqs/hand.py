"""The messages in hand: kept from others while they are, then deleted or shown again."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from oncegate.clocks import Clock
from oncegate.errors import QueueError
from oncegate.work.sqs.batches import Batches
from oncegate.work.sqs.calls import AT_A_TIME, Calls, Refusal
from oncegate.work.sqs.messages import Message
from oncegate.work.threads import Threads

_log: Final = logging.getLogger("oncegate.work")


class Hand:
    """`visibility` is for how long, in microseconds, a message is kept from others at a time, and `max_hold` for how
    long that is repeated."""

    def __init__(self, calls: Calls, threads: Threads, boot: Clock, *, visibility: int, max_hold: int) -> None:
        self._calls = calls
        self._threads = threads
        self._boot = boot
        self._visibility = visibility
        self._max_hold = max_hold
        self._messages: dict[Message, None] = {}
        self._deletions = Batches(self._delete, self._deleted)
        self._showings = Batches(self._show, self._shown)
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

    async def _delete(self, messages: Sequence[Message]) -> dict[int, Refusal]:
        return await self._threads.call(self._calls.delete, [message.handle for message in messages])

    def _deleted(self, message: Message, problem: str | None) -> None:
        del self._messages[message]
        if problem is not None:
            _log.warning("message %s was not deleted (%s); it comes again, as a duplicate", message.name, problem)

    async def _show(self, messages: Sequence[Message]) -> dict[int, Refusal]:
        await self._shows.wait()
        async with self._changing:
            shown = [(message.handle, message.again_after or 0) for message in messages]
            return await self._threads.call(self._calls.show, shown)

    def _shown(self, message: Message, problem: str | None) -> None:
        if problem is not None:
            _log.warning("message %s was not let go (%s); it comes again when its time is over", message.name, problem)
