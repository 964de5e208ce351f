"""Requests to SQS: each is asked once, and whoever asks decides what becomes of a failure."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, Final

from msgspec import Struct

from oncegate.aws.clients import client
from oncegate.aws.failures import FAILURES
from oncegate.work.sqs.address import Address
from oncegate.work.sqs.failures import explained

AT_A_TIME: Final = 10
_ATTRIBUTES: Final = ["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"]
_SLACK: Final = 10.0


class Refusal(Struct, frozen=True):
    """Why one entry of a batch was refused, and whether it may be taken when it is sent again."""

    why: str
    passes: bool


class Calls:
    """Used from several threads. `wait`, the longest of a poll, and `visibility` are in seconds."""

    def __init__(self, address: Address, *, wait: int, visibility: int, connections: int) -> None:
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
            self._client = client(
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

    def delete(self, handles: Sequence[str]) -> dict[int, Refusal]:
        """Delete up to ten messages. The numbers of those that were not, with the reason."""
        entries = [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles)]
        return _refusals(self._of_queue("DeleteMessage", self._client.delete_message_batch, Entries=entries))

    def show(self, handles: Sequence[tuple[str, float]]) -> dict[int, Refusal]:
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


def _refusals(answer: dict[str, Any]) -> dict[int, Refusal]:
    return {
        int(failed["Id"]): Refusal(f"{failed.get('Code')}: {failed.get('Message', '')}", not failed.get("SenderFault"))
        for failed in answer.get("Failed", [])
    }
