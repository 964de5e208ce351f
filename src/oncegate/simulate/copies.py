"""The deliveries of one event: redelivered, published again, replayed, rewrapped, echoed, conflicting or broken.

The possible copies depend on the document. An event in an EventBridge envelope can be published again and replayed, an
event with a state can have echoes, and an event with its own id can have a conflict.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from oncegate.simulate.conversations import Document, has_event_time, iso_time, republished
from oncegate.simulate.random_source import RandomSource
from oncegate.times import microseconds_of, moment

Kind: TypeAlias = Literal["first", "redelivery", "re-emission", "state-echo", "replay", "conflict", "invalid"]

_ARCHIVE: Final = "simulated-replay"
_REPUBLISHED: Final = (200, 40_000)  # the shortest and the longest time after the first publication, in milliseconds
_TOPIC: Final = "arn:aws:sns:eu-central-1:123456789012:simulated"


class EventCopy(Struct, frozen=True):
    """The bytes of a delivery, and the document if the bytes hold exactly one document. `place` is the place of a
    recorded document in its file, such as `line 3`."""

    kind: Kind
    document: Document | None
    raw: bytes
    wrapping: str | None = None
    place: str | None = None


class CopyOptions(Struct, frozen=True, kw_only=True):
    """How often copies are made. `copies` is the least and the greatest number of deliveries of one envelope, including
    the first. `window` is in microseconds. The other numbers are probabilities.

    `by_bus` means that the target is an event bus. An event bus accepts only JSON objects and puts each object into a
    new envelope."""

    copies: tuple[int, int] = (1, 3)
    reemit: float = 0.1
    rewrap: float = 0.1
    replay: float = 0.05
    echo: float = 0.0
    window: int = 500_000
    conflict: float = 0.0
    invalid: float = 0.0
    by_bus: bool = False


def copies(random: RandomSource, document: Document, state: str | None, options: CopyOptions) -> Iterator[EventCopy]:
    """Generate all deliveries of an event. Depending on `options`, a conflict with the event and a broken document
    follow."""
    yield copy("first", document)
    for _ in range(random.integer(*options.copies) - 1):
        yield copy("re-emission" if options.by_bus and not _has_id(document) else "redelivery", document)
    if _has_envelope(document):
        yield from _bus_copies(random, document, options)
    if random.decide(options.rewrap) and not options.by_bus:
        yield _rewrapped(random, document)
    if random.decide(options.echo) and state is not None and _can_have_echo(document):
        yield copy("state-echo", _echo(random, document, random.integer(1, options.window // 1_000)))
    if random.decide(options.conflict) and _has_id(document):
        yield copy("conflict", _altered(random, document))
    if random.decide(options.invalid):
        yield _broken(random, document, as_json=options.by_bus)


def copy(kind: Kind, document: Document, wrapping: str | None = None) -> EventCopy:
    return EventCopy(kind, document, msgspec.json.encode(document), wrapping)


def _bus_copies(random: RandomSource, document: Document, options: CopyOptions) -> Iterator[EventCopy]:
    if random.decide(options.reemit):
        yield copy("re-emission", republished(random, document, random.integer(*_REPUBLISHED)))
    if random.decide(options.replay):
        yield copy("re-emission" if options.by_bus else "replay", document | {"replay-name": _ARCHIVE})


def _has_envelope(document: Document) -> bool:
    """Whether the document is an EventBridge envelope."""
    return "detail" in document


def _can_have_echo(document: Document) -> bool:
    """Whether there can be an echo: a second emission of the state change with another event time."""
    return bool(_ECHOES.keys() & document.keys()) and (not _has_envelope(document) or has_event_time(document))


def _has_id(document: Document) -> bool:
    """Whether the event has an id that its source assigned, apart from the envelope."""
    return "channel" in document or "eventId" in document


# ── wrappings ─────────────────────────────────────────────────────────────────────────────────────────────────


def _rewrapped(random: RandomSource, document: Document) -> EventCopy:
    """The event in another wrapping. Some wrappings lose the id of the envelope."""
    names = ["array"]
    if "id" in document or "eventId" in document:
        names.append("sns")
    if _has_envelope(document):
        # Without its timestamp, an event without an event time cannot be told apart from a later event.
        names += ["detail", "websocket"] if has_event_time(document) else ["detail"]
    name = random.choose(names)
    kind: Kind = "re-emission" if name in ("detail", "websocket") else "redelivery"
    return EventCopy(kind, None, msgspec.json.encode(_WRAPPINGS[name](random, document)), name)


def _notification(random: RandomSource, document: Document) -> Document:
    message = msgspec.json.encode(document).decode()
    return {"Type": "Notification", "MessageId": random.uuid(), "TopicArn": _TOPIC, "Message": message}


def _frame(_random: RandomSource, document: Document) -> Document:
    """The event as the notification channel sends it: without the timestamp."""
    return {name: value for name, value in document["detail"].items() if name != "timestamp"}


_WRAPPINGS: Final[Mapping[str, Callable[[RandomSource, Document], Any]]] = {
    "array": lambda _random, document: [document],
    "sns": _notification,
    "detail": lambda _random, document: document["detail"],
    "websocket": _frame,
}


# ── echoes, conflicts and broken documents ────────────────────────────────────────────────────────────────────


def _echo(random: RandomSource, document: Document, later: int) -> Document:
    """The same state change with other ids and with a time that is `later` milliseconds later."""
    (name,) = _ECHOES.keys() & document.keys()
    return _ECHOES[name](random, document, later)


def _genesys_echo(random: RandomSource, document: Document, later: int) -> Document:
    body = document["detail"]["eventBody"]
    detail = document["detail"] | {"eventBody": body | {"eventTime": body["eventTime"] + later}}
    return republished(random, document | {"detail": detail}, 0)


def _digital_echo(random: RandomSource, document: Document, later: int) -> Document:
    case = document["data"]["case"]
    changed = {"statusUpdatedAtWithMilliseconds": _moved(case["statusUpdatedAtWithMilliseconds"], later)}
    created = _moved(document["createdAtWithMilliseconds"], later)
    data = document["data"] | {"case": case | changed}
    return document | {"eventId": random.uuid(), "createdAtWithMilliseconds": created, "data": data}


def _contact_echo(_random: RandomSource, document: Document, later: int) -> Document:
    return document | {"LastStateChangeTimeUTC": _moved(document["LastStateChangeTimeUTC"], later)}


# The functions that make an echo, by a member that only one kind of document has.
_ECHOES: Final[Mapping[str, Callable[[RandomSource, Document, int], Document]]] = {
    "detail": _genesys_echo,
    "eventObject": _digital_echo,
    "ContactID": _contact_echo,
}


def _altered(random: RandomSource, document: Document) -> Document:
    """The same id with different content."""
    if "channel" in document:
        return document | {"metadata": {"editedBy": random.uuid()}}
    case = document["data"]["case"] | {"ownerAssignee": random.integer(10_000, 99_999)}
    return document | {"data": document["data"] | {"case": case}}


def _broken(random: RandomSource, document: Document, *, as_json: bool) -> EventCopy:
    """A delivery that no source can read: a truncated text (unless `as_json`), or an event with an invalid id."""
    if not as_json and random.decide(0.5):
        raw = msgspec.json.encode(document)
        return EventCopy("invalid", None, raw[: random.integer(1, len(raw) - 1)])
    case = {"id": random.digits(16), "status": "open"}
    invalid = {"eventId": random.integer(1, 999) + 0.5, "eventObject": "Case", "eventType": "CaseStatusChanged"}
    return copy("invalid", invalid | {"data": {"case": case}})


def _moved(time: str, later: int) -> str:
    at = moment(time)
    assert at is not None  # noqa: S101  # the simulator wrote this time
    return iso_time(microseconds_of(at) // 1_000 + later)
