"""Send each event, with its key, to an SQS queue, an EventBridge bus or a Step Functions state machine.

A destination is a URL: `sqs://QUEUE?region=…`, `eventbridge://BUS?region=…` or `stepfunctions://ARN`. A URL never
contains credentials: botocore finds the credentials.
"""

import hashlib
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
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
from oncegate.errors import Bury, RetryLater, SettingError
from oncegate.events import Event, Key
from oncegate.sinks.base import document, headers_of, rejected, timeout_of
from oncegate.text import quoted

FIFO: Final = ".fifo"
_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_BUS: Final = re.compile(r"[A-Za-z0-9_./-]{1,256}")
_MACHINE: Final = re.compile(r"arn:[a-z-]+:states:([a-z0-9-]+):[0-9]{12}:stateMachine:[A-Za-z0-9_-]{1,80}")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_USE: Final = "use 'sqs://QUEUE?region=eu-central-1' or 'eventbridge://BUS?region=eu-central-1'"
_COMMON: Final = ("region", "endpoint", "timeout")
_MAX_CONNECTIONS: Final = 64
_GROUP: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}")
_MAX_TYPE_LENGTH: Final = 128
# Error codes and error texts of AWS that mean: AWS rejects the event itself.
_REJECTED: Final = frozenset(
    {"InvalidExecutionInput", "InvalidMessageContents", "MalformedDetail", "RequestEntityTooLarge"}
)
_STARTED: Final = "ExecutionAlreadyExists"
_TOO_LARGE: Final = re.compile(r"too large|must be shorter|over the limit|exceed.*size|size.*exceed", re.IGNORECASE)
_HINTS: Final = failures.ErrorHints(
    "AWS", "write ?region=eu-central-1 behind its name", "allow it in the policy of the role or user"
)


class _Service(Struct, frozen=True):
    """The names of an AWS service in URLs, in permissions and in messages."""

    scheme: str
    permission: str
    noun: str


# By the names that botocore uses.
_SERVICES: Final = {
    "sqs": _Service("sqs", "sqs", "SQS queue"),
    "events": _Service("eventbridge", "events", "EventBridge bus"),
    "stepfunctions": _Service("stepfunctions", "states", "Step Functions state machine"),
}


# ── destinations ──────────────────────────────────────────────────────────────────────────────────────────


class Destination(Struct, frozen=True, kw_only=True):
    """A queue, a bus or a state machine. `timeout` is in seconds. `account` is the AWS account that owns the queue, if
    it differs from the account of the credentials. `source` is the field `source` of the events that are put on a
    bus."""

    service: str
    name: str
    region: str | None = None
    endpoint: str | None = None
    timeout: float = 10.0
    account: str | None = None
    source: str = "oncegate"

    def canonical(self, region: str | None) -> str:
        """The form in which records store the destination: its name and its region. The account and the endpoint are
        not included, because the URL of the same destination may omit them."""
        return f"{_SERVICES[self.service].scheme}://{self.name}?region={region}"

    @property
    def spoken(self) -> str:
        """The description of the destination in messages."""
        where = self.endpoint or (f"region {self.region}" if self.region else None)
        named = f"the {_SERVICES[self.service].noun} {self.name}"
        return f"{named} ({where})" if where else named


def read_destination(url: str) -> Destination:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingError(f"{quoted(url)} is not a URL; {_USE}") from None
    if parts.scheme not in _PARSERS:
        raise SettingError(f"unknown scheme {parts.scheme!r} to publish to; {_USE}")
    return _PARSERS[parts.scheme](parts, url)


def _queue(parts: SplitResult, url: str) -> Destination:
    options = _options(parts, "account")
    if not _QUEUE.fullmatch(parts.netloc) or parts.path.strip("/"):
        raise SettingError(
            f"{quoted(url)} has no valid queue name; write 'sqs://QUEUE?region=eu-central-1', or QUEUE{FIFO}"
        )
    account = options.get("account")
    if account is not None and not _ACCOUNT.fullmatch(account):
        raise SettingError(f"account={account!r} is not an AWS account; it must have 12 digits")
    return Destination(service="sqs", name=parts.netloc, account=account, **_common(options))  # type: ignore[arg-type]


