"""Read the events of a payload: unwrap the payload with the carriers, then make an event from each delivery.

Each source is a module with MARKERS and `read(delivery)`. `read` returns the event, or None if nothing in the delivery
names this source. Some sources also have `guess(delivery)`, for deliveries that do not name the source but have the
shape of its events. MARKERS are names of members. A delivery without an envelope and without any of these members is
plain.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from oncegate.carriers import deliveries
from oncegate.events import Delivery, Event
from oncegate.sources import cloudevents, cxone, eventbridge, genesys, openmessaging, plain, tutorials

# The most specific source is first. A guess is tried only if no source has recognised the delivery.
_MODULES = (genesys, openmessaging, cloudevents, tutorials, cxone, eventbridge)
_SOURCES: tuple[Callable[[Delivery], Event | None], ...] = tuple(module.read for module in _MODULES)
_MARKERS = set[str]().union(*(module.MARKERS for module in _MODULES))
_GUESSES = (genesys.guess, cxone.guess)


class Hints(Struct, frozen=True):
    """Information that a payload does not contain: the topic of Genesys bodies that arrive without a topic, and the
    paths of plain events."""

    topic: str | None = None
    paths: plain.Paths = plain.PATHS


NO_HINTS = Hints()


def read(
    payload: Any, headers: Mapping[str, Any] | None = None, hints: Hints = NO_HINTS, *, most: int | None = None
) -> list[Event]:
    """Read the events of a payload of bytes, text or parsed JSON. `headers` are the HTTP headers of the request, if the
    payload came with a request.

    `read` does not raise for an event that cannot be read. Such an event has a `problem` that says why, and its bytes
    in `raw`. If the payload has more than `most` events, `read` raises TooManyEvents and reads none of them.
    """
    if type(payload) is bytes and not headers and _has_early_topic(payload):
        try:
            event = genesys.read_short(payload)
        except ValueError:  # the full path below reports the problem
            event = None
        if event is not None:
            return [event]
    return [understood(delivery, hints) for delivery in deliveries(payload, headers, most)]


def _has_early_topic(payload: bytes) -> bool:
    is_at_usual_place = payload[genesys.USUAL_PLACE] == genesys.TOPIC
    return is_at_usual_place or payload.find(genesys.TOPIC, 0, genesys.EARLY) >= 0


def understood(delivery: Delivery, hints: Hints = NO_HINTS) -> Event:
    """Make an event from one delivery. If the delivery cannot be read, the event has a `problem`."""
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
        return _recognise(delivery, hints)
    except ValueError as error:
        return _unreadable(delivery, str(error))


def _recognise(delivery: Delivery, hints: Hints) -> Event:
    if hints.topic or delivery.envelope is not None or not _MARKERS.isdisjoint(delivery.body):
        for source in _SOURCES:
            if (event := source(delivery)) is not None:
                return event
        if (event := _guess(delivery, hints)) is not None:
            return event
    return plain.read(delivery, hints.paths)


def _guess(delivery: Delivery, hints: Hints) -> Event | None:
    """Read the delivery as an event of the configured topic, otherwise by a guess. Returns None if neither applies.

    A document with an id at one of the plain paths is not guessed, because its id would be lost. There are two
    exceptions, because a Genesys body and the detail of a tutorial may both have an `id`. The configured topic is not
    used only if the document has an id at a configured path. The detail of a tutorial is guessed if no paths are
    configured."""
    has_id = plain.has_id(delivery, hints.paths)
    if hints.topic and not (has_id and hints.paths.id != plain.PATHS.id):
        return genesys.read_as(delivery, hints.topic)
    if hints.paths == plain.PATHS and (event := tutorials.guess(delivery)) is not None:
        return event
    if has_id:
        return None
    return next((event for guess in _GUESSES if (event := guess(delivery)) is not None), None)


def _unreadable(delivery: Delivery, problem: str) -> Event:
    return Event(source="unreadable", body=delivery.body, raw=delivery.raw, problem=problem, evidence=delivery.evidence)


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "an array")
