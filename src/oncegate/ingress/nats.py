"""The worker of a NATS JetStream consumer.

NATS has no dead-letter queue. So a failing event becomes a dead letter of the gate after `max_attempts`, and an invalid
event becomes one at once; both are then acknowledged. A consumer that stops delivering a message after some attempts
would lose it, so such a consumer is refused.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from oncegate.carriers.buses import BusMessage
from oncegate.durations import spoken
from oncegate.errors import MissingExtra, QueueError, SettingError
from oncegate.events import Evidence
from oncegate.gate.handlers import AsyncHandler, Handler
from oncegate.gate.options import outlasts_lease
from oncegate.ingress.messages import Message
from oncegate.ingress.options import QueueOptions
from oncegate.ingress.queue_worker import LinkContext, QueueWorker
from oncegate.ingress.supervision import OutageLogger
from oncegate.ingress.worker import Worker, WorkerContext
from oncegate.text import quoted

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError
    from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo
    from nats.js.errors import APIError, NotFoundError
except ImportError as _error:
    raise MissingExtra("a worker of a NATS stream", "nats") from _error

_log: Final = logging.getLogger("oncegate.work")
_OPTIONS: Final = ("consumer", "credentials", "token_file", "ca", "certificate", "certificate_key")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_USE: Final = "write 'nats://HOST:PORT/STREAM?consumer=NAME'"
_PORT: Final = 4222
_POLL: Final = 1.0  # seconds; a worker that stops waits for the open request
_CONNECT_WITHIN: Final = 5.0
_FAILURES: Final = (NatsError, OSError, TimeoutError)


# ── address ───────────────────────────────────────────────────────────────────────────────────────────────


class NatsAddress(Struct, frozen=True):
    """A stream and a consumer on a server. Secrets come from the URL or from files."""

    server: str
    stream: str
    consumer: str
    is_encrypted: bool
    user: str | None = None
    password: str | None = None
    options: Mapping[str, str] = {}

    @property
    def place(self) -> str:
        """The names of the consumer and the stream, for messages to people."""
        return f"the consumer {self.consumer} of the NATS stream {self.stream}"


def read_address(url: str) -> NatsAddress:
    """Parse `nats://HOST:PORT/STREAM?consumer=NAME`. `nats+tls://` uses TLS. Raises SettingError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORT
    except ValueError as error:
        raise SettingError(f"the URL of the NATS stream is not valid: {error}; {_USE}") from error
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise SettingError(f"unknown option {unknown[0]!r} in a NATS URL; use {', '.join(_OPTIONS)}")
    stream, consumer = parts.path.removeprefix("/"), options.get("consumer", "")
    if not host:
        raise SettingError(f"the URL of the NATS stream has no host; {_USE}")
    for name, value in (("stream", stream), ("consumer", consumer)):
        if not _NAME.fullmatch(value):
            raise SettingError(f"{quoted(value)} is not the name of a NATS {name}; {_USE}")
    return NatsAddress(
        server=f"{host}:{port}" if ":" not in host else f"[{host}]:{port}",
        stream=stream,
        consumer=consumer,
        is_encrypted=parts.scheme == "nats+tls",
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        options=options,
    )


def connect_options(address: NatsAddress) -> dict[str, Any]:
    """The options for `nats.connect`. Raises SettingError if a file cannot be read."""
    given = address.options
    options: dict[str, Any] = {"servers": f"{'tls' if address.is_encrypted else 'nats'}://{address.server}"}
    if address.user is not None:
        options |= {"user": address.user, "password": address.password or ""}
    try:
        if "credentials" in given:
            with open(given["credentials"], "rb"):
                options["user_credentials"] = given["credentials"]
        if "token_file" in given:
            with open(given["token_file"], encoding="utf-8") as file:
                options["token"] = file.read().strip()
        if address.is_encrypted:
            context = ssl.create_default_context(cafile=given.get("ca"))
            if "certificate" in given:
                context.load_cert_chain(given["certificate"], given.get("certificate_key"))
            options["tls"] = context
    except (OSError, ValueError) as error:
        raise SettingError(f"the NATS URL names a file that cannot be used: {error}") from error
    return options


