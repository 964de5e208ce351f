"""Copies: one event as it is delivered again, emitted again, replayed, wrapped otherwise, mistaken or broken.

What can be made of a document depends on what it is. One in an EventBridge envelope can be emitted anew and replayed,
one with a state of its own has echoes, one that is known by its id can come with other content.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from oncegate.simulate.conversations import Document, sent_anew, written
from oncegate.simulate.randomness import Chance
from oncegate.times import microseconds_of, moment

Kind: TypeAlias = Literal["first", "redelivery", "re-emission", "state-echo", "replay", "conflict", "invalid"]

_ARCHIVE: Final = "simulated-replay"
_REPUBLISHED: Final = (200, 40_000)  # how many milliseconds after the first time it is emitted again
_TOPIC: Final = "arn:aws:sns:eu-central-1:123456789012:simulated"


class EventCopy(Struct, frozen=True):
    """What is delivered: a document, or bytes that are none."""

    kind: Kind
    document: Document | None
    raw: bytes
    wrapping: str | None = None


class CopyOptions(Struct, frozen=True, kw_only=True):
    """How often copies are made. `copies` is the least and the most that comes of one envelope, the first included; all
    others are probabilities. `window` is in microseconds.

    `by_bus`: each is put on a bus, which takes JSON objects only and gives each an envelope of its own."""

    copies: tuple[int, int] = (1, 3)
    reemit: float = 0.1
    rewrap: float = 0.1
    replay: float = 0.05
    echo: float = 0.0
    window: int = 500_000
    conflict: float = 0.0
    invalid: float = 0.0
    by_bus: bool = False


def copies(chance: Chance, document: Document, state: str | None, wishes: CopyOptions) -> Iterator[EventCopy]:
    """All deliveries of an event whose state is this, and what may come beside it."""
    yield copy("first", document)
    for _ in range(chance.between(*wishes.copies) - 1):
        yield copy("re-emission" if wishes.by_bus and not _has_id(document) else "redelivery", document)
    if _comes_by_bus(document):
        yield from _of_a_bus(chance, document, wishes)
    if chance.comes_true(wishes.rewrap) and not wishes.by_bus:
        yield _rewrapped(chance, document)
    if chance.comes_true(wishes.echo) and state is not None and _ECHOES.keys() & document.keys():
        yield copy("state-echo", _echo(chance, document, chance.between(1, wishes.window // 1_000)))
    if chance.comes_true(wishes.conflict) and _has_id(document):
        yield copy("conflict", _altered(chance, document))
    if chance.comes_true(wishes.invalid):
        yield _broken(chance, document, whole=wishes.by_bus)


def copy(kind: Kind, document: Document, wrapping: str | None = None) -> EventCopy:
    return EventCopy(kind, document, msgspec.json.encode(document), wrapping)


def _of_a_bus(chance: Chance, document: Document, wishes: CopyOptions) -> Iterator[EventCopy]:
    if chance.comes_true(wishes.reemit):
        yield copy("re-emission", sent_anew(chance, document, chance.between(*_REPUBLISHED)))
    if chance.comes_true(wishes.replay):
        yield copy("re-emission" if wishes.by_bus else "replay", document | {"replay-name": _ARCHIVE})


def _comes_by_bus(document: Document) -> bool:
    return "detail" in document


def _has_id(document: Document) -> bool:
    """Whether the event itself has an id, by which its source knows it."""
    return "channel" in document or "eventId" in document


# ── wrappings ─────────────────────────────────────────────────────────────────────────────────────────────────


def _rewrapped(chance: Chance, document: Document) -> EventCopy:
    """The same in another wrapping. Some of them lose the id that the envelope had."""
    names = ["array"]
    if "id" in document or "eventId" in document:
        names.append("sns")
    if _comes_by_bus(document):
        names += ["detail", "websocket"]
    name = chance.one_of(names)
    kind: Kind = "re-emission" if name in ("detail", "websocket") else "redelivery"
    return EventCopy(kind, None, msgspec.json.encode(_WRAPPINGS[name](chance, document)), name)


def _notification(chance: Chance, document: Document) -> Document:
    message = msgspec.json.encode(document).decode()
    return {"Type": "Notification", "MessageId": chance.uuid(), "TopicArn": _TOPIC, "Message": message}


def _frame(_chance: Chance, document: Document) -> Document:
    """As the notification channel sends it: it does not say when that was."""
    return {name: value for name, value in document["detail"].items() if name != "timestamp"}


_WRAPPINGS: Final[Mapping[str, Callable[[Chance, Document], Any]]] = {
    "array": lambda _chance, document: [document],
    "sns": _notification,
    "detail": lambda _chance, document: document["detail"],
    "websocket": _frame,
}


# ── what differs ──────────────────────────────────────────────────────────────────────────────────────────────


def _echo(chance: Chance, document: Document, later: int) -> Document:
    """The same change of state, told once more with other ids and a time so many milliseconds later."""
    (name,) = _ECHOES.keys() & document.keys()
    return _ECHOES[name](chance, document, later)


def _genesys_echo(chance: Chance, document: Document, later: int) -> Document:
    body = document["detail"]["eventBody"]
    detail = document["detail"] | {"eventBody": body | {"eventTime": body["eventTime"] + later}}
    return sent_anew(chance, document | {"detail": detail}, 0)


def _digital_echo(chance: Chance, document: Document, later: int) -> Document:
    case = document["data"]["case"]
    changed = {"statusUpdatedAtWithMilliseconds": _moved(case["statusUpdatedAtWithMilliseconds"], later)}
    told = _moved(document["createdAtWithMilliseconds"], later)
    data = document["data"] | {"case": case | changed}
    return document | {"eventId": chance.uuid(), "createdAtWithMilliseconds": told, "data": data}


def _contact_echo(_chance: Chance, document: Document, later: int) -> Document:
    return document | {"LastStateChangeTimeUTC": _moved(document["LastStateChangeTimeUTC"], later)}


# By a member that only documents of that kind have.
_ECHOES: Final[Mapping[str, Callable[[Chance, Document, int], Document]]] = {
    "detail": _genesys_echo,
    "eventObject": _digital_echo,
    "ContactID": _contact_echo,
}


def _altered(chance: Chance, document: Document) -> Document:
    """Other content under the same id."""
    if "channel" in document:
        return document | {"metadata": {"editedBy": chance.uuid()}}
    case = document["data"]["case"] | {"ownerAssignee": chance.between(10_000, 99_999)}
    return document | {"data": document["data"] | {"case": case}}


def _broken(chance: Chance, document: Document, *, whole: bool) -> EventCopy:
    """What no source can read: text that was cut off, or an event whose id is none."""
    if not whole and chance.comes_true(0.5):
        raw = msgspec.json.encode(document)
        return EventCopy("invalid", None, raw[: chance.between(1, len(raw) - 1)])
    case = {"id": chance.digits(16), "status": "open"}
    wrong = {"eventId": chance.between(1, 999) + 0.5, "eventObject": "Case", "eventType": "CaseStatusChanged"}
    return copy("invalid", wrong | {"data": {"case": case}})


def _moved(time: str, later: int) -> str:
    at = moment(time)
    assert at is not None  # noqa: S101  # it was written here
    return written(microseconds_of(at) // 1_000 + later)
