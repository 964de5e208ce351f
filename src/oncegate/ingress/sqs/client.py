"""This module parses the address of an SQS queue, sends requests to the queue, and sends batches with retries."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from typing import Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from oncegate.aws.clients import checked_endpoint, create_client
from oncegate.aws.failures import FAILURES, ErrorHints, FailureKind, classify
from oncegate.backoff import Backoff
from oncegate.errors import QueueError, QueueUnavailable, SettingError
from oncegate.text import quoted

MAX_BATCH: Final = 10  # entries of one SQS request
OPTIONS: Final = ("region", "endpoint")
_SCHEME: Final = "sqs://"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_URL: Final = re.compile(r"https?://[^/?#@\s]+/[^?#@\s]*")
_AWS_HOST: Final = re.compile(r"(?:sqs\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.(?:queue\.)?amazonaws\.com(?:\.cn)?")
_ATTRIBUTES: Final = ["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"]
_READ_SLACK: Final = 10.0  # seconds that an answer may take in addition to the wait of a long poll
_HINTS: Final = ErrorHints("SQS", "write 'sqs://NAME?region=eu-central-1'", "docs/guide/sqs.md lists what is needed")


# ── address ───────────────────────────────────────────────────────────────────────────────────────────────


class QueueAddress(Struct, frozen=True):
    """The name of a queue, and its URL if the user gave a URL. An address never contains credentials: botocore finds
    them."""

    name: str
    url: str | None = None
    region: str | None = None
    endpoint: str | None = None

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")

    @property
    def place(self) -> str:
        """The name and the location of the queue, for messages to people."""
        where = self.endpoint or (f"region {self.region}" if self.region else None)
        return f"the SQS queue {self.name} ({where})" if where else f"the SQS queue {self.name}"


def read_address(text: str) -> QueueAddress:
    """Parse `sqs://NAME`, `sqs://https://…` or the URL that AWS shows. Each form may have the options `region` and
    `endpoint`, as in `?region=…&endpoint=…`. Raises SettingError."""
    bare, _, query = text.removeprefix(_SCHEME).partition("?")
    options = dict(parse_qsl(query))
    if unknown := sorted(options.keys() - set(OPTIONS)):
        raise SettingError(f"unknown option {unknown[0]!r} in a queue URL; use {' or '.join(OPTIONS)}")
    region, endpoint = options.get("region"), checked_endpoint(options.get("endpoint"))
    if _URL.fullmatch(bare):
        return _read_https(bare, region, endpoint)
    if not text.startswith(_SCHEME) or not _NAME.fullmatch(bare):
        raise SettingError(
            f"{quoted(text)} is not the URL of a queue; write 'sqs://NAME?region=eu-central-1', or the URL that AWS"
            " shows for the queue"
        )
    return QueueAddress(bare, None, region, endpoint)


def _read_https(url: str, region: str | None, endpoint: str | None) -> QueueAddress:
    """Parse the URL of a queue. A URL of AWS contains the region. Any other URL belongs to an emulator or a proxy, and
    its host is used as the endpoint."""
    parts = urlsplit(url)
    name = parts.path.rpartition("/")[2]
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"{quoted(url)} does not end with the name of a queue; copy the URL that AWS shows for the queue"
        )
    aws = _AWS_HOST.fullmatch(parts.netloc)
    if aws is not None:
        return QueueAddress(name, url, region or aws[1], endpoint)
    return QueueAddress(name, url, region, endpoint or f"{parts.scheme}://{parts.netloc}")


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────


class QueueMissing(QueueError):
    """The queue does not exist."""


_ERRORS: Final[dict[FailureKind, type[QueueError]]] = {"transient": QueueUnavailable, "missing": QueueMissing}


class FailedEntry(Struct, frozen=True):
    """Why SQS rejected one entry of a batch, and whether a retry may succeed."""

    reason: str
    may_retry: bool


class SqsClient:
    """Sends requests to one queue, without retries. Each request raises QueueError if it fails. Thread-safe. `wait` is
    the longest wait of a poll. `wait` and `visibility` are in seconds."""

    def __init__(self, address: QueueAddress, *, wait: int, visibility: int, connections: int) -> None:
        self.place = address.place
        self._address = address
        self._wait = wait
        self._visibility = visibility
        self._connections = connections
        self._client: Any = None
        self._url = address.url or ""

    def open(self) -> bool:
        """Connect to the queue. Returns whether the queue has a redrive policy, which names its dead-letter queue."""
        try:
            self._client = create_client(
                "sqs",
                self._address.region,
                self._address.endpoint,
                self.place,
                connect_timeout=5.0,
                read_timeout=self._wait + _READ_SLACK,
                max_pool_connections=self._connections,
            )
        except FAILURES as error:
            raise self._explained(error, "") from error
        if self._address.url is None:
            answer = self._request("GetQueueUrl", self._client.get_queue_url, QueueName=self._address.name)
            self._url = answer["QueueUrl"]
        answer = self._request(
            "GetQueueAttributes", self._client.get_queue_attributes, QueueUrl=self._url, AttributeNames=["All"]
        )
        return "RedrivePolicy" in answer.get("Attributes", {})

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def receive(self, limit: int, wait: int) -> list[dict[str, Any]]:
        """Receive up to `limit` messages. Waits up to `wait` seconds for the first message."""
        answer = self._request(
            "ReceiveMessage",
            self._client.receive_message,
            QueueUrl=self._url,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=wait,
            VisibilityTimeout=self._visibility,
            MessageSystemAttributeNames=_ATTRIBUTES,
            MessageAttributeNames=["All"],
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def delete(self, handles: Sequence[str]) -> dict[int, FailedEntry]:
        """Delete up to ten messages. Returns the failures by index."""
        entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(handles)]
        return self._request_batch("DeleteMessage", self._client.delete_message_batch, entries)

    def change_visibility(self, handles: Sequence[tuple[str, float]]) -> dict[int, FailedEntry]:
        """Set when up to ten messages become visible. Each entry is a receipt handle and the number of seconds after
        which its message becomes visible. Returns the failures by index."""
        entries = [
            {"Id": str(index), "ReceiptHandle": handle, "VisibilityTimeout": ceil(seconds)}
            for index, (handle, seconds) in enumerate(handles)
        ]
        return self._request_batch("ChangeMessageVisibility", self._client.change_message_visibility_batch, entries)

    def _request_batch(
        self, action: str, request: Callable[..., Any], entries: Sequence[dict[str, Any]]
    ) -> dict[int, FailedEntry]:
        answer = self._request(action, request, QueueUrl=self._url, Entries=entries)
        return {
            int(failed["Id"]): FailedEntry(
                f"{failed.get('Code')}: {failed.get('Message', '')}", not failed.get("SenderFault")
            )
            for failed in answer.get("Failed", [])
        }

    def _request(self, action: str, request: Callable[..., Any], **parameters: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = request(**parameters)
        except FAILURES as error:
            raise self._explained(error, f"sqs:{action}") from error
        return answer

    def _explained(self, error: Exception, action: str) -> QueueError:
        found = classify(error, self.place, action, _HINTS)
        return _ERRORS.get(found.kind, QueueError)(found.message)


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────

_Entry = TypeVar("_Entry")
_LINGER: Final = 0.02  # seconds that an entry waits for more entries of the same request
_TRIES: Final = 6
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


class BatchSender(Generic[_Entry]):
    """Collects entries into requests of up to ten entries, sends the requests, and retries the entries that fail.

    `send` is called with up to ten entries and returns the failures by index. `done` is called once for each entry:
    with None after a success, or with the reason after the last failure.
    """

    def __init__(
        self,
        send: Callable[[Sequence[_Entry]], Awaitable[dict[int, FailedEntry]]],
        done: Callable[[_Entry, str | None], None],
    ) -> None:
        self._send = send
        self._done = done
        self._waiting: list[_Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def put(self, entry: _Entry) -> None:
        self._waiting.append(entry)
        if len(self._waiting) >= MAX_BATCH:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER, self._begin)

    async def flush(self, within: float) -> None:
        """Wait until every entry was sent or has finally failed, for at most `within` seconds."""
        if self._waiting:
            self._begin()
        if self._sending:
            await asyncio.wait(self._sending, timeout=within)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._send_with_retries(entries))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_with_retries(self, entries: list[_Entry]) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        for tries_left in reversed(range(_TRIES)):
            entries = await self._send_once(entries, is_last=not tries_left)
            if not entries:
                return
            await asyncio.sleep(backoff.next_pause())

    async def _send_once(self, entries: list[_Entry], *, is_last: bool) -> list[_Entry]:
        """Send the entries once. Returns the entries to send again."""
        try:
            failures = await self._send(entries)
        except QueueError as error:
            failures = dict.fromkeys(range(len(entries)), FailedEntry(str(error), may_retry=True))
        again = []
        for index, entry in enumerate(entries):
            failed = failures.get(index)
            if failed is not None and failed.may_retry and not is_last:
                again.append(entry)
            else:
                self._done(entry, None if failed is None else failed.reason)
        return again
