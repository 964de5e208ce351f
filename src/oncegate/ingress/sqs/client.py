"""What the errors of SQS mean to whoever reads them: one sentence, and what to do."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from typing import Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from oncegate.aws.clients import checked_endpoint, create_client
from oncegate.aws.failures import FAILURES, ErrorHints, FailureKind, classify
from oncegate.errors import QueueError, QueueUnavailable, SettingError
from oncegate.text import quoted

_HINTS: Final = ErrorHints("SQS", "write sqs://NAME?region=eu-central-1", "docs/guide/sqs.md lists what is needed")


class QueueMissing(QueueError):
    """There is no such queue."""


_ERRORS: Final[dict[FailureKind, type[QueueError]]] = {"transient": QueueUnavailable, "missing": QueueMissing}


def explained(error: Exception, place: str, action: str) -> QueueError:
    found = classify(error, place, action, _HINTS)
    return _ERRORS.get(found.kind, QueueError)(found.message)


# Where a queue is. Credentials are never in it: they come from where AWS's tools look.


OPTIONS: Final = ("region", "endpoint")
_SCHEME: Final = "sqs://"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_URL: Final = re.compile(r"https?://[^/?#@\s]+/[^?#@\s]*")
_AWS: Final = re.compile(r"(?:sqs\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.(?:queue\.)?amazonaws\.com(?:\.cn)?")


class QueueAddress(Struct, frozen=True):
    """A queue by its name, or by its URL if that is known."""

    name: str
    url: str | None = None
    region: str | None = None
    endpoint: str | None = None

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")

    @property
    def place(self) -> str:
        """Where it is, for a sentence."""
        where = self.endpoint or (f"region {self.region}" if self.region else None)
        return f"the SQS queue {self.name} ({where})" if where else f"the SQS queue {self.name}"


def read_address(written: str) -> QueueAddress:
    """`sqs://NAME`, `sqs://https://…` or the URL that AWS shows, with `?region=` and `&endpoint=`."""
    bare, _, query = written.removeprefix(_SCHEME).partition("?")
    options = dict(parse_qsl(query))
    if unknown := sorted(options.keys() - set(OPTIONS)):
        raise SettingError(f"the address of a queue has no option {unknown[0]!r}; it has {' and '.join(OPTIONS)}")
    region, endpoint = options.get("region"), checked_endpoint(options.get("endpoint"))
    if _URL.fullmatch(bare):
        return _by_url(bare, region, endpoint)
    if not written.startswith(_SCHEME) or not _NAME.fullmatch(bare):
        raise SettingError(
            f"{quoted(written)} names no queue; write sqs://NAME?region=eu-central-1, or the URL that AWS shows for it"
        )
    return QueueAddress(bare, None, region, endpoint)


def _by_url(url: str, region: str | None, endpoint: str | None) -> QueueAddress:
    """A URL of AWS's has the region in it; any other is of an emulator or a proxy, and says where to ask."""
    parts = urlsplit(url)
    name = parts.path.rpartition("/")[2]
    if not _NAME.fullmatch(name):
        raise SettingError(f"{quoted(url)} does not end with the name of a queue; copy the URL that AWS shows for it")
    aws = _AWS.fullmatch(parts.netloc)
    if aws is not None:
        return QueueAddress(name, url, region or aws[1], endpoint)
    return QueueAddress(name, url, region, endpoint or f"{parts.scheme}://{parts.netloc}")


# Requests to SQS: each is asked once, and whoever asks decides what becomes of a failure.


AT_A_TIME: Final = 10
_ATTRIBUTES: Final = ["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"]
_SLACK: Final = 10.0


class FailedEntry(Struct, frozen=True):
    """Why one entry of a batch was refused, and whether it may be taken when it is sent again."""

    why: str
    passes: bool


