"""A queue of SQS and a bus of EventBridge to send to, by botocore. What of a batch fails is sent again."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
from oncegate.sinks.publishing import FIFO, Destination, failure, read_destination

_MOST: Final = 10  # what one request of either service takes
_SOURCE: Final = "oncegate.simulate"  # that of real events begins with `aws.`, which is not anybody's to put
# Errors of single entries of PutEvents that pass; the others are of the entry itself.
_PASSING: Final = frozenset({"ThrottlingException", "InternalFailure", "InternalException"})


def place_of(url: str) -> Destination:
    """What a URL says; on a bus, simulated events say that they are, unless they are told otherwise."""
    place = read_destination(url)
    return place if "source" in parse_qs(urlsplit(url).query) else replace(place, source=_SOURCE)


class _Service(ABC):
    """One client, whose own retries are off: the sender has the patience, and counts."""

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
            raise self._explained(error) from error

    @abstractmethod
    def _find(self) -> None:
        """Ask for it, so that a name that is not there is told before anything is sent."""

    @abstractmethod
    def _ask(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        """Send a batch with one request."""

    def send(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        try:
            return self._ask(batch)
        except FAILURES as error:
            if not is_transient(error):
                raise self._explained(error) from error
            return [Retry(_name_of(error))] * len(batch)

    def close(self) -> None:
        self._client.close()

    def _explained(self, error: Exception) -> TargetError:
        return TargetError(str(failure(error, self._place)))


class SqsTarget(_Service):
    """Messages with the bytes as their bodies. In a FIFO queue, those of one entity are a group."""

    def _find(self) -> None:
        owner = {} if self._place.account is None else {"QueueOwnerAWSAccountId": self._place.account}
        self._url = self._client.get_queue_url(QueueName=self._place.name, **owner)["QueueUrl"]
        self._fifo = self._place.name.endswith(FIFO)
        self._run = token_hex(8)

    def _ask(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
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
            # Each is a message of its own, or the queue would take copies for what they are.
            entry["MessageGroupId"] = delivery.event.entity or "none"
            entry["MessageDeduplicationId"] = f"{self._run}-{delivery.number}"
        return entry


class EventBridgeTarget(_Service):
    """Entries whose detail is that of the envelope, or all of what has none. The bus makes an envelope of its own."""

    def _find(self) -> None:
        try:
            self._client.describe_event_bus(Name=self._place.name)
        except ClientError as error:
            if not is_denied(error):  # to put events one need not be allowed to look
                raise

    def _ask(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        answer = self._client.put_events(Entries=[self._entry(delivery) for delivery in batch])
        return [_meaning(*pair) for pair in zip(batch, answer["Entries"], strict=True)]

    def _entry(self, delivery: PlannedDelivery) -> dict[str, str]:
        document = delivery.copy.document or {}
        kind, detail = document.get("detail-type"), document.get("detail", document)
        return {
            "EventBusName": self._place.name,
            "Source": self._place.source,
            "DetailType": kind or delivery.event.type or "unreadable",
            "Detail": json.encode(detail).decode(),
        }


def _meaning(delivery: PlannedDelivery, entry: dict[str, Any]) -> Answer:
    """The id of the envelope that the bus makes is the event's; only those of NICE CXone keep their own."""
    code = entry.get("ErrorCode")
    if code is None:
        return Accepted(None if "eventId" in (delivery.copy.document or {}) else entry.get("EventId"))
    return Retry(code) if code in _PASSING else Rejected(code)


def _name_of(error: Exception) -> str:
    return code_of(error) if isinstance(error, ClientError) else type(error).__name__
