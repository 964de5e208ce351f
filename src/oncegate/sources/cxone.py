"""Read NICE CXone events: digital events, polled ACD events, and messages of a bring-your-own channel (BYOC)."""

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
MARKERS = {"eventType", "eventObject", "Type", "message"}

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
# The data itself, and members around the data that may differ between copies of one event.
_VOLATILE = {"data", "eventId", "traceId"}
_TIMES = {"createdAt", "createdAtWithMilliseconds"}
_ACD_MEMBERS = ("contactid", "agentid", "busno", "sessionid", "masterid", "finalstate", "laststatechangetimeutc")
# Sets of members that are very unlikely in the events of other senders.
_ACD_LIKELY = ({"finalstate"}, {"laststatechangetimeutc"}, {"busno", "agentid"})
# A set of members that no other sender's events have.
_ACD_CERTAIN = {"contactid", "laststatechangetimeutc"}
_ACD_STATE = places("status", "currentstate", "state")
_ACD_TIME = places("laststatechangetimeutc", "laststatechangetime")
_BYOC = ("endUserRecipients", "brand")


def read(delivery: Delivery) -> Event | None:
    """Read an event that has members which no other sender uses. Returns None for other deliveries."""
    body = delivery.body
    if "eventType" in body or "eventObject" in body:
        return _digital(delivery) if _is_digital(body) else None
    if "Type" in body:
        return _acd(delivery) if _is_acd(delivery) else None
    if "message" in body and "thread" in body:
        return _byoc(delivery) if _is_byoc(body) else None
    return None


def guess(delivery: Delivery) -> Event | None:
    """Read an event that has the shape of a CXone event, but could also be an event of another sender. Returns None for
    other deliveries."""
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
    event_id, event_time = identifier(document.get("eventId"), "eventId"), when(document, _TIME)
    kind = text(document.get("eventType")) or text(document.get("eventObject"))
    entity, status = named(data, _ENTITY) or name(document.get("interactionId")), stated(data, _STATE)
    tenant = named(data, _TENANT) or name(document.get("tenantId"))
    changed, message = when(data, _STATUS_TIME), named(data, _MESSAGE)
    if event_id is not None:
        identity: tuple[Any, ...] = ("event", tenant, event_id)
    elif entity is not None and kind is not None and status is not None and changed is not None:
        # Several messages may arrive while the status of their case does not change, so the message id is added.
        identity = ("status", entity, kind, folded(status), changed.isoformat(), *([message] if message else []))
    else:
        identity = ()
    return Event(
        source=SOURCE,
        id=event_id or envelope_id(delivery),
        type=kind,
        entity=entity,
        state=status,
        occurred_at=event_time,
        identity=identity or ("content", kind, apart(delivery, event_time), _around(document, event_time)),
        content_hash=None if identity else content_digest(data if body is None else body),
        body=data if body is None else body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _around(document: dict[str, Any], event_time: datetime | None) -> str:
    """Return a digest of the members around the data. Two events may have the same data, so the data alone does not
    identify an event. The time members are left out if they could be parsed, because the identity then contains the
    time in normal form."""
    members = document.keys() - _VOLATILE - (set() if event_time is None else _TIMES)
    return digest_of({member: document[member] for member in members if document[member] is not None}).hex()


def _members(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with member names in lower case, because the methods of the CXone API write them differently."""
    return {member.lower(): value for member, value in body.items()}


def _is_acd(delivery: Delivery) -> bool:
    members = _members(delivery.body).keys()
    if members >= _ACD_CERTAIN:
        return True
    return "id" not in delivery.body and (delivery.polled or any(likely <= members for likely in _ACD_LIKELY))


def _could_be_acd(members: dict[str, Any]) -> bool:
    return any(member in members for member in _ACD_MEMBERS)


def _acd(delivery: Delivery) -> Event | None:
    members = _members(delivery.body)
    kind = text(delivery.body["Type"])
    if kind is None:
        return None
    contact, status, final = name(members.get("contactid")), stated(members, _ACD_STATE), _final(members)
    event_time = when(members, _ACD_TIME)
    identity: tuple[Any, ...] = ()
    if contact is not None and status is not None and event_time is not None:
        identity = ("contact", contact, kind, folded(status), final, event_time.isoformat())
    return Event(
        source=SOURCE,
        id=envelope_id(delivery) or identifier(delivery.body.get("id")),
        type=kind,
        entity=contact or name(members.get("agentid")),
        # A contact is disconnected twice; the second event has FinalState=true. If both events had the same state, the
        # second event would be a duplicate.
        state=f"{status} (final)" if status and final else status,
        occurred_at=event_time,
        identity=identity or within_envelope(delivery, event_time),
        content_hash=None if identity else content_digest(delivery.body),
        body=delivery.body,
        # When `raw` is read again without the rest of the poll, it must still be recognised as an ACD event.
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
