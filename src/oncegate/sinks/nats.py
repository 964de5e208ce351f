"""Send each event, with its key, to a subject of a NATS JetStream stream.

A destination is a URL: `nats://HOST:PORT/STREAM?subject=SUBJECT`; with `nats+tls://`, the connection uses TLS.
"""

import re
from functools import partial
from typing import Final

from msgspec import Struct

from oncegate.buses.nats import FAILURES, NatsAddress, connect, connect_options, error_text, read_address
from oncegate.errors import MissingExtra, RetryLater, SettingError
from oncegate.events import Event
from oncegate.sinks.async_client import AsyncClient
from oncegate.sinks.base import document, headers_of, not_confirmed, rejected, timeout_of
from oncegate.text import quoted

try:
    from nats.aio.client import Client
    from nats.errors import MaxPayloadError
    from nats.js.errors import APIError, NoStreamResponseError
except ImportError as _error:
    raise MissingExtra("publishing to NATS", "nats") from _error

_OWN: Final = ("subject", "timeout")
_USE: Final = "write 'nats://HOST:PORT/STREAM?subject=SUBJECT'"
_SUBJECT: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")  # no wildcards
# Codes of JetStream.
_TOO_LARGE: Final = 10054  # the message is larger than its stream allows
_OTHER_STREAM: Final = 10060


class SubjectAddress(Struct, frozen=True):
    """A subject of a stream. `timeout` is in seconds."""

    at: NatsAddress
    subject: str
    timeout: float

    @property
    def canonical(self) -> str:
        """The form in which records store the destination. Secrets and the server are not included, because the same
        stream may be reached through several servers."""
        return f"nats://{self.at.stream}?subject={self.subject}"

    @property
    def spoken(self) -> str:
        """The description of the destination in messages."""
        return f"the subject {self.subject} of the NATS stream {self.at.stream} ({self.at.server})"


def read_destination(url: str) -> SubjectAddress:
    """Parse a URL, and check the files that it names. Raises SettingError."""
    address = read_address(url, _OWN, _USE)
    subject = address.options.get("subject", "")
    if not subject:
        raise SettingError(f"the URL has no subject to publish to; {_USE}")
    if not _SUBJECT.fullmatch(subject):
        raise SettingError(f"{quoted(subject)} is not a NATS subject to publish to; {_USE}")
    connect_options(address)
    return SubjectAddress(address, subject, timeout_of(address.options))


class NatsPublisher:
    """A handler that sends each event to one subject, and returns when JetStream has stored the message. Thread-safe.

    The header `Nats-Msg-Id` is the key of the event. So JetStream drops a message that was already sent, within the
    `duplicate_window` of the stream (two minutes by default). If the subject does not belong to the stream, JetStream
    rejects the message."""

    kind = "publish"

    def __init__(self, url: str) -> None:
        self.place = read_destination(url)
        self.publishes_to = self.place.canonical
        self._client = AsyncClient("oncegate-nats", partial(connect, self.place.at), _is_open, Client.close)

    def __call__(self, event: Event) -> None:
        try:
            self._client.call(lambda client: self._send(client, event), self.place.timeout)
        except MaxPayloadError as error:
            raise rejected(self.place.spoken) from error
        except NoStreamResponseError as error:
            raise self._retry("no stream has this subject; create the stream, or correct the URL") from error
        except APIError as error:
            reason = error.description or error_text(error)
            if error.err_code == _TOO_LARGE:
                raise rejected(self.place.spoken, reason) from error
            if error.err_code == _OTHER_STREAM:
                reason = "the subject belongs to another stream; correct the URL"
            raise self._retry(reason) from error
        except FAILURES as error:
            raise self._retry(error_text(error)) from error

    def _retry(self, reason: str) -> RetryLater:
        return not_confirmed(self.place.spoken, reason)

    async def _send(self, client: Client, event: Event) -> None:
        if not client.is_connected:  # the client would keep the message and send it later, when the gate sends it again
            raise ConnectionError("the connection is lost")
        headers = headers_of(event)
        if event.key is not None:
            headers["Nats-Msg-Id"] = str(event.key)
        at = self.place.at
        await client.jetstream(timeout=self.place.timeout).publish(
            self.place.subject, document(event), stream=at.stream, headers=headers
        )

    def close(self) -> None:
        self._client.close()


def _is_open(client: Client) -> bool:
    return not client.is_closed
