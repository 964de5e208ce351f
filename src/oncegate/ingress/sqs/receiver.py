"""The receiver polls an SQS queue. It sends more polls at a time while the queue has many messages and the worker has
free slots.

A poll that finds no message stays open and cannot be cancelled. When a worker stops, it releases messages, and its own
open polls would receive these messages again. So long polls are sent only while the worker holds no message.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from oncegate.errors import QueueError
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.options import QueueOptions
from oncegate.ingress.queue_worker import LinkContext
from oncegate.ingress.sqs.client import QueueMissing, SqsClient
from oncegate.ingress.supervision import OutageLogger, wait_out

SHORT_POLL: Final = 1  # seconds


class Receiver:
    """Polls the queue while the dispatcher has room, and calls `take` with the messages of each poll. While the store
    does not answer, no message is received."""

    def __init__(
        self,
        client: SqsClient,
        threads: CallThreads,
        options: QueueOptions,
        context: LinkContext,
        take: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._client = client
        self._threads = threads
        self._options = options
        self._dispatcher = context.dispatcher
        self._take = take
        self._queue_outage = OutageLogger(context.boot)
        self._store_outage = context.store_outage
        self._reserving = asyncio.Lock()
        self._reserved = 0
        self._polls_are_full = asyncio.Event()
        self._abandoned = False

    async def receive(self, stopping: asyncio.Event) -> None:
        """Poll until `stopping` is set. Raises QueueMissing if the queue was deleted."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._options.receivers):
                group.create_task(self._poll_until(stopping, is_helper=number > 0))
            await stopping.wait()
            self._polls_are_full.set()

    def abandon(self) -> None:
        """Stop using the polls that are still open. When such a poll returns, its messages are released at once."""
        self._abandoned = True

    async def _poll_until(self, stopping: asyncio.Event, *, is_helper: bool) -> None:
        """Poll until `stopping` is set. The first receiver always polls. The helpers poll only while polls return full
        batches."""
        while not stopping.is_set():
            if is_helper:
                await self._polls_are_full.wait()
            await wait_out(stopping, self._queue_outage, self._store_outage)
            async with self._reserving:
                await self._dispatcher.room_for(self._reserved + self._options.batch)
                if stopping.is_set():
                    return
                self._reserved += self._options.batch
            try:
                await self._poll(SHORT_POLL if is_helper or self._dispatcher.in_hand else self._options.wait)
            finally:
                self._reserved -= self._options.batch

    async def _poll(self, wait: int) -> None:
        try:
            messages = await self._threads.call(self._poll_in_thread, min(wait, self._options.wait))
        except QueueMissing:
            raise
        except QueueError as error:
            self._polls_are_full.clear()
            self._queue_outage.failed(str(error))
            return
        self._queue_outage.succeeded(f"{self._client.place} answers")
        if len(messages) == self._options.batch:
            self._polls_are_full.set()
        else:
            self._polls_are_full.clear()
        self._take(messages)

    def _poll_in_thread(self, wait: int) -> list[dict[str, Any]]:
        messages = self._client.receive(self._options.batch, wait)
        if self._abandoned and messages:
            with suppress(QueueError):
                self._client.change_visibility([(message["ReceiptHandle"], 0) for message in messages])
        return messages
