"""Read the event formats that tutorials about Genesys and NICE CXone use, but that neither platform sends."""

from typing import Any

from oncegate.canonical import content_digest
from oncegate.carriers.eventbridge import names_genesys
from oncegate.events import Delivery, Event
from oncegate.sources.fields import apart, at, envelope_id, first, identifier, name, places, stated, text, when
from oncegate.sources.topics import id_of, template_of
from oncegate.times import moment

ENTITY = places("conversationId", "interactionId", "contactId", "data.conversationId", "data.interactionId")
STATE = places("state", "status", "data.state", "data.status")
_TIMES = ("timestamp", "eventTime", "time", "createdTime", "occurredAt", "createdAt")
TIME = places(*_TIMES, *(f"data.{name}" for name in _TIMES))

MARKERS = {"payload", "source", "conversationId"}
_KIND = places("eventType", "type")
_ID = places("id", "eventId")
_TIME = (*TIME, *places(*(f"payload.{name}" for name in _TIMES)))
_TRACE = "CorrelationId"


def read(delivery: Delivery) -> Event | None:
    body, envelope = delivery.body, delivery.envelope or delivery.body
    if at(body, ("payload", "interactionId")) is not None:
        return _read(delivery, envelope, "cxone", body["payload"]["interactionId"], body["payload"])
    if (delivery.envelope and "conversationId" in body) or names_genesys(envelope) or names_genesys(body):
        topic = text(body.get("topicName")) or text(envelope.get("detail-type"))
        return _read(delivery, envelope, "genesys", first(body, ENTITY) or id_of(topic), body)
    return None


def guess(delivery: Delivery) -> Event | None:
    """Read a detail in the format of a tutorial that arrives without its envelope. The input path `$.detail` delivers
    such a detail. The key is the same as with the envelope. The detail must have `conversationId`, `eventType` and
    `timestamp`, because an event of another sender could have two of them. It must not have `eventId`, because no
    tutorial uses `eventId` in a detail. Returns None for other deliveries."""
    body = delivery.body
    if delivery.envelope is not None or "eventId" in body:
        return None
    if not (name(body.get("conversationId")) and text(body.get("eventType")) and moment(body.get("timestamp"))):
        return None
    return _read(delivery, body, "genesys", body["conversationId"], body)


def _read(delivery: Delivery, envelope: dict[str, Any], source: str, entity: Any, content: dict[str, Any]) -> Event:
    body = delivery.body
    own_id, sent_id = identifier(first(body, _ID)), envelope_id(delivery)
    kind = text(first(body, _KIND)) or text(content.get("eventType")) or text(envelope.get("detail-type"))
    event_time = when(body, _TIME)
    has_own_id = source == "cxone" and own_id is not None
    identity = ("event", None, own_id) if has_own_id else ("tutorial", name(entity), kind, apart(delivery, event_time))
    return Event(
        source=source,
        id=sent_id or own_id,
        type=template_of(kind) if source == "genesys" else kind,
        entity=name(entity),
        state=stated(content, STATE) or stated(body, STATE),
        occurred_at=event_time or moment(envelope.get("time")),
        own_id=() if own_id is None else (own_id,),
        identity=identity,
        content_hash=None if has_own_id else content_digest(_without_trace(body)),
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _without_trace(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body without the trace id, because the trace id differs between copies of one event."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or _TRACE not in metadata:
        return body
    return {**body, "metadata": {member: value for member, value in metadata.items() if member != _TRACE}}
