"""The shapes that tutorials use for events of Genesys and NICE CXone, which neither of them sends."""

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

TELLING = {"payload", "source", "conversationId"}
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
    """The detail of a tutorial's envelope by itself, as the input path `$.detail` hands it over: it has the key that it
    has in its envelope. Less than these three members is too little to tell it from an event of somebody else's, and no
    tutorial calls its id `eventId` there."""
    body = delivery.body
    if delivery.envelope is not None or "eventId" in body:
        return None
    if not (name(body.get("conversationId")) and text(body.get("eventType")) and moment(body.get("timestamp"))):
        return None
    return _read(delivery, body, "genesys", body["conversationId"], body)


def _read(delivery: Delivery, envelope: dict[str, Any], source: str, entity: Any, said: dict[str, Any]) -> Event:
    body = delivery.body
    own, sent = identifier(first(body, _ID)), envelope_id(delivery)
    kind = text(first(body, _KIND)) or text(said.get("eventType")) or text(envelope.get("detail-type"))
    told = when(body, _TIME)
    numbered = source == "cxone" and own is not None
    return Event(
        source=source,
        id=sent or own,
        type=template_of(kind) if source == "genesys" else kind,
        entity=name(entity),
        state=stated(said, STATE) or stated(body, STATE),
        occurred_at=told or moment(envelope.get("time")),
        own_id=() if own is None else (own,),
        identity=("event", None, own) if numbered else ("tutorial", name(entity), kind, apart(delivery, told)),
        content_hash=None if numbered else content_digest(_without_trace(body)),
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _without_trace(body: dict[str, Any]) -> dict[str, Any]:
    """The body without the id of a trace, which copies do not share."""
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or _TRACE not in metadata:
        return body
    return {**body, "metadata": {member: value for member, value in metadata.items() if member != _TRACE}}
