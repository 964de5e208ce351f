"""Read EventBridge events that no other source recognises."""

from typing import Any

from msgspec.structs import replace

from oncegate.canonical import content_digest
from oncegate.carriers.eventbridge import names_genesys
from oncegate.events import Delivery, Event
from oncegate.sources.fields import apart, identifier, named, stated, text, when
from oncegate.sources.tutorials import ENTITY, STATE, TIME
from oncegate.times import moment

MARKERS = {"detail-type"}
_MEMBERS = {"version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail", "replay-name"}


def is_empty(delivery: Delivery) -> bool:
    """Whether this is an envelope whose detail is missing, has no members, or has only members without a value. 0 and
    false are values; null, "", {} and [] are not."""
    if delivery.envelope is not None:
        return all(map(_is_blank, delivery.body.values()))
    document = delivery.body
    is_envelope = _is_bare(document) or (names_genesys(document) and document.keys() <= _MEMBERS)
    return is_envelope and _is_blank(document.get("detail"))


def read(delivery: Delivery) -> Event | None:
    envelope = delivery.envelope
    if envelope is None:
        return _read_bare(delivery)
    body = delivery.body
    detail = body if type(body) is dict else {}
    event_id = identifier(envelope.get("id"))
    source, kind = text(envelope.get("source")), text(envelope.get("detail-type"))
    event_time = when(detail, TIME)
    return Event(
        source="eventbridge",
        id=event_id,
        type=kind,
        entity=named(detail, ENTITY),
        state=stated(detail, STATE),
        occurred_at=event_time or moment(envelope.get("time")),
        identity=(source, kind, apart(delivery, event_time)) if event_id is None else (source, event_id),
        content_hash=content_digest(body) if event_id is None else None,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _is_bare(document: dict[str, Any]) -> bool:
    return {"detail-type", "source"} <= document.keys() <= _MEMBERS


def _is_blank(value: Any) -> bool:
    return value is None or value == "" or value == {} or value == []


def _read_bare(delivery: Delivery) -> Event | None:
    """Read an envelope whose detail is not an object. The source and the id in the envelope still identify the event.
    Returns None for a document that also has members which no envelope has: something made this document from an
    envelope, so it is read as a plain document."""
    document = delivery.body
    if not _is_bare(document):
        return None
    detail, replay = document.get("detail"), text(document.get("replay-name"))
    evidence = replace(delivery.evidence, replay=replay) if replay else delivery.evidence
    return read(replace(delivery, body=detail, envelope=document, evidence=evidence))
