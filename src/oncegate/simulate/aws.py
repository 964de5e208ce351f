"""A queue of SQS and a bus of EventBridge to send to, by botocore. What of a batch fails is sent again."""

from collections.abc import Sequence
from secrets import token_hex
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, urlsplit

from botocore.exceptions import ClientError, NoRegionError
from msgspec import Struct, json

from oncegate.aws.clients import client
from oncegate.aws.failures import (
    FAILURES,
    UNFOUND,
    UNREACHED,
    code_of,
    is_denied,
    is_unaccepted,
    passes,
    unaccepted,
    unfound,
    unreached,
)
from oncegate.errors import SettingError, TargetError
from oncegate.simulate.sending import Again, Answer, Refused, Taken
from oncegate.simulate.traffic import Delivery

_OPTIONS: Final = ("region", "endpoint", "source")
_MOST: Final = 10  # what one request of either service takes
_SOURCE: Final = "oncegate.simulate"  # a source that begins with `aws.` is not anybody's to put
# Errors of single entries of PutEvents that pass; the others are of the entry itself.
_PASSING: Final = frozenset({"ThrottlingException", "InternalFailure", "InternalException"})
_UNKNOWN: Final = frozenset(
    {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "ResourceNotFoundException"}
)


class Address(Struct, frozen=True):
    """What a URL says."""

    name: str
    region: str | None
    endpoint: str | None
    source: str

    @classmethod
    def of(cls, url: str) -> "Address":
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        if not parts.netloc or parts.path.strip("/"):
            raise SettingError(f"{url!r} names nothing to send to; write {parts.scheme}://NAME?region=eu-central-1")
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise SettingError(f"{parts.scheme}:// has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}")
        return cls(parts.netloc, options.get("region"), options.get("endpoint"), options.get("source", _SOURCE))


class _Service:
    """One client, whose own retries are off: the sender has the patience, and counts."""

    most = _MOST
    paced = True
    service: ClassVar[str]

    def __init__(self, url: str, parallel: int = 1) -> None:
        self._address = Address.of(url)
        self._place = url.partition("?")[0]
        try:
            self._client: Any = client(
                self.service,
                self._address.region,
                self._address.endpoint,
                self._place,
                connect_timeout=5,
                read_timeout=20,
                max_pool_connections=parallel,
            )
            self._find()
        except FAILURES as error:
            raise self._explained(error) from error

    def _find(self) -> None:
        """Ask for it, so that a name that is not there is told before anything is sent."""
        raise NotImplementedError

    def _ask(self, batch: Sequence[Delivery]) -> list[Answer]:
        raise NotImplementedError

    def send(self, batch: Sequence[Delivery]) -> list[Answer]:
        try:
            return self._ask(batch)
        except FAILURES as error:
            if not passes(error):
                raise self._explained(error) from error
            return [Again(_name_of(error))] * len(batch)

    def close(self) -> None:
        self._client.close()

    def _explained(self, error: Exception) -> TargetError:
        place = self._place
        if isinstance(error, NoRegionError):
            return TargetError(f"{place} needs a region; write {place}?region=eu-central-1 or set AWS_DEFAULT_REGION")
        if isinstance(error, UNFOUND):
            return TargetError(unfound(error, place))
        if isinstance(error, UNREACHED):
            return TargetError(unreached(error, place))
        if _name_of(error) in _UNKNOWN:
            return TargetError(f"{place} does not exist; check its name, region and endpoint")
        if isinstance(error, ClientError) and is_unaccepted(error):
            return TargetError(unaccepted(error, place))
        return TargetError(f"{place} cannot be sent to ({error}); check rights, region and endpoint")


class Queue(_Service):
    """Messages with the bytes as their bodies. In a FIFO queue, those of one entity are a group."""

    service = "sqs"

    def _find(self) -> None:
        self._url = self._client.get_queue_url(QueueName=self._address.name)["QueueUrl"]
        self._fifo = self._address.name.endswith(".fifo")
        self._run = token_hex(8)

    def _ask(self, batch: Sequence[Delivery]) -> list[Answer]:
        entries = [self._entry(place, delivery) for place, delivery in enumerate(batch)]
        answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        answers: list[Answer] = [Taken()] * len(batch)
        for failed in answer.get("Failed", ()):
            code = failed.get("Code", "")
            answers[int(failed["Id"])] = Refused(code) if failed.get("SenderFault") else Again(code)
        return answers

    def _entry(self, place: int, delivery: Delivery) -> dict[str, str]:
        entry = {"Id": str(place), "MessageBody": delivery.copy.raw.decode()}
        if self._fifo:
            # Each is a message of its own, or the queue would take copies for what they are.
            entry["MessageGroupId"] = delivery.event.entity or "none"
            entry["MessageDeduplicationId"] = f"{self._run}-{delivery.number}"
        return entry


class Bus(_Service):
    """Entries whose detail is that of the envelope, or all of what has none. The bus makes an envelope of its own."""

    service = "events"

    def _find(self) -> None:
        try:
            self._client.describe_event_bus(Name=self._address.name)
        except ClientError as error:
            if not is_denied(error):  # to put events one need not be allowed to look
                raise

    def _ask(self, batch: Sequence[Delivery]) -> list[Answer]:
        answer = self._client.put_events(Entries=[self._entry(delivery) for delivery in batch])
        return [_meaning(*pair) for pair in zip(batch, answer["Entries"], strict=True)]

    def _entry(self, delivery: Delivery) -> dict[str, str]:
        document = delivery.copy.document or {}
        kind, detail = document.get("detail-type"), document.get("detail", document)
        return {
            "EventBusName": self._address.name,
            "Source": self._address.source,
            "DetailType": kind or delivery.event.type or "unreadable",
            "Detail": json.encode(detail).decode(),
        }


def _meaning(delivery: Delivery, entry: dict[str, Any]) -> Answer:
    """The id of its envelope is that of an event which had one before; others are known by their own."""
    code = entry.get("ErrorCode")
    if code is None:
        return Taken(entry.get("EventId") if "detail" in (delivery.copy.document or {}) else None)
    return Again(code) if code in _PASSING else Refused(code)


def _name_of(error: Exception) -> str:
    return code_of(error) if isinstance(error, ClientError) else type(error).__name__
