"""Send simulated traffic to SQS queues and EventBridge buses. Failed entries of a batch are sent again."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from secrets import token_hex
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from botocore.exceptions import ClientError
from msgspec import json
from msgspec.structs import replace

from oncegate.aws.clients import create_client
from oncegate.aws.failures import FAILURES, code_of, is_denied, is_transient
from oncegate.errors import TargetError
from oncegate.simulate.sender import Accepted, Answer, Rejected, Retry
from oncegate.simulate.traffic import PlannedDelivery
from oncegate.sinks.aws import FIFO, Destination, failure, group_of, read_destination

_MOST: Final = 10  # the limit of both services for one request
_MOST_BYTES: Final = 200_000  # below the 256 KiB of one request, with room for the other fields of an entry
_SOURCE: Final = "oncegate.simulate"  # the source of real events begins with `aws.`, which AWS reserves
# Errors of single PutEvents entries that may succeed on retry. Other errors are caused by the entry itself.
_TEMPORARY: Final = frozenset({"ThrottlingException", "InternalFailure", "InternalException"})


def place_of(url: str) -> Destination:
    """The destination at a URL. On a bus, simulated events have the source `oncegate.simulate`, unless the URL names a
    source."""
    place = read_destination(url)
    return place if "source" in parse_qs(urlsplit(url).query) else replace(place, source=_SOURCE)


class _Service(ABC):
    """One botocore client. It does not retry, because the sender retries and counts the attempts."""

    most = _MOST
    paced = True

    def __init__(self, url: str, parallel: int = 1) -> None:
        self._place = place = place_of(url)
        try:
            self._client: Any = create_client(
                place.service,
                place.region,
                place.endpoint,
                place.spoken,
                connect_timeout=min(5.0, place.timeout),
                read_timeout=place.timeout,
                max_pool_connections=parallel,
            )
            self._find()
        except FAILURES as error:
            raise self._target_error(error) from error

    @abstractmethod
    def _find(self) -> None:
        """Check that the destination exists before anything is sent."""

    @abstractmethod
    def _send_batch(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        """Send a batch with one request."""

    def send(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        """Send a batch. Deliveries that the service cannot hold are rejected here. A batch that is too large for one
        request is sent in parts."""
        problems = [self._problem(delivery) for delivery in batch]
        fitting = [delivery for delivery, problem in zip(batch, problems, strict=True) if problem is None]
        answers = iter([answer for part in _parts(fitting) for answer in self._send_part(part)])
        return [next(answers) if problem is None else Rejected(problem) for problem in problems]

    @abstractmethod
    def _problem(self, delivery: PlannedDelivery) -> str | None:
        """Why the service cannot hold the bytes of a delivery. Only recorded deliveries have such a problem."""

    def _send_part(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        try:
            return self._send_batch(batch)
        except FAILURES as error:
            if not is_transient(error):
                raise self._target_error(error) from error
            return [Retry(_name_of(error))] * len(batch)

    def close(self) -> None:
        self._client.close()

    def _target_error(self, error: Exception) -> TargetError:
        return TargetError(str(failure(error, self._place)))


def _parts(batch: Sequence[PlannedDelivery]) -> Iterator[list[PlannedDelivery]]:
    """The batch in parts of at most `_MOST_BYTES` each. A larger delivery is a part by itself."""
    part: list[PlannedDelivery] = []
    size = 0
    for delivery in batch:
        size += len(delivery.copy.raw)
        if part and size > _MOST_BYTES:
            yield part
            part, size = [], len(delivery.copy.raw)
        part.append(delivery)
    if part:
        yield part


class SqsTarget(_Service):
    """Sends the bytes as message bodies. In a FIFO queue, the events of one entity are a message group."""

    def _problem(self, delivery: PlannedDelivery) -> str | None:
        try:
            delivery.copy.raw.decode()
        except UnicodeDecodeError:
            return "not UTF-8"
        return None

    def _find(self) -> None:
        owner = {} if self._place.account is None else {"QueueOwnerAWSAccountId": self._place.account}
        self._url = self._client.get_queue_url(QueueName=self._place.name, **owner)["QueueUrl"]
        self._fifo = self._place.name.endswith(FIFO)
        self._run = token_hex(8)

    def _send_batch(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        entries = [self._entry(place, delivery) for place, delivery in enumerate(batch)]
        answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        answers: list[Answer] = [Accepted()] * len(batch)
        for failed in answer.get("Failed", ()):
            code = failed.get("Code", "")
            answers[int(failed["Id"])] = Rejected(code) if failed.get("SenderFault") else Retry(code)
        return answers

    def _entry(self, place: int, delivery: PlannedDelivery) -> dict[str, str]:
        entry = {"Id": str(place), "MessageBody": delivery.copy.raw.decode()}
        if self._fifo:
            # Each delivery has a different deduplication id: otherwise the queue itself would drop the copies.
            entry["MessageGroupId"] = group_of(delivery.event.entity or "none")
            entry["MessageDeduplicationId"] = f"{self._run}-{delivery.number}"
        return entry


class EventBridgeTarget(_Service):
    """Sends the detail of a document with an envelope, and a document without an envelope as a whole. The bus adds a
    new envelope."""

    def _problem(self, delivery: PlannedDelivery) -> str | None:
        return "not a JSON object" if delivery.copy.document is None else None

    def _find(self) -> None:
        try:
            self._client.describe_event_bus(Name=self._place.name)
        except ClientError as error:
            if not is_denied(error):  # sending needs only events:PutEvents
                raise

    def _send_batch(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        answer = self._client.put_events(Entries=[self._entry(delivery) for delivery in batch])
        return [_answer_of(*pair) for pair in zip(batch, answer["Entries"], strict=True)]

    def _entry(self, delivery: PlannedDelivery) -> dict[str, str]:
        document = delivery.copy.document or {}
        kind, detail = document.get("detail-type"), document.get("detail", document)
        return {
            "EventBusName": self._place.name,
            "Source": self._place.source,
            "DetailType": kind or delivery.event.type or "unreadable",
            "Detail": json.encode(detail).decode(),
        }


def _answer_of(delivery: PlannedDelivery, entry: dict[str, Any]) -> Answer:
    """Convert one entry of the response to an answer. The id of the event is the id of the envelope that the bus
    creates, except for NICE CXone events, which have an id in their body."""
    code = entry.get("ErrorCode")
    if code is None:
        return Accepted(None if "eventId" in (delivery.copy.document or {}) else entry.get("EventId"))
    return Retry(code) if code in _TEMPORARY else Rejected(code)


def _name_of(error: Exception) -> str:
    return code_of(error) if isinstance(error, ClientError) else type(error).__name__
