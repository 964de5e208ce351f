"""Read any other JSON object as an event, with its members at configurable paths."""

from typing import Any

from msgspec import Struct

from oncegate.canonical import content_digest
from oncegate.errors import SettingError
from oncegate.events import Delivery, Event
from oncegate.sources import tutorials
from oncegate.sources.fields import Place, first, identifier, named, parsed, path, places, stated, text, when


def _within_detail(found: tuple[Place, ...]) -> tuple[Place, ...]:
    """The same paths in `detail`, for a document that has a detail but is not an envelope."""
    return tuple(("detail", (member, *rest)) for member, rest in found)


class Paths(Struct, frozen=True):
    """The paths of the members of a plain event. The first path with a value counts."""

    source: str = "plain"
    id: tuple[Place, ...] = places("id", "eventId")
    type: tuple[Place, ...] = places("type", "eventType", "detail.eventType")
    entity: tuple[Place, ...] = (*tutorials.ENTITY, *_within_detail(tutorials.ENTITY))
    part: tuple[Place, ...] = ()
    state: tuple[Place, ...] = (*tutorials.STATE, *_within_detail(tutorials.STATE))
    time: tuple[Place, ...] = (*tutorials.TIME, *_within_detail(tutorials.TIME))


PATHS = Paths()
# The default paths for a document without these members in its detail, and for one without any of these members.
_OUTSIDE = Paths(entity=tutorials.ENTITY, state=tutorials.STATE, time=tutorials.TIME)
_NOWHERE = Paths(entity=(), state=(), time=())
_MEMBERS = {member for member, _ in (*tutorials.ENTITY, *tutorials.STATE, *tutorials.TIME)}


def paths(
    *,
    source: str = "plain",
    id: str | None = None,  # noqa: A002  # the name of the event's member
    type: str | None = None,  # noqa: A002
    entity: str | None = None,
    part: str | None = None,
    state: str | None = None,
    time: str | None = None,
) -> Paths:
    """Paths in dotted form: `paths(id="meta.id", entity="call.id", time="meta.at")`.

    Alternatives are separated by spaces; the first one with a value counts. A member without a path is looked for at
    the default paths.
    """
    given = {"id": id, "type": type, "entity": entity, "part": part, "state": state, "time": time}
    if not isinstance(source, str) or not source:
        raise SettingError(f"source={source!r} must be a non-empty string")
    return Paths(source, **{member: _paths(member, dotted) for member, dotted in given.items() if dotted is not None})


def _paths(member: str, dotted: str) -> tuple[Place, ...]:
    if not isinstance(dotted, str) or not dotted.split() or any(not all(path(each)) for each in dotted.split()):
        raise SettingError(f'{member}={dotted!r} is not a path; write a path such as "data.case.id"')
    return places(*dotted.split())


def has_id(delivery: Delivery, paths: Paths) -> bool:
    return first(_opened(delivery.body), paths.id) is not None


def read(delivery: Delivery, paths: Paths = PATHS) -> Event:
    body = delivery.body
    document = _opened(body)
    if paths is PATHS and (type(detail := document.get("detail")) is not dict or _MEMBERS.isdisjoint(detail)):
        paths = _NOWHERE if _MEMBERS.isdisjoint(document) else _OUTSIDE
    event_id = identifier(first(document, paths.id))
    return Event(
        source=paths.source,
        id=event_id,
        type=text(first(document, paths.type)),
        entity=named(document, paths.entity),
        part=named(document, paths.part),
        state=stated(document, paths.state),
        occurred_at=when(document, paths.time),
        content_hash=content_digest(body) if event_id is None else None,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _opened(body: dict[str, Any]) -> dict[str, Any]:
    """The document; a detail that is the JSON text of an object is decoded."""
    detail = body.get("detail")
    return {**body, "detail": parsed(detail)} if type(detail) is str else body
