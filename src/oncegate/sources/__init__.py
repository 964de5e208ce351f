"""Sources: from a delivery to the event it tells of. Each is a module with a function from body to event.

To read a payload is to unwrap it with the carriers and to ask the sources for each delivery.
"""

from typing import Any

from oncegate.carriers import deliveries
from oncegate.events import Delivery, Event
from oncegate.sources import plain


def read(payload: Any) -> list[Event]:
    """The events in a payload given as bytes, text or parsed JSON.

    Never raises: what cannot be read is an event whose `problem` says why and whose `raw` keeps the bytes.
    """
    return [understood(delivery) for delivery in deliveries(payload)]


def understood(delivery: Delivery) -> Event:
    """The event that one delivery tells of, or one with a problem."""
    if delivery.problem is not None:
        return _unreadable(delivery, delivery.problem)
    if not isinstance(delivery.body, dict):
        return _unreadable(delivery, f"an event is a JSON object, not {_kind(delivery.body)}")
    try:
        return plain.read(delivery)
    except ValueError as error:
        return _unreadable(delivery, str(error))


def _unreadable(delivery: Delivery, problem: str) -> Event:
    return Event(source="unreadable", body=delivery.body, raw=delivery.raw, problem=problem)


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "an array")
