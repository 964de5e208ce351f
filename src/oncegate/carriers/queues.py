"""Unwrap SQS messages, in the format of Lambda and EventBridge Pipes and in the format of boto3."""

from typing import Any

from oncegate.carriers.pieces import HANDED_KEY, Piece, handed_key, is_json, text, whole, within
from oncegate.events import Evidence
from oncegate.times import moment

# All members of a message except its receipt handle. A message without a receipt handle, such as an example that a
# person wrote for a test, must not have other members.
_RECORD = {"messageId", "body", "attributes", "messageAttributes", "md5OfBody", "md5OfMessageAttributes"}
_RECORD |= {"awsRegion", "eventSource", "eventSourceARN"}
_MESSAGE = {"MessageId", "Body", "Attributes", "MessageAttributes", "MD5OfMessageAttributes"}
MARKERS = {"receiptHandle", "ReceiptHandle", "eventSource", "body", "Body"}
_REASON_CODES = ("ERROR_CODE", "ErrorCode")
_REASONS = ("ERROR_MESSAGE", "ErrorMessage")


def pieces(body: dict[str, Any]) -> list[Piece] | None:
    if (
        _has(body, "receiptHandle", "body")
        or body.get("eventSource") == "aws:sqs"
        or _is_bare(body, "messageId", "body", _RECORD)
    ):
        return [_message(body, "body", "messageId", "attributes", "messageAttributes")]
    if (
        _has(body, "ReceiptHandle", "Body")
        or ("Body" in body and "MD5OfBody" in body)
        or _is_bare(body, "MessageId", "Body", _MESSAGE)
    ):
        return [_message(body, "Body", "MessageId", "Attributes", "MessageAttributes")]
    return None


def _has(body: dict[str, Any], handle: str, content: str) -> bool:
    """Whether a document with a receipt handle is a message. A message has no `id`, so a document with a receipt handle
    and an `id`, but without a body, is an event."""
    return handle in body and (content in body or "id" not in body)


def _is_bare(body: dict[str, Any], name: str, content: str, members: set[str]) -> bool:
    return name in body and content in body and body.keys() <= members and is_json(body[content])


def _message(message: dict[str, Any], body: str, name: str, attributes: str, user_attributes: str) -> Piece:
    system, own = message.get(attributes), message.get(user_attributes)
    evidence = Evidence(
        message_id=text(message.get(name)),
        receive_count=whole(within(system, "ApproximateReceiveCount")),
        sent_at=moment(within(system, "SentTimestamp")),
        failure=_failure(own),
        group=text(within(system, "MessageGroupId")),
        handed_key=handed_key(_attribute(own, (HANDED_KEY,))) if own and isinstance(own, dict) else None,
    )
    content = message.get(body)
    if content is None or content == "":
        return Piece(message, evidence, "the SQS message has no body")
    return Piece(content, evidence)


def _failure(attributes: Any) -> str | None:
    """Return the reason why EventBridge or Lambda moved the event to this queue: `SDK_CLIENT_ERROR: timeout`."""
    if not isinstance(attributes, dict) or not attributes:
        return None
    reasons = [_attribute(attributes, names) for names in (_REASON_CODES, _REASONS)]
    return ": ".join(reason for reason in reasons if reason) or None


def _attribute(attributes: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        found = text(within(attributes, name, "stringValue")) or text(within(attributes, name, "StringValue"))
        if found:
            return found
    return None
