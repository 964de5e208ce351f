"""NICE CXone: digital events, events polled from the ACD, and messages to a channel of one's own (BYOC)."""

from typing import Any

from oncegate.canonical import content_digest
from oncegate.events import Delivery, Event
from oncegate.sources.fields import at, first, folded, identifier, name, named, places, stated, text, when

SOURCE = "cxone"

_OBJECTS = ("case", "contact", "message", "thread", "brand", "s3Object")
_ENTITY = places("case.id", "case.ID", "contact.id", "contact.ID", "case.interactionId", "contact.interactionId")
_ENTITY += places("interactionId", "message.interactionId", "thread.id")
_STATE = places("case.status", "contact.status")
_STATUS_TIME = places(
    "case.statusUpdatedAtWithMilliseconds",
    "case.statusUpdatedAt",
    "contact.statusUpdatedAtWithMilliseconds",
    "contact.statusUpdatedAt",
)
_TENANT = places("brand.tenantId", "tenantId", "brand.id", "brand.businessUnitId")
_TIME = places("createdAtWithMilliseconds", "createdAt")
_ACD_IDS = ("contactid", "agentid", "busno", "sessionid", "masterid")
_ACD_STATE = places("status", "currentstate", "state")
_ACD_TIME = places("laststatechangetimeutc", "laststatechangetime")


def read(delivery: Delivery) -> Event | None:
    body = delivery.body
    if "eventType" in body or "eventObject" in body:
        return _digital(delivery)
    if "Type" in body:
        return _acd(delivery)
    if isinstance(body.get("message"), dict) and isinstance(body.get("thread"), dict):
        return _byoc(delivery)
    return None


def _digital(delivery: Delivery) -> Event | None:
    document, data = delivery.body, delivery.body.get("data")
    if not isinstance(data, dict) or not ("eventObject" in document or any(part in data for part in _OBJECTS)):
        return None
    found = identifier(document.get("eventId"), "eventId")
    kind = text(document.get("eventType")) or text(document.get("eventObject"))
    entity, said = named(data, _ENTITY), stated(data, _STATE)
    tenant = named(data, _TENANT) or name(document.get("tenantId"))
    changed = named(data, _STATUS_TIME)
    if found is not None:
        identity: tuple[Any, ...] = ("event", tenant, found)
    elif None not in (entity, kind, said, changed):
        identity = ("status", entity, kind, folded(said), changed)
    else:
        identity = ()
    told = when(document, _TIME)
    return Event(
        source=SOURCE,
        id=found,
        type=kind,
        entity=entity,
        state=said,
        occurred_at=told,
        identity=identity,
        content_hash=None if identity else content_digest(data),
        body=data,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _acd(delivery: Delivery) -> Event | None:
    """Members are written in more than one case from method to method."""
    members = {member.lower(): value for member, value in delivery.body.items()}
    kind = text(delivery.body["Type"])
    if kind is None or not any(member in members for member in _ACD_IDS):
        return None
    contact, status, final = name(members.get("contactid")), stated(members, _ACD_STATE), _final(members)
    told = when(members, _ACD_TIME)
    identity: tuple[Any, ...] = ()
    if contact is not None and status is not None and told is not None:
        identity = ("contact", contact, kind, folded(status), final, told.isoformat())
    return Event(
        source=SOURCE,
        type=kind,
        entity=contact or name(members.get("agentid")),
        # A contact is disconnected twice, the second time for good: two states, or the second would look like a copy.
        state=f"{status} (final)" if status and final else status,
        occurred_at=told,
        identity=identity,
        content_hash=None if identity else content_digest(delivery.body),
        body=delivery.body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _final(members: dict[str, Any]) -> bool | None:
    value = members.get("finalstate")
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.casefold())
    return value if isinstance(value, bool) else None


def _byoc(delivery: Delivery) -> Event | None:
    body = delivery.body
    thread = name(at(body, ("thread", "idOnExternalPlatform")))
    if thread is None or not ("endUserRecipients" in body or "brand" in body or "messageContent" in body["message"]):
        return None
    found = identifier(first(body, places("message.id", "message.ID")), "message.id")
    identity = () if found is None else ("byoc", name(at(body, ("brand", "id"))), thread, found)
    return Event(
        source=SOURCE,
        id=found,
        type="byoc.outbound",
        entity=thread,
        identity=identity,
        content_hash=content_digest(body) if found is None else None,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )
