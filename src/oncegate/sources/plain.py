"""Read JSON objects that no other source recognises. The paths to id, type, entity, state and time are configurable."""

from typing import Any

from msgspec import Struct

from oncegate.canonical import content_digest
from oncegate.errors import SettingError
from oncegate.events import Delivery, Event
from oncegate.sources import tutorials
from oncegate.sources.fields import Place, first, identifier, named, parsed, path, places, stated, text, when


def _within_detail(found: tuple[Place, ...]) -> tuple[Place, ...]:
    """Return the given paths inside `detail`, for a document that has a detail but is not an envelope."""
    return tuple(("detail", (member, *rest)) for member, rest in found)


class Paths(Struct, frozen=True):
    """The paths at which the fields of a plain event are read. Of several paths, the first path with a value is
    used."""

    source: str = "plain"
    id: tuple[Place, ...] = places("id", "eventId")
    type: tuple[Place, ...] = places("type", "eventType", "detail.eventType")
    entity: tuple[Place, ...] = (*tutorials.ENTITY, *_within_detail(tutorials.ENTITY))
    part: tuple[Place, ...] = ()
    state: tuple[Place, ...] = (*tutorials.STATE, *_within_detail(tutorials.STATE))
    time: tuple[Place, ...] = (*tutorials.TIME, *_within_detail(tutorials.TIME))


PATHS = Paths()
# Shorter default paths, for speed: for a document whose detail has no entity, state or time, and for a document that
# has no entity, state or time at all.
_OUTSIDE_DETAIL = Paths(entity=tutorials.ENTITY, state=tutorials.STATE, time=tutorials.TIME)
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
    """Make Paths from paths in dotted form: `paths(id="meta.id", entity="call.id", time="meta.at")`.

    Several paths in one string are separated by spaces, and the first path with a value is used. A field that is not
    given is read at its default paths. Raises SettingError for an invalid path or an empty `source`.
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
    return first(_with_parsed_detail(delivery.body), paths.id) is not None


def read(delivery: Delivery, paths: Paths = PATHS) -> Event:
    body = delivery.body
    document = _with_parsed_detail(body)
    if paths is PATHS and (type(detail := document.get("detail")) is not dict or _MEMBERS.isdisjoint(detail)):
        paths = _NOWHERE if _MEMBERS.isdisjoint(document) else _OUTSIDE_DETAIL
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


def _with_parsed_detail(body: dict[str, Any]) -> dict[str, Any]:
    """Return the document. If its detail is the JSON text of an object, the detail is decoded."""
    detail = body.get("detail")
    return {**body, "detail": parsed(detail)} if type(detail) is str else body
