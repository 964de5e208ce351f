"""Publishing: each event sent to an SQS queue or put on an EventBridge bus, with its key."""

import hashlib
import re
import threading
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Final

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from oncegate import forks
from oncegate.aws.clients import client
from oncegate.aws.failures import FAILURES
from oncegate.carriers.pieces import HANDED_KEY
from oncegate.errors import SettingError
from oncegate.events import Event, Key
from oncegate.sinks.documents import document
from oncegate.sinks.failures import failure
from oncegate.sinks.places import FIFO, Place, read_place

_CONNECTIONS: Final = 64
_GROUP: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}")
_LONGEST_TYPE: Final = 128


def publisher(url: str) -> "Publisher":
    """The handler for a place. Its client is made at once, so that a missing region is said before the first event."""
    place = read_place(url)
    made = ToQueue(place) if place.service == "sqs" else ToBus(place)
    try:
        made.open()
    except BotoCoreError as error:
        raise SettingError(str(failure(error, place))) from error
    return made


class Publisher(ABC):
    """A handler that sends events to one place, from any number of threads, each with one request."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._client: Any = None
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._forget)

    def __call__(self, event: Event) -> None:
        try:
            self._send(self.open(), event)
        except FAILURES as error:
            raise failure(error, self.place) from error

    @cached_property
    def publishes_to(self) -> str:
        """The place, for the records of what was published: a gate that finds it there and does not publish to it
        itself takes the event for what comes out of it."""
        return self.place.canonical(self.open().meta.region_name)

    def close(self) -> None:
        with self._lock:
            opened, self._client = self._client, None
        if opened is not None:
            opened.close()

    @abstractmethod
    def _send(self, aws: Any, event: Event) -> None:
        """Hand one event to a client of AWS."""

    # ── the client ────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._made()
            return self._client

    def _made(self) -> Any:
        """One that asks once: whoever delivers the event tries again."""
        place = self.place
        return client(
            place.service,
            place.region,
            place.endpoint,
            place.spoken,
            connect_timeout=min(2.0, place.timeout),
            read_timeout=place.timeout,
            max_pool_connections=_CONNECTIONS,
        )

    def _forget(self) -> None:
        self._client = None


class ToQueue(Publisher):
    """The message is the event's JSON, its attribute `oncegate-key` the key. In a FIFO queue the key is also what the
    queue itself knows copies by, for five minutes, and events of one entity stay in order."""

    _address: str | None = None

    def _send(self, aws: Any, event: Event) -> None:
        if self._address is None:
            owner = {} if self.place.account is None else {"QueueOwnerAWSAccountId": self.place.account}
            self._address = aws.get_queue_url(QueueName=self.place.name, **owner)["QueueUrl"]
        message = {"QueueUrl": self._address, "MessageBody": document(event).decode()}
        if event.key is not None:
            told = {"DataType": "String", "StringValue": str(event.key)}
            message["MessageAttributes"] = {HANDED_KEY: told}
        aws.send_message(**message, **(_in_order(event) if self.place.name.endswith(FIFO) else {}))


def _in_order(event: Event) -> dict[str, str]:
    key = hashlib.sha256(document(event)).hexdigest() if event.key is None else str(event.key)
    return {"MessageDeduplicationId": key, "MessageGroupId": _group(event.entity or key)}


def _group(entity: str) -> str:
    """The entity, or its hash if it could not be the name of a group."""
    return entity if _GROUP.fullmatch(entity) else hashlib.sha256(entity.encode("utf-8", "surrogatepass")).hexdigest()


class ToBus(Publisher):
    """The detail is the event's JSON; of what came from a bus, the detail that it had there. The key is a resource,
    `oncegate:KEY`: a copy that is put once more has another id, but the same resource."""

    def _send(self, aws: Any, event: Event) -> None:
        entry: dict[str, Any] = {
            "EventBusName": self.place.name,
            "Source": self.place.source,
            "DetailType": (event.type or "event")[:_LONGEST_TYPE],
            "Detail": _detail(document(event), None if event.source != "eventbridge" else event.key),
            "Resources": [] if event.key is None else [f"oncegate:{event.key}"],
        }
        if event.occurred_at is not None:
            entry["Time"] = event.occurred_at
        (answer,) = aws.put_events(Entries=[entry])["Entries"]
        if code := answer.get("ErrorCode"):
            said = {"Error": {"Code": code, "Message": answer.get("ErrorMessage", "")}}
            raise ClientError(said, "PutEvents")


def _detail(raw: bytes, key: Key | None) -> str:
    """A JSON object, as a detail must be: what is none is the member `event` of one. What was known by its envelope has
    another here; its key is then a member of the detail too, for rules that hand on the detail alone."""
    body = msgspec.json.decode(raw)
    if not isinstance(body, dict):
        return msgspec.json.encode({"event": msgspec.Raw(raw)}).decode()
    if "detail-type" in body and isinstance(body.get("detail"), dict):
        told = {} if key is None else {HANDED_KEY: str(key)}
        return msgspec.json.encode({**body["detail"], **told}).decode()
    return raw.decode()
