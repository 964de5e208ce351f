"""Send each event, with its key, to a queue or an exchange of RabbitMQ.

A destination is a URL: `amqp://HOST:PORT/QUEUE` or `amqp://HOST:PORT/?exchange=NAME&routing_key=KEY`; with `amqps://`,
the connection uses TLS.
"""

import re
from typing import Final
from urllib.parse import quote, urlencode

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
from oncegate.errors import MissingExtra, RetryLater, SettingError
from oncegate.events import Event
from oncegate.sinks.async_client import AsyncClient
from oncegate.sinks.base import document, headers_of, not_confirmed, rejected, timeout_of

try:
    from aio_pika import Connection, DeliveryMode, Message
    from aio_pika.abc import AbstractChannel
    from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError, PublishError
except ImportError as _error:
    raise MissingExtra("publishing to RabbitMQ", "rabbitmq") from _error

_OWN: Final = ("exchange", "routing_key", "timeout")
_USE: Final = "write 'amqp://HOST:PORT/QUEUE', or 'amqp://HOST:PORT/?exchange=NAME&routing_key=KEY'"
_TOO_LARGE: Final = re.compile(r"message size (\d+) is larger than configured max size")


class ExchangeAddress(Struct, frozen=True):
    """An exchange and a routing key. The exchange without a name takes a message to the queue whose name is the routing
    key. `timeout` is in seconds."""

    at: RabbitAddress
    exchange: str
    routing_key: str
    timeout: float

    @property
    def canonical(self) -> str:
        """The form in which records store the destination. Secrets and the server are not included, because the same
        queue may be reached through several servers."""
        path = "" if self.exchange else quote(self.routing_key, safe="")
        options = {"exchange": self.exchange, "routing_key": self.routing_key} if self.exchange else {}
        if self.at.vhost != "/":
            options["vhost"] = self.at.vhost
        return f"amqp:///{path}{'?' if options else ''}{urlencode(options)}"

    @property
    def spoken(self) -> str:
        """The description of the destination in messages."""
        if self.exchange:
            return f"the RabbitMQ exchange {self.exchange}, routing key {self.routing_key!r} ({self.at.server}),"
        return f"the RabbitMQ queue {self.routing_key} ({self.at.server})"


def read_destination(url: str) -> ExchangeAddress:
    """Parse a URL, and check the files that it names. Raises SettingError."""
    address = read_address(url, _OWN, _USE)
    exchange, key = address.options.get("exchange", ""), address.options.get("routing_key", "")
    if exchange and address.queue:
        raise SettingError(f"a RabbitMQ URL names a queue or an exchange, not both; {_USE}")
    if key and not exchange:
        raise SettingError(f"a RabbitMQ URL with a routing key needs an exchange; {_USE}")
    if exchange:
        checked_name(exchange, "exchange", _USE)
    else:
        key = checked_name(address.queue, "queue", _USE)
    login_of(address)
    return ExchangeAddress(address, exchange, key, timeout_of(address.options))


class _Confirmed:
    """A channel on which RabbitMQ confirms each message. `sending` has the ids of the messages that wait
    for it."""

    def __init__(self, connection: Connection, channel: AbstractChannel) -> None:
        self.connection = connection
        self.channel = channel
        self.sending: set[str] = set()


class RabbitPublisher:
    """A handler that sends each event to a queue or an exchange, and returns when RabbitMQ has confirmed the message.
    Thread-safe.

    RabbitMQ confirms a persistent message when it is on disk, or on most members of a quorum queue. A message that no
    queue takes is returned, and the event fails. RabbitMQ does not drop duplicates: the id of the message is the key of
    the event, so that a consumer can."""

    kind = "publish"

    def __init__(self, url: str) -> None:
        self.place = read_destination(url)
        self.publishes_to = self.place.canonical
        self._client = AsyncClient("oncegate-rabbitmq", self._connect, _is_open, _close)

    async def _connect(self) -> _Confirmed:
        connection = await connect(self.place.at)
        try:
            channel = connection.channel(publisher_confirms=True, on_return_raises=True)
            await answer_of(channel.initialize())
        except BaseException:
            await connection.close()
            raise
        return _Confirmed(connection, channel)

    def __call__(self, event: Event) -> None:
        body = document(event)
        try:
            self._client.call(lambda client: self._send(client, event, body), self.place.timeout)
        except ChannelPreconditionFailed as error:
            # The error closes the channel, so messages that were sent at the same time fail with it. They are retried.
            if (found := _TOO_LARGE.search(str(error))) is not None and int(found[1]) == len(body):
                raise rejected(self.place.spoken) from error
            raise self._retry(error_text(error)) from error
        except PublishError as error:
            raise self._retry("no queue takes the message; create the queue, or correct the URL") from error
        except DeliveryError as error:
            raise self._retry("RabbitMQ has rejected the message; the queue may be full") from error
        except FAILURES as error:
            raise self._retry(error_text(error)) from error

    def _retry(self, reason: str) -> RetryLater:
        return not_confirmed(self.place.spoken, reason)

    async def _send(self, client: _Confirmed, event: Event, body: bytes) -> None:
        message = Message(
            body,
            headers=dict(headers_of(event)),
            content_type="application/json",
            delivery_mode=DeliveryMode.PERSISTENT,
            message_id=None if event.key is None else str(event.key),
        )
        exchange = await client.channel.get_exchange(self.place.exchange, ensure=False)
        # A returned message is found by its id. With two of the same id, one would count as confirmed.
        if message.message_id in client.sending:
            raise ConnectionError("the same event is being sent")
        if message.message_id:
            client.sending.add(message.message_id)
        try:
            await answer_of(exchange.publish(message, self.place.routing_key, mandatory=True), self.place.timeout)
        finally:
            client.sending.discard(message.message_id or "")

    def close(self) -> None:
        self._client.close()


def _is_open(client: _Confirmed) -> bool:
    return not client.channel.is_closed


async def _close(client: _Confirmed) -> None:
    await client.connection.close()