def _bus(parts: SplitResult, url: str) -> Destination:
    options = _options(parts, "source")
    name = f"{parts.netloc}{parts.path}".rstrip("/")
    if not _BUS.fullmatch(name):
        raise SettingError(f"{quoted(url)} has no valid bus name; write 'eventbridge://default?region=eu-central-1'")
    source = options.get("source", "oncegate")
    if source.startswith("aws.") or not 0 < len(source) <= 256:
        raise SettingError(f"source={source!r} must have 1 to 256 characters; the prefix aws. is reserved by AWS")
    return Destination(service="events", name=name, source=source, **_common(options))  # type: ignore[arg-type]


def _machine(parts: SplitResult, url: str) -> Destination:
    options = _options(parts)
    found = _MACHINE.fullmatch(parts.netloc)
    if found is None or parts.path.strip("/"):
        raise SettingError(
            f"{quoted(url)} has no valid ARN of a state machine; write"
            " 'stepfunctions://arn:aws:states:eu-central-1:123456789012:stateMachine:NAME'"
        )
    common = {**_common(options), "region": found[1]}
    return Destination(service="stepfunctions", name=parts.netloc, **common)  # type: ignore[arg-type]


_PARSERS: Final[dict[str, Callable[[SplitResult, str], Destination]]] = {
    "sqs": _queue,
    "eventbridge": _bus,
    "stepfunctions": _machine,
}


def _options(parts: SplitResult, *own: str) -> dict[str, str]:
    options = dict(parse_qsl(parts.query))
    known = (*_COMMON, *own)
    if unknown := sorted(options.keys() - set(known)):
        raise SettingError(f"unknown option {unknown[0]!r} of {parts.scheme}://; use {', '.join(known)}")
    return options


def _common(options: dict[str, str]) -> dict[str, object]:
    endpoint = checked_endpoint(options.get("endpoint"))
    return {"region": options.get("region"), "endpoint": endpoint, "timeout": timeout_of(options)}


# ── publishers ────────────────────────────────────────────────────────────────────────────────────────────


def publisher(url: str) -> "Publisher":
    """Return the handler for a destination. The client of the handler is created at once, so that a missing region is
    reported before the first event."""
    place = read_destination(url)
    created = _PUBLISHERS[place.service](place)
    try:
        created.open()
    except BotoCoreError as error:
        raise SettingError(failures.classify(error, place.spoken, "", _HINTS).message) from error
    return created


def failure(error: Exception, place: Destination) -> RetryLater | Bury:
    """The exception to raise after an error of AWS: Bury if AWS rejects the event itself, RetryLater for any other
    error. An error that a person has to fix first is retried too."""
    if isinstance(error, ClientError):
        code, message = code_of(error), message_of(error)
        if code in _REJECTED or _TOO_LARGE.search(message):
            return rejected(place.spoken, f"{code}: {message}")
    permission = _SERVICES[place.service].permission
    action = f"{permission}:{error.operation_name}" if isinstance(error, ClientError) else ""
    return RetryLater(f"publish failed: {failures.classify(error, place.spoken, action, _HINTS).message}", public=True)


class Publisher(ABC):
    """A handler that sends each event to one destination with one request. Thread-safe."""

    kind = "publish"

    def __init__(self, place: Destination) -> None:
        self.place = place
        self._client: Any = None
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock, self._forget_client)

    def __call__(self, event: Event) -> None:
        try:
            self._send(self.open(), event)
        except FAILURES as error:
            raise failure(error, self.place) from error

    @cached_property
    def publishes_to(self) -> str:
        """The destination, as the record of a published event stores it. If a gate finds this destination in the record
        of an event, and does not itself publish to this destination, the gate treats the event as the message that was
        received from this destination."""
        return self.place.canonical(self.open().meta.region_name)

    def open(self) -> Any:
        """Return the client, and create it first if necessary. The client sends each request once: the gate or the
        platform retries the event."""
        with self._lock:
            if self._client is None:
                place = self.place
                self._client = create_client(
                    place.service,
                    place.region,
                    place.endpoint,
                    place.spoken,
                    connect_timeout=min(2.0, place.timeout),
                    read_timeout=place.timeout,
                    max_pool_connections=_MAX_CONNECTIONS,
                )
            return self._client

    def close(self) -> None:
        with self._lock:
            opened, self._client = self._client, None
        if opened is not None:
            opened.close()

    @abstractmethod
    def _send(self, aws: Any, event: Event) -> None:
        """Send one event with this client."""

    def _forget_client(self) -> None:
        self._client = None


