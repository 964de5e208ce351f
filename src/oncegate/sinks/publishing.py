"""Places on AWS that events are sent to, as URLs: `sqs://QUEUE?region=…` and `eventbridge://BUS?region=…`.

Credentials are never in them: they come from where AWS's tools look.
"""

import hashlib
import re
import threading
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec
from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct

from oncegate import forks
from oncegate.aws import failures
from oncegate.aws.clients import checked_endpoint, create_client
from oncegate.aws.failures import FAILURES, code_of, message_of
from oncegate.carriers.pieces import HANDED_KEY
from oncegate.durations import microseconds
from oncegate.errors import Bury, RetryLater, SettingError
from oncegate.events import Event, Key
from oncegate.sinks.documents import document
from oncegate.text import quoted

FIFO: Final = ".fifo"
_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_BUS: Final = re.compile(r"[A-Za-z0-9_./-]{1,256}")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_EXAMPLES: Final = "events are published to sqs://QUEUE?region=eu-central-1 or eventbridge://BUS?region=eu-central-1"
_COMMON: Final = ("region", "endpoint", "timeout")


class Destination(Struct, frozen=True, kw_only=True):
    """`account` is the owner of a queue that is another's; `source` is what events on a bus say that they come from."""

    service: str
    name: str
    region: str | None = None
    endpoint: str | None = None
    timeout: float = 10.0
    account: str | None = None
    source: str = "oncegate"

    def canonical(self, region: str | None) -> str:
        """One spelling for the same queue or bus, wherever it is written: its name, and the region that it is asked for
        in. Neither who owns it nor how it is reached is part of it, as both need not be written."""
        scheme = "sqs" if self.service == "sqs" else "eventbridge"
        return f"{scheme}://{self.name}?region={region}"

    @property
    def spoken(self) -> str:
        """Where it is, for a sentence."""
        where = self.endpoint or (f"region {self.region}" if self.region else None)
        named = f"the {'SQS queue' if self.service == 'sqs' else 'EventBridge bus'} {self.name}"
        return f"{named} ({where})" if where else named


def read_destination(url: str) -> Destination:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingError(f"{quoted(url)} is not a URL; {_EXAMPLES}") from None
    if parts.scheme == "sqs":
        return _queue(parts, url)
    if parts.scheme == "eventbridge":
        return _bus(parts, url)
    raise SettingError(_EXAMPLES)


def _queue(parts: SplitResult, url: str) -> Destination:
    options = _options(parts, "account")
    if not _QUEUE.fullmatch(parts.netloc) or parts.path.strip("/"):
        raise SettingError(
            f"{quoted(url)} names no queue; write sqs://QUEUE?region=eu-central-1, with {FIFO} if it is one"
        )
    account = options.get("account")
    if account is not None and not _ACCOUNT.fullmatch(account):
        raise SettingError(f"account={account!r} is no account of AWS; it has 12 digits")
    return Destination(service="sqs", name=parts.netloc, account=account, **_shared(options))  # type: ignore[arg-type]


def _bus(parts: SplitResult, url: str) -> Destination:
    options = _options(parts, "source")
    name = f"{parts.netloc}{parts.path}".rstrip("/")
    if not _BUS.fullmatch(name):
        raise SettingError(f"{quoted(url)} names no bus; write eventbridge://default?region=eu-central-1")
    source = options.get("source", "oncegate")
    if source.startswith("aws.") or not 0 < len(source) <= 256:
        raise SettingError(f"source={source!r} must be text of 1 to 256 characters, and aws. is Amazon's own")
    return Destination(service="events", name=name, source=source, **_shared(options))  # type: ignore[arg-type]


def _options(parts: SplitResult, own: str) -> dict[str, str]:
    options = dict(parse_qsl(parts.query))
    known = (*_COMMON, own)
    if unknown := sorted(options.keys() - set(known)):
        raise SettingError(f"{parts.scheme}:// has no option {unknown[0]!r}; it has {', '.join(known)}")
    return options


def _shared(options: dict[str, str]) -> dict[str, object]:
    endpoint = checked_endpoint(options.get("endpoint"))
    timeout = microseconds(options.get("timeout", "10s"), "timeout") / 1e6
    return {"region": options.get("region"), "endpoint": endpoint, "timeout": timeout}


# What the errors of AWS mean for an event that was to be published: try again later, or never.


# What AWS says of an event that it will never take, by the codes and the words of its services.
_HOPELESS: Final = frozenset({"InvalidMessageContents", "MalformedDetail", "RequestEntityTooLarge"})
_TOO_LARGE: Final = re.compile(r"too large|must be shorter|over the limit|exceed.*size|size.*exceed", re.IGNORECASE)
_HINTS: Final = failures.ErrorHints(
    "AWS", "write ?region=eu-central-1 behind its name", "allow it in the policy of the role or user"
)


def failure(error: Exception, place: Destination) -> RetryLater | Bury:
    """What is not the event's own fault is to be tried again, though only a person may be able to mend it."""
    if isinstance(error, ClientError):
        code, said = code_of(error), message_of(error)
        if code in _HOPELESS or _TOO_LARGE.search(said):
            return Bury(f"{place.spoken} does not take this event ({code}: {said})")
    action = f"{place.service}:{error.operation_name}" if isinstance(error, ClientError) else ""
    return RetryLater(failures.classify(error, place.spoken, action, _HINTS).message, public=True)


# Publishing: each event sent to an SQS queue or put on an EventBridge bus, with its key.


_CONNECTIONS: Final = 64
_GROUP: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}")
_LONGEST_TYPE: Final = 128


def publisher(url: str) -> "Publisher":
    """The handler for a place. Its client is made at once, so that a missing region is said before the first event."""
    place = read_destination(url)
    made = QueuePublisher(place) if place.service == "sqs" else BusPublisher(place)
    try:
        made.open()
    except BotoCoreError as error:
        raise SettingError(str(failure(error, place))) from error
    return made


class Publisher(ABC):
    """A handler that sends events to one place, from any number of threads, each with one request."""

    def __init__(self, place: Destination) -> None:
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
        return create_client(
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


class QueuePublisher(Publisher):
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


class BusPublisher(Publisher):
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
