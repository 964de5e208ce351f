"""Unwrap an EventBridge envelope. The detail becomes the body; the delivery keeps the envelope, with the event's id."""

from typing import Any, Final

from oncegate.carriers.pieces import HANDED_KEY, handed_key, merged, parsed, within, without_key
from oncegate.events import Delivery, Evidence

_RESOURCE: Final = "oncegate:"


def delivery(document: dict[str, Any], raw: bytes, evidence: Evidence) -> Delivery | None:
    """Return the delivery of the detail of an envelope, or None if a document with a `detail` is not an envelope."""
    detail = document["detail"]
    if type(detail) is str:
        detail = parsed(detail)  # the PutEvents call has the detail as JSON text
    if type(detail) is not dict or not ("detail-type" in document or _is_tutorial(document, detail)):
        return None
    replay, resources = document.get("replay-name"), document.get("resources")
    if type(replay) is str:
        evidence = merged(evidence, Evidence(replay=replay))
    if resources and (key := _handed_key(resources)) is not None:
        evidence = merged(evidence, Evidence(handed_key=key))
    if HANDED_KEY in detail:
        detail, evidence = without_key(detail, evidence)
    return Delivery(detail, raw, None, evidence, document)


def _handed_key(resources: Any) -> str | None:
    """Return the key that a gate has added to `resources` when it published the event."""
    if type(resources) is not list:
        return None
    texts = (each.removeprefix(_RESOURCE) for each in resources if type(each) is str and each.startswith(_RESOURCE))
    return next(filter(None, map(handed_key, texts)), None)


def names_genesys(document: dict[str, Any]) -> bool:
    source = document.get("source")
    return isinstance(source, str) and source.casefold().startswith(("genesys", "com.genesys", "aws.partner/genesys"))


def _is_tutorial(document: dict[str, Any], detail: dict[str, Any]) -> bool:
    """Whether this is an envelope as tutorials show it, without a detail-type."""
    if names_genesys(document):
        return True
    if "conversationId" in detail or "topicName" in detail:
        return True
    return "payload" in detail and within(detail, "payload", "interactionId") is not None
