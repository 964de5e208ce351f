"""Unwrap SNS notifications that arrive by HTTP, inside an SQS message, or in the format of Lambda."""

from typing import Any

from oncegate.carriers.pieces import Piece, is_json, text
from oncegate.events import Evidence
from oncegate.times import moment

# A notification without a TopicArn must have all members of _BARE, and no members that are not in _MEMBERS.
_BARE = {"Type", "MessageId", "Message"}
_MEMBERS = {*_BARE, "Subject", "Timestamp", "MessageAttributes", "SignatureVersion", "Signature"}
_MEMBERS |= {"SigningCertURL", "SigningCertUrl", "UnsubscribeURL", "UnsubscribeUrl"}
MARKERS = {"Sns", "Type"}
_CONFIRMATIONS = {
    "SubscriptionConfirmation": "an SNS subscription that waits for confirmation",
    "UnsubscribeConfirmation": "the end of an SNS subscription",
}


def pieces(body: dict[str, Any]) -> list[Piece] | None:
    sns = body.get("Sns")
    if isinstance(sns, dict) and ("Message" in sns or "MessageId" in sns or "id" not in body):
        return [_notification(sns)]
    if "TopicArn" in body and "Type" in body and ("Message" in body or "MessageId" in body):
        return [_notification(body)]
    if body.get("Type") == "Notification" and _BARE <= body.keys() <= _MEMBERS and is_json(body["Message"]):
        return [_notification(body)]
    return None


def _notification(body: dict[str, Any]) -> Piece:
    evidence = Evidence(message_id=text(body.get("MessageId")), sent_at=moment(body.get("Timestamp")))
    kind = body.get("Type")
    if isinstance(kind, str) and kind in _CONFIRMATIONS:
        return Piece(body, evidence, frame=_CONFIRMATIONS[kind])
    content = body.get("Message")
    if content is None or content == "":
        return Piece(body, evidence, "the SNS notification has no message")
    return Piece(content, evidence)
