"""NICE CXone: digital events, events polled from the ACD, and messages to a channel of one's own (BYOC)."""

from datetime import datetime
from typing import Any

from oncegate.canonical import content_digest, digest_of, encode
from oncegate.events import Delivery, Event
from oncegate.sources.fields import (
    apart,
    at,
    envelope_id,
    first,
    folded,
    identifier,
    name,
    named,
    parsed,
    places,
    stated,
    text,
    when,
    within_envelope,
)

SOURCE = "cxone"
TELLING = {"eventType", "eventObject", "Type", "message"}

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
_MESSAGE = places("message.id", "message.ID")
_TENANT = places("brand.tenantId", "tenantId", "brand.id", "brand.businessUnitId")
_TIME = places("createdAtWithMilliseconds", "createdAt")
# What around the data tells an event from no other: ids that its copies may not share.
_NOT_TELLING = {"data", "eventId", "traceId"}
_TIMES = {"createdAt", "createdAtWithMilliseconds"}
_ACD_MEMBERS = ("contactid", "agentid", "busno", "sessionid", "masterid", "finalstate", "laststatechangetimeutc")
# What hardly anybody else has, and what nobody else has.
_ACD_OWN = ({"finalstate"}, {"laststatechangetimeutc"}, {"busno", "agentid"})
_ACD_SURELY = {"contactid", "laststatechangetimeutc"}
_ACD_STATE = places("status", "currentstate", "state")
_ACD_TIME = places("laststatechangetimeutc", "laststatechangetime")
_BYOC = ("endUserRecipients", "brand")


def read(delivery: Delivery) -> Event | None:
    """What has members that nobody else's events have."""
    body = delivery.body
    if "eventType" in body or "eventObject" in body:
        return _digital(delivery) if _is_digital(body) else None
    if "Type" in body:
        return _acd(delivery) if _is_acd(delivery) else None
    if "message" in body and "thread" in body:
        return _byoc(delivery) if _is_byoc(body) else None
    return None


def guess(delivery: Delivery) -> Event | None:
    """What could be an event of somebody else's as well."""
    body = delivery.body
    if "eventType" in body:
        return _digital(delivery) if _has_objects(body) else None
    if "Type" in body:
        return _acd(delivery) if _could_be_acd(_members(body)) else None
    return _byoc(delivery) if "message" in body and "thread" in body else None


def _is_digital(document: dict[str, Any]) -> bool:
    if document.get("eventId") in (None, ""):
        return "eventObject" in document and document.get("id") in (None, "")
    return "eventObject" in document or _has_objects(document)


def _has_objects(document: dict[str, Any]) -> bool:
    data = parsed(document.get("data"))
    return isinstance(data, dict) and (
        "interactionId" in data or any(isinstance(data.get(part), dict) for part in _OBJECTS)
    )


def _digital(delivery: Delivery) -> Event:
    document = delivery.body
    body = parsed(document.get("data"))
    data = body if isinstance(body, dict) else {}
    found, told = identifier(document.get("eventId"), "eventId"), when(document, _TIME)
    kind = text(document.get("eventType")) or text(document.get("eventObject"))
    entity, said = named(data, _ENTITY) or name(document.get("interactionId")), stated(data, _STATE)
    tenant = named(data, _TENANT) or name(document.get("tenantId"))
    changed, message = when(data, _STATUS_TIME), named(data, _MESSAGE)
    if found is not None:
        identity: tuple[Any, ...] = ("event", tenant, found)
    elif entity is not None and kind is not None and said is not None and changed is not None:
        # What happens to messages leaves the status of their case as it is, so that it does not tell them apart.
        identity = ("status", entity, kind, folded(said), changed.isoformat(), *([message] if message else []))
    else:
        identity = ()
    return Event(
        source=SOURCE,
        id=found or envelope_id(delivery),
        type=kind,
        entity=entity,
        state=said,
        occurred_at=told,
        identity=identity or ("content", kind, apart(delivery, told), _around(document, told)),
        content_hash=None if identity else content_digest(data if body is None else body),
        body=data if body is None else body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _around(document: dict[str, Any], told: datetime | None) -> str:
    """All that is said around the data, as two events may have the same data. The time is known by what it tells."""
    telling = document.keys() - _NOT_TELLING - (set() if told is None else _TIMES)
    return digest_of({member: document[member] for member in telling if document[member] is not None}).hex()


def _members(body: dict[str, Any]) -> dict[str, Any]:
    """Members are written in more than one case from method to method."""
    return {member.lower(): value for member, value in body.items()}


def _is_acd(delivery: Delivery) -> bool:
    members = _members(delivery.body).keys()
    if members >= _ACD_SURELY:
        return True
    return "id" not in delivery.body and (delivery.polled or any(own <= members for own in _ACD_OWN))


def _could_be_acd(members: dict[str, Any]) -> bool:
    return any(member in members for member in _ACD_MEMBERS)


def _acd(delivery: Delivery) -> Event | None:
    members = _members(delivery.body)
    kind = text(delivery.body["Type"])
    if kind is None:
        return None
    contact, status, final = name(members.get("contactid")), stated(members, _ACD_STATE), _final(members)
    told = when(members, _ACD_TIME)
    identity: tuple[Any, ...] = ()
    if contact is not None and status is not None and told is not None:
        identity = ("contact", contact, kind, folded(status), final, told.isoformat())
    return Event(
        source=SOURCE,
        id=envelope_id(delivery) or identifier(delivery.body.get("id")),
        type=kind,
        entity=contact or name(members.get("agentid")),
        # A contact is disconnected twice, the second time for good: two states, or the second would look like a copy.
        state=f"{status} (final)" if status and final else status,
        occurred_at=told,
        identity=identity or within_envelope(delivery, told),
        content_hash=None if identity else content_digest(delivery.body),
        body=delivery.body,
        # Read again, it must be known for what it is without the others of the poll.
        raw=delivery.raw if _could_be_acd(members) else encode({"events": [delivery.body]}),
        evidence=delivery.evidence,
    )


def _final(members: dict[str, Any]) -> bool | None:
    value = members.get("finalstate")
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.casefold())
    return value if isinstance(value, bool) else None


def _is_byoc(body: dict[str, Any]) -> bool:
    return any(member in body for member in _BYOC) or at(body, ("message", "messageContent")) is not None


def _byoc(delivery: Delivery) -> Event | None:
    body = delivery.body
    thread = name(at(body, ("thread", "idOnExternalPlatform")))
    if thread is None or not isinstance(body["message"], dict):
        return None
    found = identifier(first(body, _MESSAGE), "message.id")
    identity: tuple[Any, ...] = ("byoc", name(at(body, ("brand", "id"))), thread, found)
    if found is None:
        identity = within_envelope(delivery, None)
    return Event(
        source=SOURCE,
        id=envelope_id(delivery) or found,
        type="byoc.outbound",
        entity=thread,
        own_id=() if found is None else (found,),
        identity=identity,
        content_hash=content_digest(body) if found is None else None,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )
