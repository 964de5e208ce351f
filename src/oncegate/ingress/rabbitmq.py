"""The worker of a RabbitMQ queue.

RabbitMQ cannot deliver a message again after a delay. So a message that waits for its next delivery stays with the
worker, unacknowledged, and is returned to the queue when its pause ends. A retry queue with a TTL was rejected: it
needs the right to create queues, and a copy of the message starts with a new delivery count. Waiting messages would
fill the prefetch of the consumer. RabbitMQ counts the prefetch for each consumer, so the link replaces its consumer
before it is full.

Only a quorum queue counts deliveries, and AMQP does not show whether a queue has a dead-letter exchange. So the gate
counts the attempts, unless the URL has `dead_letters=queue`.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from oncegate.buses.rabbitmq import (
    FAILURES,
    RabbitAddress,
    answer_of,
    checked_name,
    connect,
    error_text,
    login_of,
    read_address,
)
from oncegate.carriers.buses import BusMessage
from oncegate.errors import MissingExtra, QueueError, SettingError
from oncegate.events import Evidence
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.ingress.messages import Message
from oncegate.ingress.options import QueueOptions
from oncegate.ingress.queue_worker import LinkContext, QueueWorker
from oncegate.ingress.supervision import OutageLogger, wait_out
from oncegate.ingress.worker import Worker, WorkerContext
from oncegate.text import not_a_choice

try:
    from aio_pika import Connection
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
    from aio_pika.exceptions import ChannelClosed, ChannelNotFoundEntity, ChannelPreconditionFailed
    from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource
except ImportError as _error:
    raise MissingExtra("a worker of a RabbitMQ queue", "rabbitmq") from _error

_log: Final = logging.getLogger("oncegate.work")
_USE: Final = "write 'amqp://HOST:PORT/QUEUE'"
_COUNTERS: Final = ("gate", "queue")
_LARGEST_PREFETCH: Final = 65_535
_MOST_WAITING: Final = 10  # times in_hand: the messages that wait for their next delivery
_STOP_WITHIN: Final = 6.0  # seconds, for an attempt to connect that has begun
_LONGEST_PAUSE: Final = 300.0  # seconds; RabbitMQ closes a channel that has held a message for 30 minutes


# ── address ───────────────────────────────────────────────────────────────────────────────────────────────


class WorkedQueue(Struct, frozen=True):
    """A queue. `counts_attempts`: the queue counts deliveries and has a dead-letter exchange."""

    at: RabbitAddress
    counts_attempts: bool

    @property
    def place(self) -> str:
        """The name of the queue, for messages to people."""
        return f"the RabbitMQ queue {self.at.queue}"


def read_queue(url: str) -> WorkedQueue:
    """Parse `amqp://HOST:PORT/QUEUE?…`, and check the files that it names. Raises SettingError."""
    address = read_address(url, ("dead_letters",), _USE)
    checked_name(address.queue, "queue", _USE)
    counter = address.options.get("dead_letters", _COUNTERS[0])
    if counter not in _COUNTERS:
        raise SettingError(not_a_choice("dead_letters", counter, _COUNTERS))
    login_of(address)
    return WorkedQueue(address, counter == "queue")


def queue_counts_attempts(url: str) -> bool:
    return read_queue(url).counts_attempts


# ── set-ups that would lose events ────────────────────────────────────────────────────────────────────────

_DIFFERENCE: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue .*"
    r" but current is (none|(the value )?'(?P<value>.*?)'( of type '(?P<type>\w+)')?)$",
    re.DOTALL,
)
_WHOLE: Final = re.compile(r"-?\d+")
_MOST_ARGUMENTS: Final = 30
_LIMIT_SINCE: Final = 4  # the first version in which a quorum queue has a delivery limit by default
_DEFAULT_LIMIT: Final = 20


async def read_arguments(connection: Connection, queue: str) -> dict[str, Any] | None:
    """Returns the arguments of a queue that exists. AMQP has no request for them. But RabbitMQ refuses to declare a
    queue again with other arguments, and names one difference. So the declaration is repeated until it fits.

    `durable` or `auto_delete` is in the result if it is not that of a durable queue. Arguments that a policy sets are
    not known. Returns None if the user may not declare the queue, or if an answer is not understood."""
    found: dict[str, Any] = {"x-queue-type": "quorum"}
    for _ in range(_MOST_ARGUMENTS):
        channel = connection.channel(publisher_confirms=False)
        await answer_of(channel.initialize())
        try:
            await answer_of(channel.declare_queue(queue, durable=True, arguments=found))
        except ChannelAccessRefused:
            return None
        except ChannelPreconditionFailed as error:
            difference = _DIFFERENCE.search(str(error))
            if difference is None:
                return None
            name = difference["name"]
            if not name.startswith("x-"):
                return {name: difference["value"]}
            found[name] = _value_of(difference)
            if found[name] is None:
                del found[name]
        else:
            return found
    return None


def _value_of(difference: re.Match[str]) -> Any:
    kind, value = difference["type"], difference["value"]
    if kind == "bool":
        return value == "true"
    return int(value) if value is not None and kind not in (None, "longstr") and _WHOLE.fullmatch(value) else value


def version_of(connection: Connection) -> str:
    """The version of the server, such as 3.10.8."""
    assert connection.transport is not None  # noqa: S101  # it is connected
    properties = connection.transport.connection.server_properties or {}
    return str(properties.get("version", ""))


def problem_of(arguments: dict[str, Any], version: str, *, counts_attempts: bool) -> str | None:
    """Says why a worker of a queue with these arguments could lose events; None if there is no such reason."""
    if "durable" in arguments:
        return "is not durable, so it loses its messages when RabbitMQ restarts; use a durable queue"
    if "auto_delete" in arguments:
        return "is deleted with its messages when the worker stops (auto-delete); use a queue without auto-delete"
    kind = arguments.get("x-queue-type", "classic")
    if kind not in ("quorum", "classic"):
        return f"is a {kind}, which cannot deliver a message again; use a quorum queue"
    if kind == "classic":
        unlimited = "does not count deliveries, so a failing message would be delivered without end; use a quorum queue"
        return f"{unlimited}, or remove dead_letters=queue from the URL" if counts_attempts else None
    limit = _delivery_limit(arguments, version)
    if counts_attempts or limit is None or "x-dead-letter-exchange" in arguments:
        return None
    return (
        f"drops a message that is returned more than {limit} times, so an event could be lost; give it a dead-letter"
        " exchange, or, if a policy sets one, add dead_letters=queue to the URL"
    )


def _delivery_limit(arguments: dict[str, Any], version: str) -> int | None:
    """How often a message may be returned to a quorum queue. Since RabbitMQ 4 there is a default, and -1 turns it off.
    Before, -1 is a limit like 0."""
    major = version.partition(".")[0]
    is_new = major.isdecimal() and int(major) >= _LIMIT_SINCE
    limit = arguments.get("x-delivery-limit", _DEFAULT_LIMIT if is_new else None)
    if limit is None or (is_new and limit < 0):
        return None
    return max(0, int(limit))


# ── the link ──────────────────────────────────────────────────────────────────────────────────────────────


def rabbit_worker(url: str, handler: AsyncHandler | Handler, options: QueueOptions, context: WorkerContext) -> Worker:
    queue = read_queue(url)

    def open_link(link_context: LinkContext) -> RabbitLink:
        return RabbitLink(queue, options, link_context)

    return QueueWorker(open_link, handler, context, in_hand=options.in_hand, drain=options.drain)


class RabbitMessage(Message):
    """A message, and the channel on which it must be acknowledged. If the channel is lost, RabbitMQ delivers the
    message again. Quorum queues count the deliveries. Other queues only mark a message that was delivered before."""

    __slots__ = ("channel", "delivery")

    def __init__(self, delivery: AbstractIncomingMessage, channel: AbstractChannel) -> None:
        returned = delivery.headers.get("x-delivery-count")
        if not isinstance(returned, int) or returned < 0:
            returned = 1 if delivery.redelivered else 0
        super().__init__(delivery.message_id or f"number {delivery.delivery_tag}", returned + 1)
        self.delivery = delivery
        self.channel = channel

    def may_start(self, now: int) -> bool:  # noqa: ARG002  # a message is lost with its channel, at no known time
        return not self.channel.is_closed

    @property
    def content(self) -> BusMessage:
        headers = dict(self.delivery.headers)
        if self.delivery.content_type:
            headers.setdefault("content-type", self.delivery.content_type)
        evidence = Evidence(
            message_id=self.delivery.message_id, receive_count=self.receives, sent_at=self.delivery.timestamp
        )
        return BusMessage(self.delivery.body, headers, evidence)


class Consumer:
    """A consumer on a connection of its own. `take` is called with each message, and `lost` with the reason when the
    consumer or its channel has ended. A connection that is lost stays lost."""

    def __init__(
        self, queue: WorkedQueue, prefetch: int, take: Callable[[RabbitMessage], None], lost: Callable[[str], None]
    ) -> None:
        self._worked = queue
        self._prefetch = prefetch
        self._take = take
        self._lost = lost
        self._connection: Connection | None = None
        self._has_ended = False
        self.tag = ""
        self.is_open = False

    async def open(self) -> None:
        """Connect and consume. Raises one of FAILURES."""
        self._connection = await connect(self._worked.at)
        self._channel = self._connection.channel(publisher_confirms=False)
        await answer_of(self._channel.initialize())
        await answer_of(self._channel.set_qos(prefetch_count=self._prefetch))
        self._channel.close_callbacks.add(self._closed)
        underlay = await self._channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(self._cancelled)
        self._queue: AbstractQueue = await answer_of(self._channel.get_queue(self._worked.at.queue))
        self.tag = await answer_of(self._queue.consume(self._deliver))
        if self._has_ended:  # since the answer
            raise ConnectionError("the connection is lost")
        self.is_open = True

    async def replace(self) -> None:
        """Consume with a new prefetch. The messages of the previous consumer stay unacknowledged on the channel."""
        await self.cancel()
        self.tag = await answer_of(self._queue.consume(self._deliver))

    async def cancel(self) -> None:
        await answer_of(self._queue.cancel(self.tag))

    async def close(self) -> None:
        self.is_open = False
        if self._connection is not None:
            with suppress(*FAILURES):
                await answer_of(self._connection.close())

    async def _deliver(self, delivery: AbstractIncomingMessage) -> None:
        self._take(RabbitMessage(delivery, self._channel))

    def _closed(self, _channel: Any, reason: BaseException | None) -> None:
        said = f" ({error_text(reason)})" if isinstance(reason, ChannelClosed) else ""
        self._end(f"the connection to RabbitMQ at {self._worked.at.server} is lost{said}")

    def _cancelled(self, _frame: Any) -> None:
        self._end(f"RabbitMQ has ended the delivery from {self._worked.place}")

    def _end(self, reason: str) -> None:
        self._has_ended = True
        if self.is_open:
            self.is_open = False
            self._lost(reason)


def _is_no_queue(error: BaseException) -> bool:
    """Whether the queue does not exist. RabbitMQ gives the same code for a queue whose node is down."""
    return isinstance(error, ChannelNotFoundEntity) and "no queue" in str(error)


class RabbitLink:
    """Implements `oncegate.ingress.queue_worker.QueueLink`."""

    in_groups = False
    longest_pause = _LONGEST_PAUSE

    def __init__(self, queue: WorkedQueue, options: QueueOptions, context: LinkContext) -> None:
        self.has_dead_letters = queue.counts_attempts
        self._worked = queue
        self._context = context
        self._in_hand = min(options.in_hand, _LARGEST_PREFETCH)
        self._outage = OutageLogger(context.boot)
        self._arrived: asyncio.Queue[RabbitMessage | None] = asyncio.Queue()  # None wakes `receive`
        self._waiting: dict[RabbitMessage, asyncio.TimerHandle] = {}
        self._waiting_of: Counter[str | None] = Counter()  # by the tag of the consumer
        self._may_return = asyncio.Event()
        self._may_return.set()
        self._sending: set[asyncio.Task[None]] = set()
        self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer:
        return Consumer(self._worked, self._in_hand, self._arrived.put_nowait, self._lost)

    async def open(self) -> None:
        """Connect, and refuse a queue that does not exist or could lose events."""
        place, at = self._worked.place, self._worked.at
        try:
            await self._check()
            await self._consumer.open()
        except ChannelLockedResource as error:
            raise QueueError(
                f"{place} is exclusive to another connection; use a queue that is not exclusive"
            ) from error
        except FAILURES as error:
            if _is_no_queue(error):
                raise QueueError(
                    f"{place} does not exist in the virtual host {at.vhost}; create a durable quorum queue with this"
                    " name"
                ) from error
            raise QueueError(
                f"{place} cannot be used at {at.server}: {error_text(error)}; check that the server runs, and the"
                " address and the user in the URL"
            ) from error

    async def _check(self) -> None:
        """Raises QueueError if the queue could lose events, and one of FAILURES if it cannot be used."""
        place, name = self._worked.place, self._worked.at.queue
        connection = await connect(self._worked.at)
        try:
            channel = connection.channel(publisher_confirms=False)
            await answer_of(channel.initialize())
            await answer_of(channel.get_queue(name))  # to read the arguments of a missing queue would create it
            arguments, version = await read_arguments(connection, name), version_of(connection)
        finally:
            await connection.close()
        if arguments is None:
            _log.warning(
                "the arguments of %s cannot be read (the user may have no right to configure it); make sure that it is"
                " durable, and that it has no delivery limit without a dead-letter exchange",
                place,
            )
            return
        if (problem := problem_of(arguments, version, counts_attempts=self._worked.counts_attempts)) is not None:
            raise QueueError(f"{place} {problem}")

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────

    async def receive(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await wait_out(stopping, self._outage, self._context.store_outage)
            await self._keep_consuming()
            await self._context.dispatcher.room_for(1)
            if stopping.is_set():
                return
            message = await self._arrived.get()
            if message is not None and message.may_start(self._context.boot()):
                self._context.take(message, message.content)

    async def _keep_consuming(self) -> None:
        """Connect again if the connection is lost. Replace the consumer if waiting messages fill half of its prefetch.
        Raises QueueError if the queue was deleted."""
        place = self._worked.place
        try:
            if not self._consumer.is_open:
                await self._consumer.close()
                self._consumer = self._new_consumer()
                await self._consumer.open()
                self._outage.succeeded(f"{place} answers")
            elif self._is_crowded:
                await self._consumer.replace()
        except FAILURES as error:
            self._consumer.is_open = False
            if _is_no_queue(error):
                raise QueueError(f"{place} was deleted") from error
            self._lost(f"{place} does not answer ({error_text(error)})")

    @property
    def _is_crowded(self) -> bool:
        if len(self._waiting) > _MOST_WAITING * self._in_hand:
            return False
        return 2 * self._waiting_of[self._consumer.tag] >= self._in_hand

    def _lost(self, reason: str) -> None:
        self._outage.failed(reason)
        self._wake()

    def _wake(self) -> None:
        self._arrived.put_nowait(None)

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────

    async def hold(self) -> None:
        """RabbitMQ keeps a message from other workers until its channel is closed."""
        await asyncio.Event().wait()

    def end(self, message: Message) -> None:
        assert isinstance(message, RabbitMessage)  # noqa: S101  # the link has made it
        if not message.again_after or not self._consumer.is_open or message.channel.is_closed:
            self._settle(message)
            return
        self._waiting[message] = asyncio.get_running_loop().call_later(message.again_after, self._settle, message)
        self._waiting_of[message.delivery.consumer_tag] += 1
        if self._is_crowded:
            self._wake()

    def _settle(self, message: RabbitMessage) -> None:
        if (timer := self._waiting.pop(message, None)) is not None:
            timer.cancel()
            self._waiting_of[message.delivery.consumer_tag] -= 1
        if not message.channel.is_closed:
            task = asyncio.create_task(self._send(message))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, message: RabbitMessage) -> None:
        """Acknowledge the message, or return it. If this fails, the channel is given up, and RabbitMQ delivers the
        message again."""
        try:
            if message.again_after is None:
                await answer_of(message.delivery.ack())
            else:
                await self._may_return.wait()
                await answer_of(message.delivery.nack(requeue=True))
        except FAILURES as error:
            if not message.channel.is_closed:  # the message must not stay unacknowledged on a channel that is used
                self._consumer.is_open = False
                self._lost(f"{self._worked.place} does not answer ({error_text(error)})")

    async def end_receiving(self, receiving: asyncio.Task[None]) -> None:
        """Cancel the consumer, and then return the messages that wait or have not started. Before that, RabbitMQ would
        deliver a returned message to this worker again."""
        self._may_return.clear()
        self._wake()
        await asyncio.wait([receiving], timeout=_STOP_WITHIN)
        with suppress(*FAILURES):
            if self._consumer.is_open:
                await self._consumer.cancel()
        self._consumer.is_open = False
        self._may_return.set()
        while not self._arrived.empty():
            if (unstarted := self._arrived.get_nowait()) is not None:
                unstarted.again_after = 0
                self._settle(unstarted)
        for message in list(self._waiting):
            self._settle(message)

    async def flush(self, within: float) -> None:
        if self._sending:
            await asyncio.wait(self._sending, timeout=within)

    async def close(self) -> None:
        await self._consumer.close()
