"""This module holds the SQS messages that a worker has received, and their events."""

import asyncio
import logging
from collections.abc import Hashable, Sequence
from typing import Any, Final

from oncegate.backoff import pause_after
from oncegate.carriers.pieces import whole, within
from oncegate.clocks import Clock
from oncegate.errors import QueueError
from oncegate.events import Event
from oncegate.gate.job import Identified, Job
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.sqs.client import MAX_BATCH, BatchSender, FailedEntry, SqsClient
from oncegate.times import microseconds_of

_FIRST_PAUSE: Final = 1  # seconds
_LONGEST_PAUSE: Final = 300
_log: Final = logging.getLogger("oncegate.work")


class Message:
    """One received message. Times are in microseconds of the boot clock.

    The message is deleted when all its events are acknowledged. If an event is not acknowledged, `again_after` is the
    number of seconds after which the message becomes visible again.
    """

    __slots__ = (
        "again_after",
        "handle",
        "name",
        "received_at",
        "receives",
        "renewed_at",
        "unfinished",
        "visible_until",
    )

    def __init__(self, received: dict[str, Any], now: int, visibility: int) -> None:
        self.handle: str = received["ReceiptHandle"]
        self.name: str = received.get("MessageId", "")
        self.receives = whole(within(received, "Attributes", "ApproximateReceiveCount")) or 1
        self.received_at = now
        self.unfinished = 0  # the number of events that have not ended
        self.again_after: float | None = None
        self.renew(now, visibility)

    def renew(self, now: int, visibility: int) -> None:
        self.renewed_at = now
        self.visible_until = now + visibility

    def lose(self) -> None:
        """Record that another worker may receive the message now. No event of the message may start here any more."""
        self.visible_until = 0

    @property
    def pause(self) -> float:
        """The seconds before the next delivery after a failure. The pause doubles with each receive."""
        return pause_after(self.receives, _FIRST_PAUSE, _LONGEST_PAUSE)


class MessageEvent:
    """One event of a message, with the lane in which it runs and its order within the lane."""

    __slots__ = ("checks", "event", "item", "lane", "message", "order", "ran")

    def __init__(self, message: Message, event: Event, item: Identified, *, fifo: bool) -> None:
        self.message = message
        self.event = event
        self.item = item
        self.ran = False
        self.checks = 0  # how often the event was in flight because its publisher had not completed it yet
        self.lane = ("group", event.evidence.group) if fifo else _lane(event, item)
        self.order = 0 if fifo else _order(event)

    @property
    def started(self) -> bool:
        """Whether the handler has started."""
        return isinstance(self.item, Job) and self.item.started


def _lane(event: Event, item: Identified) -> Hashable | None:
    """Returns the lane of an event. Events of the same entity share a lane. Events without an entity share a lane if
    they have the same key, so that a later copy finds the first copy completed."""
    if not isinstance(item, Job):
        return None
    return ("key", item.carried or item.key.digest) if event.entity is None else ("entity", event.source, event.entity)


def _order(event: Event) -> int:
    """Returns the time at which the event occurred, in microseconds. If this time is not known, returns the time at
    which the message was sent."""
    at = event.occurred_at or event.evidence.sent_at
    return 0 if at is None else microseconds_of(at)


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
        self._messages: dict[Message, None] = {}
        self._deletions = BatchSender(self._delete, self._deleted)
        self._releases = BatchSender(self._release, self._released)
        # If a message were renewed and released at the same time, it could stay hidden.
        self._changing = asyncio.Lock()
        self._may_release = asyncio.Event()
        self._may_release.set()

    def add(self, received: dict[str, Any]) -> Message:
        message = Message(received, self._boot(), self._visibility)
        self._messages[message] = None
        return message

    def end(self, message: Message) -> None:
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

    def _is_due(self, message: Message, now: int) -> bool:
        held = now - message.received_at
        return now - message.renewed_at >= self._visibility / 3 and held < self._max_hold

    async def _renew(self, due: Sequence[Message]) -> None:
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

    async def _delete(self, messages: Sequence[Message]) -> dict[int, FailedEntry]:
        return await self._threads.call(self._client.delete, [message.handle for message in messages])

    def _deleted(self, message: Message, problem: str | None) -> None:
        del self._messages[message]
        if problem is not None:
            _log.warning(
                "message %s was not deleted (%s); it will be delivered again as a duplicate", message.name, problem
            )

    async def _release(self, messages: Sequence[Message]) -> dict[int, FailedEntry]:
        await self._may_release.wait()
        async with self._changing:
            pauses = [(message.handle, message.again_after or 0) for message in messages]
            return await self._threads.call(self._client.change_visibility, pauses)

    def _released(self, message: Message, problem: str | None) -> None:
        if problem is not None:
            _log.warning(
                "message %s was not released (%s); it will be delivered again after its visibility timeout",
                message.name,
                problem,
            )
