"""EventBridge's envelope, of which the detail is the body. It stays with the delivery, as it names the event."""

from typing import Any

from oncegate.carriers.pieces import merged, parsed, within
from oncegate.events import Delivery, Evidence


def delivery(document: dict[str, Any], raw: bytes, evidence: Evidence) -> Delivery | None:
    """The detail of an envelope; None if the document is none, for all that it has a detail."""
    detail = document["detail"]
    if type(detail) is str:
        detail = parsed(detail)  # as PutEvents wants it
    if type(detail) is not dict or not ("detail-type" in document or _is_tutorial(document, detail)):
        return None
    replay = document.get("replay-name")
    if type(replay) is str:
        evidence = merged(evidence, Evidence(replay=replay))
    return Delivery(detail, raw, None, evidence, document)


def names_genesys(document: dict[str, Any]) -> bool:
    source = document.get("source")
    return isinstance(source, str) and source.casefold().startswith(("genesys", "com.genesys", "aws.partner/genesys"))


def _is_tutorial(document: dict[str, Any], detail: dict[str, Any]) -> bool:
    """Tutorials write envelopes without a detail-type."""
    if names_genesys(document):
        return True
    if "conversationId" in detail or "topicName" in detail:
        return True
    return "payload" in detail and within(detail, "payload", "interactionId") is not None
