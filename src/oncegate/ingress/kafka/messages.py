"""The messages of a Kafka topic, and the offsets up to which a partition is processed."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from oncegate.carriers.buses import BusMessage
from oncegate.errors import MissingExtra
from oncegate.events import Evidence
from oncegate.ingress.messages import Message

try:
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, TopicPartition
    from confluent_kafka import Message as Record
except ImportError as _error:
    raise MissingExtra("a worker of a Kafka topic", "kafka") from _error

# Headers of a message in a retry topic.
ORIGIN: Final = "oncegate-origin"  # the topic, the partition and the offset of the first message
RETRIES: Final = "oncegate-retries"  # how often the event was moved to a retry topic
NOT_BEFORE: Final = "oncegate-not-before"  # milliseconds since 1970


class Partition:
    """The messages of a partition that the worker holds, from its assignment until it is revoked. A later assignment of
    the same partition has another object, so a message never changes the offsets of an assignment that is over."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.is_assigned = True
        self.sent: int | None = None  # the offset of the last commit that was sent and has not failed
        self.committed: int | None = None  # the offset of the last commit that Kafka has confirmed
        self._next: int | None = None
        self._unfinished: dict[int, KafkaMessage] = {}

    def take(self, record: Record, pause: Callable[[int], float]) -> "KafkaMessage | None":
        """Returns the message of a record; None if the worker already holds that record. A lower offset than before is
        taken: the topic may have been created again, or may have lost its last messages, so that the record is new. If
        it is not new, its events are duplicates."""
        message = KafkaMessage(record, self, pause)
        held = self._unfinished.get(message.offset)
        self._next = message.offset + 1
        if held is not None and held.is_same(record):
            return None
        self._unfinished[message.offset] = message
        return message

    def finish(self, message: "KafkaMessage") -> None:
        if self._unfinished.get(message.offset) is message:
            del self._unfinished[message.offset]

    @property
    def position(self) -> int | None:
        """The offset to commit: that of the first message that is not finished, or not received yet. None if nothing
        was received."""
        return None if self._next is None else min([self._next, *self._unfinished])

    @property
    def is_running(self) -> bool:
        return any(message.running for message in self._unfinished.values())

    def at(self, offset: int) -> TopicPartition:
        return TopicPartition(self.topic, self.number, offset)


class KafkaMessage(Message):
    """A message of a topic. Kafka does not count deliveries: `receives` counts the attempts in this worker."""

    __slots__ = ("_pause", "offset", "partition", "record")

    def __init__(self, record: Record, partition: Partition, pause: Callable[[int], float]) -> None:
        self.offset = record.offset() or 0
        super().__init__(f"{partition.topic}-{partition.number}-{self.offset}", 1)
        self.record = record
        self.partition = partition
        self._pause = pause

    def may_start(self, now: int) -> bool:  # noqa: ARG002  # see Message
        """After the partition was revoked, another worker receives the message."""
        return self.partition.is_assigned

    def is_same(self, record: Record) -> bool:
        return (record.timestamp(), record.key(), record.value()) == (
            self.record.timestamp(),
            self.record.key(),
            self.record.value(),
        )

    @property
    def pause(self) -> float:
        return self._pause(self.receives)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers with a value. If several headers have the same name, the last one counts."""
        pairs: Any = self.record.headers() or []
        return {name: value for name, value in pairs if value is not None}

    def header(self, name: str) -> str:
        value = self.headers.get(name, b"")
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    @property
    def content(self) -> BusMessage:
        key = self.record.key()
        evidence = Evidence(
            message_id=self.origin,
            sent_at=_sent_at(self.record),
            group=key.decode("utf-8", "replace") if isinstance(key, bytes) else key,
        )
        return BusMessage(self.record.value(), self.headers, evidence)

    @property
    def origin(self) -> str:
        """The place of the message. A message in a retry topic has the place from which it was moved."""
        return self.header(ORIGIN) or self.name

    @property
    def retries(self) -> int:
        text = self.header(RETRIES)
        return int(text) if text.isdecimal() and len(text) < 10 else 0

    @property
    def not_before(self) -> int:
        """The time, in milliseconds since 1970, before which a message of a retry topic does not run."""
        text = self.header(NOT_BEFORE)
        return int(text) if text.isdecimal() and len(text) < 16 else 0


def _sent_at(record: Record) -> datetime | None:
    kind, milliseconds = record.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE or not 0 < milliseconds < 4e12:
        return None
    return datetime.fromtimestamp(milliseconds / 1e3, UTC)
