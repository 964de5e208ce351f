"""Read Genesys Open Messaging webhooks: messages, receipts and typing events of a custom channel."""

from typing import Any

from oncegate.canonical import content_digest
from oncegate.events import Delivery, Event
from oncegate.sources.fields import apart, at, envelope_id, folded, identifier, name, state, within_envelope
from oncegate.times import moment

MARKERS = {"channel"}
_KINDS = {"text": "Text", "structured": "Structured", "receipt": "Receipt", "event": "Event"}


def read(delivery: Delivery) -> Event | None:
    body = delivery.body
    channel = body.get("channel")
    if not isinstance(channel, dict) or not isinstance(body.get("type"), str):
        return None
    kind = body["type"].casefold()
    if not _is_open(channel, kind, alone=delivery.envelope is None):
        return None
    message, event_time = identifier(body.get("id")), moment(channel.get("time"))
    status = state(body.get("status")) or state(at(body, ("events", "0", "eventType")))
    return Event(
        source="genesys",
        id=envelope_id(delivery) or message,
        type=f"openmessaging.{_KINDS.get(kind) or body['type'][:1].upper() + body['type'][1:]}",
        entity=name(body.get("conversationId")) or name(channel.get("id")),
        state=status,
        occurred_at=event_time,
        own_id=() if message is None else (message,),
        # Genesys documents that id and time together are unique. But a receipt has the id of its message, and two
        # receipts of one message may have the same time. Type and status distinguish such receipts.
        identity=("openmessaging", name(channel.get("id")), message, kind, folded(status), apart(delivery, event_time))
        if message is not None
        else within_envelope(delivery, event_time),
        content_hash=content_digest(body) if message is None else None,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _is_open(channel: dict[str, Any], kind: str, *, alone: bool) -> bool:
    """Whether this is an Open Messaging channel. Inside an envelope (`alone` is false) the channel must name its
    platform. A document without the platform may come from another sender."""
    platform = channel.get("platform")
    if isinstance(platform, str):
        return platform.casefold() == "open"
    if not alone:
        return False
    if "messageId" in channel:
        return True
    return "time" in channel and ("to" in channel or "from" in channel or ("id" in channel and kind in _KINDS))
