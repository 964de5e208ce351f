"""EventBridge events of any other sender."""

from typing import Any

from msgspec.structs import replace

from oncegate.canonical import content_digest
from oncegate.carriers.eventbridge import names_genesys
from oncegate.events import Delivery, Event
from oncegate.sources.fields import apart, identifier, named, stated, text, when
from oncegate.sources.tutorials import ENTITY, STATE, TIME
from oncegate.times import moment

TELLING = {"detail-type"}
_MEMBERS = {"version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail", "replay-name"}


def is_empty(delivery: Delivery) -> bool:
    """Whether this is an envelope whose detail says nothing: it has no member, or none with a value. 0 and false are
    values."""
    if delivery.envelope is not None:
        return all(map(_says_nothing, delivery.body.values()))
    document = delivery.body
    named_ = _is_bare(document) or (names_genesys(document) and document.keys() <= _MEMBERS)
    return named_ and _says_nothing(document.get("detail"))


def read(delivery: Delivery) -> Event | None:
    envelope = delivery.envelope
    if envelope is None:
        return _read_bare(delivery)
    body = delivery.body
    said = body if type(body) is dict else {}
    found, source, kind = (
        identifier(envelope.get("id")),
        text(envelope.get("source")),
        text(envelope.get("detail-type")),
    )
    told = when(said, TIME)
    return Event(
        source="eventbridge",
        id=found,
        type=kind,
        entity=named(said, ENTITY),
        state=stated(said, STATE),
        occurred_at=told or moment(envelope.get("time")),
        identity=(source, kind, apart(delivery, told)) if found is None else (source, found),
        content_hash=content_digest(body) if found is None else None,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _is_bare(document: dict[str, Any]) -> bool:
    return {"detail-type", "source"} <= document.keys() <= _MEMBERS


def _says_nothing(value: Any) -> bool:
    return value is None or value == "" or value == {} or value == []


def _read_bare(delivery: Delivery) -> Event | None:
    """An envelope whose detail is no object: it is known by source and id all the same. With other
    members it is what somebody has made of an envelope, and they are what it says."""
    document = delivery.body
    if not _is_bare(document):
        return None
    detail, replay = document.get("detail"), text(document.get("replay-name"))
    evidence = replace(delivery.evidence, replay=replay) if replay else delivery.evidence
    return read(replace(delivery, body=detail, envelope=document, evidence=evidence))
