"""EventBridge events of any other sender."""

from oncegate.canonical import content_digest
from oncegate.events import Delivery, Event
from oncegate.sources.fields import identifier, named, stated, text, when
from oncegate.sources.tutorials import ENTITY, STATE, TIME
from oncegate.times import moment


def read(delivery: Delivery) -> Event | None:
    envelope = delivery.envelope
    if envelope is None:
        return None
    body = delivery.body
    found, source = identifier(envelope.get("id")), text(envelope.get("source"))
    return Event(
        source="eventbridge",
        id=found,
        type=text(envelope.get("detail-type")),
        entity=named(body, ENTITY),
        state=stated(body, STATE),
        occurred_at=when(body, TIME) or moment(envelope.get("time")),
        identity=() if found is None else (source, found),
        content_hash=content_digest(body) if found is None else None,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )
