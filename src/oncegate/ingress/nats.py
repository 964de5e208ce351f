"""The worker of a NATS JetStream consumer.

NATS has no dead-letter queue. So a failing event becomes a dead letter of the gate after `max_attempts`, and an invalid
event becomes one at once; both are then acknowledged. A consumer that stops delivering a message after some attempts
would lose it, so such a consumer is refused.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from oncegate.buses.nats import FAILURES, NatsAddress, checked_name, connect, connect_options, error_text, read_address
from oncegate.carriers.buses import BusMessage
from oncegate.durations import spoken
from oncegate.errors import MissingExtra, QueueError
from oncegate.events import Evidence
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.options import outlasts_lease
from oncegate.ingress.messages import Message
from oncegate.ingress.options import QueueOptions
from oncegate.ingress.queue_worker import LinkContext, QueueWorker
from oncegate.ingress.supervision import OutageLogger, wait_out
from oncegate.ingress.worker import Worker, WorkerContext

try:
    from nats.aio.msg import Msg
    from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo
    from nats.js.errors import APIError, NotFoundError
except ImportError as _error:
    raise MissingExtra("a worker of a NATS stream", "nats") from _error

_log: Final = logging.getLogger("oncegate.work")
_USE: Final = "write 'nats://HOST:PORT/STREAM?consumer=NAME'"
_POLL: Final = 1.0  # seconds; a worker that stops waits for the open request
_AWAY_CHECK: Final = 0.1
_ANSWER_WITHIN: Final = 5.0


# ── address ───────────────────────────────────────────────────────────────────────────────────────────────


class ConsumerAddress(Struct, frozen=True):
    """A consumer of a stream."""

    at: NatsAddress
    consumer: str

    @property
    def place(self) -> str:
        """The names of the consumer and the stream, for messages to people."""
        return f"the consumer {self.consumer} of the NATS stream {self.at.stream}"


def read_consumer(url: str) -> ConsumerAddress:
    """Parse `nats://HOST:PORT/STREAM?consumer=NAME`, and check the files that it names. Raises SettingError."""
    address = read_address(url, ("consumer",), _USE)
    connect_options(address)
    return ConsumerAddress(address, checked_name(address.options.get("consumer", ""), "consumer", _USE))


# ── the link ──────────────────────────────────────────────────────────────────────────────────────────────


def nats_worker(url: str, handler: AsyncHandler | Handler, options: QueueOptions, context: WorkerContext) -> Worker:
    address = read_consumer(url)

    def open_link(link_context: LinkContext) -> NatsLink:
        return NatsLink(address, options, link_context)

    return QueueWorker(open_link, handler, context, in_hand=options.in_hand, drain=options.drain)


class NatsMessage(Message):
    """A message of a stream. NATS delivers it again if it is not acknowledged or renewed for `ack_wait`. Times are in
    microseconds of the boot clock."""

    __slots__ = ("delivery", "received_at", "waits_until")

    def __init__(self, delivery: Msg, now: int, ack_wait: int) -> None:
        data = delivery.metadata
        super().__init__(f"{data.stream}:{data.sequence.stream}", data.num_delivered or 1)
        self.delivery = delivery
        self.received_at = now
        self.waits_until = now + ack_wait

    def may_start(self, now: int) -> bool:
        return now < self.waits_until

    @property
    def content(self) -> BusMessage:
        headers = self.delivery.headers or {}
        evidence = Evidence(
            message_id=headers.get("Nats-Msg-Id") or self.name,
            receive_count=self.receives,
            sent_at=self.delivery.metadata.timestamp,
        )
        return BusMessage(self.delivery.data, headers, evidence)


class NatsLink:
    """Implements `oncegate.ingress.queue_worker.QueueLink`."""

    in_groups = False
    has_dead_letters = False
    longest_pause = 12 * 3_600.0  # seconds

    def __init__(self, address: ConsumerAddress, options: QueueOptions, context: LinkContext) -> None:
        self._address = address
        self._options = options
        self._context = context
        self._outage = OutageLogger(context.boot)
        self._ack_wait = options.visibility * 1_000_000
        self._connection: Any = None
        self._messages: dict[NatsMessage, None] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect, and create the consumer if it does not exist."""
        try:
            self._connection = await connect(
                self._address.at, disconnected_cb=self._disconnected, reconnected_cb=self._reconnected
            )
            self._requests = self._connection.jetstream(timeout=_ANSWER_WITHIN)
            self._check(await self._consumer())
            self._subscription = await self._requests.pull_subscribe_bind(
                consumer=self._address.consumer, stream=self._address.at.stream
            )
        except NotFoundError as error:
            raise QueueError(f"the NATS stream {self._address.at.stream} does not exist; create it first") from error
        except FAILURES as error:
            raise QueueError(
                f"{self._address.place} cannot be used at {self._address.at.server}: {error_text(error)}; check that"
                " the server runs, and the address and the user in the URL"
            ) from error

    async def _consumer(self) -> ConsumerInfo:
        try:
            found: ConsumerInfo = await self._requests.consumer_info(self._address.at.stream, self._address.consumer)
        except NotFoundError:
            config = ConsumerConfig(
                durable_name=self._address.consumer,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self._options.visibility,
                max_deliver=-1,
                max_ack_pending=max(1_000, 2 * self._options.in_hand),
            )
            found = await self._requests.add_consumer(self._address.at.stream, config)
        return found

    def _check(self, info: ConsumerInfo) -> None:
        config, place = info.config, self._address.place
        if config.deliver_subject:
            raise QueueError(f"{place} pushes messages; use a pull consumer")
        if config.headers_only:
            raise QueueError(f"{place} delivers messages without their bodies; set its headers_only to false")
        if config.ack_policy != AckPolicy.EXPLICIT:
            raise QueueError(f"{place} has the ack policy {config.ack_policy}; set it to explicit")
        if (config.max_deliver or -1) > 0:
            raise QueueError(
                f"{place} delivers a message only {config.max_deliver} times and then never again, so an event"
                " could be lost; set its max_deliver to -1 (the gate counts the attempts: max_attempts)"
            )
        self._ack_wait = int((config.ack_wait or 30) * 1_000_000)
        lease = self._context.config.lease
        if not outlasts_lease(self._ack_wait, lease):
            _log.warning(
                "ack_wait of %s (%s) is shorter than the lease (%s): after a crash a message is delivered again before"
                " its claim can be acquired; set ack_wait to at least the lease",
                place,
                spoken(self._ack_wait),
                spoken(lease),
            )

    # ── receiving ─────────────────────────────────────────────────────────────────────────────────────────

    async def receive(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await wait_out(stopping, self._outage, self._context.store_outage)
            if self._connection.is_closed:
                raise QueueError(
                    f"the NATS server at {self._address.at.server} has ended the connection"
                    f" ({error_text(self._connection.last_error)}); check the user and its permissions"
                )
            if self._is_away:  # the client would keep the request, and send it together with later ones
                await asyncio.sleep(_AWAY_CHECK)
                continue
            room = await self._context.dispatcher.room_for(1)
            if stopping.is_set():
                return
            for delivery in await self._fetch(min(self._options.batch, room)):
                message = NatsMessage(delivery, self._context.boot(), self._ack_wait)
                self._messages[message] = None
                self._context.take(message, message.content)

    async def _fetch(self, count: int) -> list[Msg]:
        try:
            found: list[Msg] = await self._subscription.fetch(count, timeout=min(self._options.wait, _POLL))
        except TimeoutError:
            found = []  # there is no message, or the connection is lost, which `_disconnected` has logged
        except APIError as error:
            await self._raise_if_missing(error)
            self._outage.failed(f"{self._address.place} does not answer ({error_text(error)})")
            return []
        except FAILURES as error:
            self._outage.failed(f"{self._address.place} does not answer ({error_text(error)})")
            return []
        if self._connection.is_connected:
            self._outage.succeeded(f"{self._address.place} answers")
        return found

    async def _raise_if_missing(self, error: APIError) -> None:
        """Raise QueueError if the consumer or its stream was deleted."""
        try:
            await self._requests.consumer_info(self._address.at.stream, self._address.consumer)
        except NotFoundError:
            raise QueueError(f"{self._address.place} was deleted") from error
        except FAILURES:
            return

    @property
    def _is_away(self) -> bool:
        """Whether the client is connecting again. It would keep what is sent now until it is connected."""
        return not (self._connection.is_connected or self._connection.is_closed)

    async def _disconnected(self) -> None:
        if self._connection is not None and not self._connection.is_closed:
            self._outage.failed(f"the connection to NATS at {self._address.at.server} is lost")

    async def _reconnected(self) -> None:
        self._outage.succeeded(f"{self._address.place} answers")

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────

    async def hold(self) -> None:
        """Renew all messages when a third of `ack_wait` has passed, for at most `max_hold`."""
        while True:
            await asyncio.sleep(self._ack_wait / 3e6)
            now = self._context.boot()
            if self._is_away:
                continue
            for message in list(self._messages):
                if now - message.received_at < self._context.config.max_hold:
                    with suppress(*FAILURES):
                        await message.delivery.in_progress()
                        message.waits_until = now + self._ack_wait

    def end(self, message: Message) -> None:
        assert isinstance(message, NatsMessage)  # noqa: S101  # the link has made it
        self._messages.pop(message, None)
        task = asyncio.create_task(self._send(message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, message: NatsMessage) -> None:
        """Acknowledge the message, or return it. If this fails, NATS delivers the message again after `ack_wait`."""
        try:
            if message.again_after is None:
                await message.delivery.ack()
            else:
                await message.delivery.nak(delay=message.again_after or None)
        except FAILURES as error:
            _log.warning(
                "message %s was not acknowledged (%s); it will be delivered again", message.name, error_text(error)
            )

    async def end_receiving(self, receiving: asyncio.Task[None]) -> None:
        await asyncio.wait([receiving], timeout=2 * _POLL)

    async def flush(self, within: float) -> None:
        if self._sending:
            await asyncio.wait(self._sending, timeout=within)
        if self._connection.is_connected:
            with suppress(*FAILURES):
                await self._connection.flush(timeout=max(1, int(within)))

    async def close(self) -> None:
        if self._connection is not None:
            with suppress(*FAILURES):
                await self._connection.close()
