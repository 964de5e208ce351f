"""Move events that fail repeatedly to a retry topic."""

import logging
from typing import Final

from oncegate.buses.kafka import ConfirmedProducer, error_of, error_text
from oncegate.carriers.pieces import HANDED_KEY
from oncegate.clocks import wall
from oncegate.errors import MissingExtra
from oncegate.gate.job import Identified, Job, document, storable
from oncegate.ingress.call_threads import CallThreads
from oncegate.ingress.kafka.address import GroupAddress
from oncegate.ingress.kafka.messages import NOT_BEFORE, ORIGIN, RETRIES, KafkaMessage
from oncegate.ingress.messages import MessageEvent
from oncegate.ingress.retries import NoMover

try:
    from confluent_kafka import KafkaException
except ImportError as _error:
    raise MissingExtra("a worker of a Kafka topic", "kafka") from _error

_log: Final = logging.getLogger("oncegate.work")
_TIMEOUT: Final = 10.0  # seconds
_THREADS: Final = 4


class TopicMover(NoMover):
    """Sends an event to the retry topic, which the same workers read. The message has the key under which the event was
    claimed, so for the gate it is the same event, and the number of its attempts is kept. An event without a key gets a
    random key, as in the inbox: from now on the gate counts its attempts, and it becomes a dead letter."""

    def __init__(self, address: GroupAddress, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._producer = ConfirmedProducer(address.at, _TIMEOUT)
        self._threads = CallThreads("oncegate-retry-topic", _THREADS)

    def can_move(self, work: MessageEvent) -> bool:  # noqa: ARG002  # see Mover
        return True

    async def move(self, work: MessageEvent, item: Identified, pause: float) -> bool:  # noqa: ARG002  # see Mover
        message = work.message
        assert isinstance(message, KafkaMessage)  # noqa: S101  # the link has made it
        headers = {
            ORIGIN: message.origin,
            RETRIES: str(message.retries + 1),
            NOT_BEFORE: str((wall() + int(pause * 1e6)) // 1_000),
        }
        (known,) = storable([work.item])
        if isinstance(known, Job):
            headers[HANDED_KEY] = str(known.key)
        sent = [self._topic, document(work.event), message.record.key(), list(headers.items())]
        try:
            await self._threads.call(self._producer.send, *sent)
        except KafkaException as error:
            why = error_text(error_of(error))
            _log.warning("message %s was not sent to the retry topic %s (%s)", message.name, self._topic, why)
            return False
        return True

    def close(self) -> None:
        self._threads.close()
        self._producer.close()