class SqsClient:
    """Used from several threads. `wait`, the longest of a poll, and `visibility` are in seconds."""

    def __init__(self, address: QueueAddress, *, wait: int, visibility: int, connections: int) -> None:
        self.place = address.place
        self._address = address
        self._wait = wait
        self._visibility = visibility
        self._connections = connections
        self._client: Any = None
        self._url = address.url or ""

    def open(self) -> bool:
        """Find the queue, and whether it has somewhere to put what always fails; QueueError if it cannot be used."""
        try:
            self._client = create_client(
                "sqs",
                self._address.region,
                self._address.endpoint,
                self.place,
                connect_timeout=5.0,
                read_timeout=self._wait + _SLACK,
                max_pool_connections=self._connections,
            )
        except FAILURES as error:
            raise explained(error, self.place, "") from error
        if self._address.url is None:
            self._url = self._ask("GetQueueUrl", self._client.get_queue_url, QueueName=self._address.name)["QueueUrl"]
        asked = self._of_queue("GetQueueAttributes", self._client.get_queue_attributes, AttributeNames=["All"])
        return "RedrivePolicy" in asked.get("Attributes", {})

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def receive(self, most: int, wait: int) -> list[dict[str, Any]]:
        """Wait so many seconds for messages."""
        answer = self._of_queue(
            "ReceiveMessage",
            self._client.receive_message,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=wait,
            VisibilityTimeout=self._visibility,
            MessageSystemAttributeNames=_ATTRIBUTES,
            MessageAttributeNames=["All"],
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def delete(self, handles: Sequence[str]) -> dict[int, FailedEntry]:
        """Delete up to ten messages. The numbers of those that were not, with the reason."""
        entries = [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles)]
        return _refusals(self._of_queue("DeleteMessage", self._client.delete_message_batch, Entries=entries))

    def show(self, handles: Sequence[tuple[str, float]]) -> dict[int, FailedEntry]:
        """Have up to ten messages become visible so many seconds from now, each."""
        entries = [
            {"Id": str(at), "ReceiptHandle": handle, "VisibilityTimeout": ceil(seconds)}
            for at, (handle, seconds) in enumerate(handles)
        ]
        ask = self._client.change_message_visibility_batch
        return _refusals(self._of_queue("ChangeMessageVisibility", ask, Entries=entries))

    def _of_queue(self, action: str, request: Callable[..., Any], **parameters: Any) -> dict[str, Any]:
        return self._ask(action, request, QueueUrl=self._url, **parameters)

    def _ask(self, action: str, request: Callable[..., Any], **parameters: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = request(**parameters)
        except FAILURES as error:
            raise explained(error, self.place, f"sqs:{action}") from error
        return answer


def _refusals(answer: dict[str, Any]) -> dict[int, FailedEntry]:
    return {
        int(failed["Id"]): FailedEntry(
            f"{failed.get('Code')}: {failed.get('Message', '')}", not failed.get("SenderFault")
        )
        for failed in answer.get("Failed", [])
    }


# Batches: entries for requests that take ten at a time, sent soon and sent again if they fail.


_Entry = TypeVar("_Entry")
_LINGER: Final = 0.02
_TRIES: Final = 6
_FIRST_PAUSE: Final = 0.1


class BatchSender(Generic[_Entry]):
    """`send` gets up to ten entries and answers the refused by their number; `done` hears of each entry when it is
    over, and why if it was given up."""

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
        if len(self._waiting) >= AT_A_TIME:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LINGER, self._begin)

    async def flush(self, within: float) -> None:
        """Wait until all has been sent, at most so long."""
        if self._waiting:
            self._begin()
        if self._sending:
            await asyncio.wait(self._sending, timeout=within)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._sent(entries))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _sent(self, entries: list[_Entry]) -> None:
        """Those that fail for no fault of ours are sent again, after a growing pause."""
        pause = _FIRST_PAUSE
        for left in reversed(range(_TRIES)):
            entries = await self._try(entries, last=not left)
            if not entries:
                return
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311  # no secret
            pause *= 2

    async def _try(self, entries: list[_Entry], *, last: bool) -> list[_Entry]:
        """Send these; the ones to be sent again."""
        try:
            refused = await self._send(entries)
        except QueueError as error:
            refused = dict.fromkeys(range(len(entries)), FailedEntry(str(error), passes=True))
        again = []
        for at, entry in enumerate(entries):
            refusal = refused.get(at)
            if refusal is not None and refusal.passes and not last:
                again.append(entry)
            else:
                self._done(entry, None if refusal is None else refusal.why)
        return again
