"""Send each event, with its key, to a Kafka topic.

A destination is a URL: `kafka://HOST:PORT,HOST:PORT/TOPIC`; with `kafka+tls://`, the connection uses TLS.
"""

from typing import Final

from msgspec import Struct

from oncegate.buses.kafka import ConfirmedProducer, KafkaAddress, error_of, error_text, read_address
from oncegate.errors import MissingExtra
from oncegate.events import Event
from oncegate.sinks.base import document, headers_of, not_confirmed, rejected, timeout_of

try:
    from confluent_kafka import KafkaError, KafkaException
except ImportError as _error:
    raise MissingExtra("publishing to Kafka", "kafka") from _error

_OWN: Final = ("timeout",)
_USE: Final = "write 'kafka://HOST:PORT/TOPIC'"
_TOO_LARGE: Final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
_NO_TOPIC: Final = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)


class TopicAddress(Struct, frozen=True):
    """A topic to publish to. `timeout` is in seconds."""

    at: KafkaAddress
    timeout: float

    @property
    def spoken(self) -> str:
        """The description of the destination in messages."""
        return f"the Kafka topic {self.at.topic} ({self.at.brokers})"


def read_destination(url: str) -> TopicAddress:
    """Parse a URL. Raises SettingError."""
    address = read_address(url, _OWN, _USE)
    return TopicAddress(address, timeout_of(address.options))


class KafkaPublisher:
    """A handler that sends each event to one topic, and returns when all in-sync replicas have stored the message.
    Thread-safe.

    The key of the message is the entity of the event, so the events of an entity have one partition and stay in order.
    Kafka drops a message that the client repeats after a lost answer, but not the message of a second attempt: that one
    is recognised by a gate behind the topic."""

    kind = "publish"

    def __init__(self, url: str) -> None:
        self.place = read_destination(url)
        self.publishes_to = self.place.at.canonical
        self._producer = ConfirmedProducer(self.place.at, self.place.timeout)

    def __call__(self, event: Event) -> None:
        key = None if event.entity is None else event.entity.encode("utf-8", "replace")
        try:
            self._producer.send(self.place.at.topic, document(event), key, list(headers_of(event).items()))
        except KafkaException as raised:
            error = error_of(raised)
            if error.code() in _TOO_LARGE:
                raise rejected(self.place.spoken) from raised
            reason = "the topic does not exist; create it" if error.code() in _NO_TOPIC else error_text(error)
            raise not_confirmed(self.place.spoken, reason) from raised

    def close(self) -> None:
        self._producer.close()