class QueuePublisher(Publisher):
    """Sends each event to a queue. The message body is the JSON of the event. Message attributes have the key, the
    source, the type and the attempt. In a FIFO queue, the key is also the deduplication id: SQS drops duplicates for
    five minutes. In a FIFO queue, the events of one entity also keep their order."""

    _queue_url: str | None = None

    def _send(self, aws: Any, event: Event) -> None:
        if self._queue_url is None:
            owner = {} if self.place.account is None else {"QueueOwnerAWSAccountId": self.place.account}
            self._queue_url = aws.get_queue_url(QueueName=self.place.name, **owner)["QueueUrl"]
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in headers_of(event).items()}
        message = {"QueueUrl": self._queue_url, "MessageBody": document(event).decode()}
        ids = _fifo_ids(event) if self.place.name.endswith(FIFO) else {}
        aws.send_message(**message, MessageAttributes=attributes, **ids)


def _fifo_ids(event: Event) -> dict[str, str]:
    key = hashlib.sha256(document(event)).hexdigest() if event.key is None else str(event.key)
    return {"MessageDeduplicationId": key, "MessageGroupId": group_of(event.entity or key)}


def group_of(entity: str) -> str:
    """The message group id: the entity, or the hash of the entity if SQS does not allow the entity as a group id."""
    return entity if _GROUP.fullmatch(entity) else hashlib.sha256(entity.encode("utf-8", "surrogatepass")).hexdigest()


class BusPublisher(Publisher):
    """Puts each event on a bus. The detail is the JSON of the event. If the event came from a bus, the detail is its
    original detail. The key of the event is put into the resources as `oncegate:KEY`. If an event is put a second time,
    EventBridge assigns another id, but the resource is the same."""

    def _send(self, aws: Any, event: Event) -> None:
        entry: dict[str, Any] = {
            "EventBusName": self.place.name,
            "Source": self.place.source,
            "DetailType": (event.type or "event")[:_MAX_TYPE_LENGTH],
            "Detail": _detail(document(event), None if event.source != "eventbridge" else event.key),
            "Resources": [] if event.key is None else [f"oncegate:{event.key}"],
        }
        if event.occurred_at is not None:
            entry["Time"] = event.occurred_at
        (answer,) = aws.put_events(Entries=[entry])["Entries"]
        if code := answer.get("ErrorCode"):
            response = {"Error": {"Code": code, "Message": answer.get("ErrorMessage", "")}}
            raise ClientError(response, "PutEvents")


def _detail(raw: bytes, key: Key | None) -> str:
    """The detail as a JSON object, because EventBridge requires an object. Any other JSON value becomes the member
    `event` of an object.

    An event that came from a bus gets a new envelope here. Its `key` may have been made from the old envelope, so the
    key is also added to the detail, for rules that pass on the detail only."""
    body = msgspec.json.decode(raw)
    if not isinstance(body, dict):
        return msgspec.json.encode({"event": msgspec.Raw(raw)}).decode()
    if "detail-type" in body and isinstance(body.get("detail"), dict):
        added = {} if key is None else {HANDED_KEY: str(key)}
        return msgspec.json.encode({**body["detail"], **added}).decode()
    return raw.decode()


class MachinePublisher(Publisher):
    """Starts an execution of a state machine for each event. The input is the JSON of the event, and the name of the
    execution is the key of the event. A standard workflow accepts a name once in 90 days, so a second attempt starts
    nothing. An express workflow does not compare names."""

    def _send(self, aws: Any, event: Event) -> None:
        name = {} if event.key is None else {"name": str(event.key)}
        try:
            aws.start_execution(stateMachineArn=self.place.name, input=document(event).decode(), **name)
        except ClientError as error:
            if code_of(error) != _STARTED:
                raise


_PUBLISHERS: Final[dict[str, type[Publisher]]] = {
    "sqs": QueuePublisher,
    "events": BusPublisher,
    "stepfunctions": MachinePublisher,
}
