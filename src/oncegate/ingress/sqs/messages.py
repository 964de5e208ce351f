"""This module keeps the messages that a worker has received from SQS hidden, and deletes or releases them."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from oncegate.carriers.pieces import whole, within
from oncegate.clocks import Clock
from oncegate.errors import QueueError
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.messages import Message
from oncegate.ingress.sqs.client import MAX_BATCH, BatchSender, FailedEntry, SqsClient

_log: Final = logging.getLogger("oncegate.work")


class SqsMessage(Message):
    """A message of SQS. It is hidden from other receivers until `visible_until`. Times are in microseconds of the boot
    clock."""

    __slots__ = ("handle", "received_at", "renewed_at", "visible_until")

    def __init__(self, received: dict[str, Any], now: int, visibility: int) -> None:
        receives = whole(within(received, "Attributes", "ApproximateReceiveCount")) or 1
        super().__init__(received.get("MessageId", ""), receives)
        self.handle: str = received["ReceiptHandle"]
        self.received_at = now
        self.renew(now, visibility)

    def may_start(self, now: int) -> bool:
        return now < self.visible_until

    def renew(self, now: int, visibility: int) -> None:
        self.renewed_at = now
        self.visible_until = now + visibility

    def lose(self) -> None:
        """Record that another worker may receive the message now. No event of the message may start here any more."""
        self.visible_until = 0


class InFlightMessages:
    """Keeps received messages hidden from other receivers. Deletes a message or makes it visible again when its events
    have ended.

    `visibility` is the visibility timeout that one request sets. `max_hold` is the longest time for which the timeout
    is renewed. Both are in microseconds.
    """

    def __init__(self, client: SqsClient, threads: CallThreads, boot: Clock, *, visibility: int, max_hold: int) -> None:
        self._client = client
        self._threads = threads
        self._boot = boot
        self._visibility = visibility
        self._max_hold = max_hold
        self._messages: dict[SqsMessage, None] = {}
        self._deletions = BatchSender(self._delete, self._deleted)
        self._releases = BatchSender(self._release, self._released)
        # If a message were renewed and released at the same time, it could stay hidden.
        self._changing = asyncio.Lock()
        self._may_release = asyncio.Event()
        self._may_release.set()

    def add(self, received: dict[str, Any]) -> SqsMessage:
        message = SqsMessage(received, self._boot(), self._visibility)
        self._messages[message] = None
        return message

    def end(self, message: SqsMessage) -> None:
        """Delete or release a message. All events of the message must have ended."""
        if message.again_after is None:
            self._deletions.put(message)
        else:
            del self._messages[message]
            self._releases.put(message)

    def pause_releases(self) -> None:
        """Release no message until `resume_releases`."""
        self._may_release.clear()

    def resume_releases(self) -> None:
        self._may_release.set()

    async def keep_hidden(self) -> None:
        """Renew the visibility timeouts of all messages until this coroutine is cancelled. Each timeout is renewed when
        between a third and a half of the timeout has passed."""
        while True:
            await asyncio.sleep(self._visibility / 6e6)
            now = self._boot()
            due = [message for message in self._messages if self._is_due(message, now)]
            async with self._changing:
                for start in range(0, len(due), MAX_BATCH):
                    await self._renew(due[start : start + MAX_BATCH])

    async def flush(self, within: float) -> None:
        """Wait until all ended messages are deleted or released, for at most `within` seconds."""
        await asyncio.gather(self._deletions.flush(within), self._releases.flush(within))

    def _is_due(self, message: SqsMessage, now: int) -> bool:
        held = now - message.received_at
        return now - message.renewed_at >= self._visibility / 3 and held < self._max_hold

    async def _renew(self, due: Sequence[SqsMessage]) -> None:
        sent_at, seconds = self._boot(), self._visibility / 1e6
        try:
            failures = await self._threads.call(
                self._client.change_visibility, [(message.handle, seconds) for message in due]
            )
        except QueueError:
            return  # half of the visibility timeout is left, and the next round tries again
        for index, message in enumerate(due):
            if index not in failures:
                message.renew(sent_at, self._visibility)
            elif not failures[index].may_retry:
                message.lose()

    async def _delete(self, messages: Sequence[SqsMessage]) -> dict[int, FailedEntry]:
        return await self._threads.call(self._client.delete, [message.handle for message in messages])

    def _deleted(self, message: SqsMessage, problem: str | None) -> None:
        del self._messages[message]
        if problem is not None:
            _log.warning(
                "message %s was not deleted (%s); it will be delivered again as a duplicate", message.name, problem
            )

    async def _release(self, messages: Sequence[SqsMessage]) -> dict[int, FailedEntry]:
        await self._may_release.wait()
        async with self._changing:
            pauses = [(message.handle, message.again_after or 0) for message in messages]
            return await self._threads.call(self._client.change_visibility, pauses)

    def _released(self, message: SqsMessage, problem: str | None) -> None:
        if problem is not None:
            _log.warning(
                "message %s was not released (%s); it will be delivered again after its visibility timeout",
                message.name,
                problem,
            )
