"""Sources: from a delivery to the event it tells of.

Each is a module with `read(delivery)`: the event, or None if the delivery does not say that it is of its kind. Some
have a `guess(delivery)` too, for what only looks like one of theirs. What has neither an envelope nor one of the
members that are TELLING of a source is plain. To read a payload is to unwrap it with the carriers and to ask the
sources in turn for each delivery.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from oncegate.carriers import deliveries
from oncegate.events import Delivery, Event
from oncegate.sources import cloudevents, cxone, eventbridge, genesys, openmessaging, plain, tutorials

# What names itself, the most telling first. What looks like something is asked about only if none of these knows it.
_MODULES = (genesys, openmessaging, cloudevents, tutorials, cxone, eventbridge)
_SOURCES: tuple[Callable[[Delivery], Event | None], ...] = tuple(module.read for module in _MODULES)
_TELLING = set[str]().union(*(module.TELLING for module in _MODULES))
_GUESSES = (genesys.guess, cxone.guess)


class Hints(Struct, frozen=True):
    """What payloads do not say themselves: the topic of bare Genesys bodies, where plain events have what."""

    topic: str | None = None
    paths: plain.Paths = plain.PATHS


NO_HINTS = Hints()


def read(
    payload: Any, headers: Mapping[str, Any] | None = None, hints: Hints = NO_HINTS, *, most: int | None = None
) -> list[Event]:
    """The events in a payload given as bytes, text or parsed JSON, with the HTTP headers it came with if it did.

    Never raises: what cannot be read is an event whose `problem` says why and whose `raw` keeps the bytes. If `most` is
    given, what holds more events than that is TooManyEvents, and none of them is read.
    """
    if type(payload) is bytes and not headers and _has_early_topic(payload):
        try:
            event = genesys.read_short(payload)
        except ValueError:  # what is wrong is said the long way
            event = None
        if event is not None:
            return [event]
    return [understood(delivery, hints) for delivery in deliveries(payload, headers, most)]


def _has_early_topic(payload: bytes) -> bool:
    usual = payload[genesys.USUAL_PLACE] == genesys.TOPIC
    return usual or payload.find(genesys.TOPIC, 0, genesys.EARLY) >= 0


def understood(delivery: Delivery, hints: Hints = NO_HINTS) -> Event:
    """The event that one delivery tells of, or one with a problem."""
    if delivery.problem is not None:
        return _unreadable(delivery, delivery.problem)
    if delivery.frame is not None:
        return Event(source="plain", body={}, raw=delivery.raw, frame=delivery.frame, evidence=delivery.evidence)
    if type(delivery.body) is not dict:
        return _unreadable(delivery, f"an event is a JSON object, not {_kind(delivery.body)}")
    if not delivery.body and delivery.envelope is None:
        return _unreadable(delivery, "the event is empty: {} has no member")
    has_detail = delivery.envelope is not None or "detail" in delivery.body or "detail-type" in delivery.body
    if has_detail and eventbridge.is_empty(delivery):
        return _unreadable(delivery, "the detail of the envelope is empty: it has no member with a value")
    try:
        return _recognised(delivery, hints)
    except ValueError as error:
        return _unreadable(delivery, str(error))


def _recognised(delivery: Delivery, hints: Hints) -> Event:
    if hints.topic or delivery.envelope is not None or not _TELLING.isdisjoint(delivery.body):
        for source in _SOURCES:
            if (event := source(delivery)) is not None:
                return event
        if (event := _guessed(delivery, hints)) is not None:
            return event
    return plain.read(delivery, hints.paths)


def _guessed(delivery: Delivery, hints: Hints) -> Event | None:
    """What settings say that it is, else what it looks like. A guess stands back for any id, which would be lost; the
    topic of bare bodies only for one at a path that was given, as such a body may well have an `id`. The detail of a
    tutorial has an `id` too, and stands back for any path that was given."""
    is_plain = plain.has_id(delivery, hints.paths)
    if hints.topic and not (is_plain and hints.paths.id != plain.PATHS.id):
        return genesys.read_as(delivery, hints.topic)
    if hints.paths == plain.PATHS and (event := tutorials.guess(delivery)) is not None:
        return event
    if is_plain:
        return None
    return next((event for guess in _GUESSES if (event := guess(delivery)) is not None), None)


def _unreadable(delivery: Delivery, problem: str) -> Event:
    return Event(source="unreadable", body=delivery.body, raw=delivery.raw, problem=problem, evidence=delivery.evidence)


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "an array")
