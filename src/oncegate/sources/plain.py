"""The plain source: any JSON object, with an `id` if it has one."""

from oncegate.events import Delivery, Event
from oncegate.sources.fields import identifier, text


def read(delivery: Delivery) -> Event:
    body = delivery.body
    return Event(
        source="plain",
        id=identifier(body, "id"),
        type=text(body.get("type")),
        body=body,
        raw=delivery.raw,
    )
