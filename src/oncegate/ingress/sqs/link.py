"""The link of a worker to an SQS queue.

A worker of SQS does not bury events. SQS counts the receives of a message, and moves messages that always fail to the
dead-letter queue.
"""

import asyncio
import logging
from typing import Any, Final

from oncegate.durations import spoken
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.options import outlasts_lease
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.messages import Message
from oncegate.ingress.options import QueueOptions
from oncegate.ingress.queue_worker import LinkContext, QueueWorker
from oncegate.ingress.sqs.client import QueueAddress, SqsClient, read_address
from oncegate.ingress.sqs.messages import InFlightMessages, SqsMessage
from oncegate.ingress.sqs.receiver import SHORT_POLL, Receiver
from oncegate.ingress.worker import Worker, WorkerContext

_log: Final = logging.getLogger("oncegate.work")
_SENDER_THREADS: Final = 4
_LAST_POLL: Final = SHORT_POLL + 0.5  # seconds that the worker waits for open polls when it stops


def sqs_worker(queue: str, handler: AsyncHandler | Handler, options: QueueOptions, context: WorkerContext) -> Worker:
    address = read_address(queue)

    def open_link(link_context: LinkContext) -> SqsLink:
        return SqsLink(address, options, link_context)

    return QueueWorker(open_link, handler, context, in_hand=options.in_hand, drain=options.drain)


class SqsLink:
    """Implements `oncegate.ingress.queue_worker.QueueLink`."""

    has_dead_letters = True
    longest_pause = 12 * 3_600 - 60.0  # seconds; SQS hides a message for at most 12 hours after its receipt

    def __init__(self, address: QueueAddress, options: QueueOptions, context: LinkContext) -> None:
        self.in_groups = address.fifo
        self._options = options
        self._lease = context.config.lease
        threads = options.receivers + _SENDER_THREADS
        self._client = SqsClient(address, wait=options.wait, visibility=options.visibility, connections=threads)
        self._threads = CallThreads("oncegate-sqs", threads)
        self._take = context.take
        self._messages = InFlightMessages(
            self._client,
            self._threads,
            context.boot,
            visibility=options.visibility * 1_000_000,
            max_hold=context.config.max_hold,
        )
        self._receiver = Receiver(self._client, self._threads, options, context, self._take_all)

    async def open(self) -> None:
        if not await self._threads.call(self._client.open):
            _log.warning(
                "%s has no redrive policy: a message that always fails is delivered without end; set a dead-letter"
                " queue",
                self._client.place,
            )
        visibility = self._options.visibility
        if not outlasts_lease(visibility * 1_000_000, self._lease):
            _log.warning(
                "visibility (%d s) is shorter than the lease (%s): after a crash a message is delivered again before"
                " its claim can be acquired, and each such receive counts towards the dead-letter queue; set visibility"
                " to at least the lease",
                visibility,
                spoken(self._lease),
            )

    async def receive(self, stopping: asyncio.Event) -> None:
        await self._receiver.receive(stopping)

    def _take_all(self, received: list[dict[str, Any]]) -> None:
        for each in received:
            self._take(self._messages.add(each), each)

    async def hold(self) -> None:
        await self._messages.keep_hidden()

    def end(self, message: Message) -> None:
        assert isinstance(message, SqsMessage)  # noqa: S101  # the link has made it
        self._messages.end(message)

    async def end_receiving(self, receiving: asyncio.Task[None]) -> None:
        """Wait a short time for the open polls to end. Until then no message is released, because an open poll would
        receive it again."""
        self._messages.pause_releases()
        await asyncio.wait([receiving], timeout=_LAST_POLL)
        self._messages.resume_releases()

    async def flush(self, within: float) -> None:
        self._receiver.abandon()
        await self._messages.flush(within)

    async def close(self) -> None:
        self._threads.close()
        self._client.close()