# ── the link ──────────────────────────────────────────────────────────────────────────────────────────────


def nats_worker(url: str, handler: AsyncHandler | Handler, options: QueueOptions, context: WorkerContext) -> Worker:
    address = read_address(url)

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

    def __init__(self, address: NatsAddress, options: QueueOptions, context: LinkContext) -> None:
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
            await self._connect()
            self._requests = self._connection.jetstream(timeout=_CONNECT_WITHIN)
            self._check(await self._consumer())
            self._subscription = await self._requests.pull_subscribe_bind(
                consumer=self._address.consumer, stream=self._address.stream
            )
        except NotFoundError as error:
            raise QueueError(f"the NATS stream {self._address.stream} does not exist; create it first") from error
        except _FAILURES as error:
            raise QueueError(
                f"{self._address.place} cannot be used at {self._address.server}: {_text(error)}"
            ) from error

    async def _connect(self) -> None:
        """Connect once. With an unlimited number of reconnects, `connect` itself would wait for the server without
        end."""
        errors: list[Exception] = []

        async def note(error: Exception) -> None:
            errors[:] = [error]

        options = connect_options(self._address)
        self._connection = Client()
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                await self._connection.connect(
                    **options,
                    connect_timeout=_CONNECT_WITHIN,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    error_cb=note,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                )
        except TimeoutError as error:
            raise errors[0] if errors else error from error

    async def _consumer(self) -> ConsumerInfo:
        try:
            found: ConsumerInfo = await self._requests.consumer_info(self._address.stream, self._address.consumer)
        except NotFoundError:
            config = ConsumerConfig(
                durable_name=self._address.consumer,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self._options.visibility,
                max_deliver=-1,
                max_ack_pending=max(1_000, 2 * self._options.in_hand),
            )
            found = await self._requests.add_consumer(self._address.stream, config)
        return found

    def _check(self, info: ConsumerInfo) -> None:
        config, place = info.config, self._address.place
        if config.deliver_subject:
            raise QueueError(f"{place} pushes messages; use a pull consumer")
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
            await self._wait_out_outages(stopping)
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
            self._outage.failed(f"{self._address.place} does not answer ({_text(error)})")
            return []
        except _FAILURES as error:
            self._outage.failed(f"{self._address.place} does not answer ({_text(error)})")
            return []
        if self._connection.is_connected:
            self._outage.succeeded(f"{self._address.place} answers")
        return found

    async def _raise_if_missing(self, error: APIError) -> None:
        """Raise QueueError if the consumer or its stream was deleted."""
        try:
            await self._requests.consumer_info(self._address.stream, self._address.consumer)
        except NotFoundError:
            raise QueueError(f"{self._address.place} was deleted") from error
        except _FAILURES:
            return

    async def _wait_out_outages(self, stopping: asyncio.Event) -> None:
        while (pause := max(self._outage.pause, self._context.store_outage.pause)) and not stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stopping.wait()

    async def _disconnected(self) -> None:
        if not self._connection.is_closed:
            self._outage.failed(f"the connection to NATS at {self._address.server} is lost")

    async def _reconnected(self) -> None:
        self._outage.succeeded(f"{self._address.place} answers")

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────

    async def hold(self) -> None:
        """Renew all messages when a third of `ack_wait` has passed, for at most `max_hold`."""
        while True:
            await asyncio.sleep(self._ack_wait / 3e6)
            now = self._context.boot()
            for message in list(self._messages):
                if now - message.received_at < self._context.config.max_hold:
                    with suppress(*_FAILURES):
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
        except _FAILURES as error:
            _log.warning("message %s was not acknowledged (%s); it will be delivered again", message.name, _text(error))

    async def end_receiving(self, receiving: asyncio.Task[None]) -> None:
        await asyncio.wait([receiving], timeout=2 * _POLL)

    async def flush(self, within: float) -> None:
        if self._sending:
            await asyncio.wait(self._sending, timeout=within)
        if self._connection.is_connected:
            with suppress(*_FAILURES):
                await self._connection.flush(timeout=max(1, int(within)))

    async def close(self) -> None:
        if self._connection is not None:
            with suppress(*_FAILURES):
                await self._connection.close()


def _text(error: BaseException) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
