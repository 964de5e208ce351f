"""EventBridge events of any other sender."""

from oncegate.canonical import content_digest
from oncegate.events import Delivery, Event
from oncegate.sources.fields import apart, identifier, named, stated, text, when
from oncegate.sources.tutorials import ENTITY, STATE, TIME
from oncegate.times import moment


def read(delivery: Delivery) -> Event | None:
    envelope = delivery.envelope
    if envelope is None:
        return None
    body = delivery.body
    found, source, kind = (
        identifier(envelope.get("id")),
        text(envelope.get("source")),
        text(envelope.get("detail-type")),
    )
    told = when(body, TIME)
    return Event(
        source="eventbridge",
        id=found,
        type=kind,
        entity=named(body, ENTITY),
        state=stated(body, STATE),
        occurred_at=told or moment(envelope.get("time")),
        identity=(source, kind, apart(delivery, told)) if found is None else (source, found),
        content_hash=content_digest(body) if found is None else None,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )
