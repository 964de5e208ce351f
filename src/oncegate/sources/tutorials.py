"""The shapes that tutorials use for events of Genesys and NICE CXone, which neither of them sends."""

from typing import Any

from oncegate.canonical import content_digest
from oncegate.carriers.eventbridge import names_genesys
from oncegate.events import Delivery, Event
from oncegate.sources.fields import apart, at, envelope_id, first, identifier, name, places, stated, text, when
from oncegate.times import moment

ENTITY = places("conversationId", "interactionId", "contactId", "data.conversationId", "data.interactionId")
STATE = places("state", "status", "data.state", "data.status")
TIME = places("timestamp", "eventTime", "time", "createdTime", "occurredAt", "createdAt", "data.timestamp")

_KIND = places("eventType", "type")
_ID = places("id", "eventId")
_TIME = (*TIME, *places("payload.timestamp", "payload.eventTime"))


def read(delivery: Delivery) -> Event | None:
    body, envelope = delivery.body, delivery.envelope or {}
    if at(body, ("payload", "interactionId")) is not None:
        return _read(delivery, envelope, "cxone", body["payload"]["interactionId"], body["payload"])
    if (delivery.envelope and "conversationId" in body) or names_genesys(envelope) or names_genesys(body):
        return _read(delivery, envelope, "genesys", first(body, ENTITY), body)
    return None


def _read(delivery: Delivery, envelope: dict[str, Any], source: str, entity: Any, said: dict[str, Any]) -> Event:
    body = delivery.body
    own, sent = identifier(first(body, _ID)), envelope_id(delivery)
    kind = text(first(body, _KIND)) or text(envelope.get("detail-type"))
    told = when(body, _TIME)
    numbered = source == "cxone" and own is not None
    return Event(
        source=source,
        id=sent or own,
        type=kind,
        entity=name(entity),
        state=stated(said, STATE),
        occurred_at=told or moment(envelope.get("time")),
        own_id=() if own is None else (own,),
        identity=("event", None, own) if numbered else ("tutorial", name(entity), kind, apart(delivery, told)),
        content_hash=None if numbered else content_digest(body),
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )
