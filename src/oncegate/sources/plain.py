"""The plain source: any JSON object, with its members found at configurable paths."""

from typing import Any

from msgspec import Struct

from oncegate.canonical import content_digest
from oncegate.errors import SettingError
from oncegate.events import Delivery, Event
from oncegate.sources import tutorials
from oncegate.sources.fields import Place, first, identifier, named, parsed, path, places, stated, text, when


def _within_detail(found: tuple[Place, ...]) -> tuple[Place, ...]:
    """The same places in the detail of an envelope that says too little to be one."""
    return tuple(("detail", (member, *rest)) for member, rest in found)


class Paths(Struct, frozen=True):
    """Where a plain event has what; the first path that leads to something counts."""

    source: str = "plain"
    id: tuple[Place, ...] = places("id", "eventId")
    type: tuple[Place, ...] = places("type", "eventType", "detail.eventType")
    entity: tuple[Place, ...] = (*tutorials.ENTITY, *_within_detail(tutorials.ENTITY))
    part: tuple[Place, ...] = ()
    state: tuple[Place, ...] = (*tutorials.STATE, *_within_detail(tutorials.STATE))
    time: tuple[Place, ...] = (*tutorials.TIME, *_within_detail(tutorials.TIME))


PATHS = Paths()
# The same, for what has nothing of it in a detail, and for what has nothing of it at all.
_OUTSIDE = Paths(entity=tutorials.ENTITY, state=tutorials.STATE, time=tutorials.TIME)
_NOWHERE = Paths(entity=(), state=(), time=())
_MEMBERS = {member for member, _ in (*tutorials.ENTITY, *tutorials.STATE, *tutorials.TIME)}


def paths(
    *,
    source: str = "plain",
    id: str | None = None,  # noqa: A002  # named as the member of the event is
    type: str | None = None,  # noqa: A002
    entity: str | None = None,
    part: str | None = None,
    state: str | None = None,
    time: str | None = None,
) -> Paths:
    """Paths as people write them: `paths(id="meta.id", entity="call.id", time="meta.at")`.

    Several that may lead there are separated by blanks, the first that does counts. What is not given is looked for
    in the usual places.
    """
    given = {"id": id, "type": type, "entity": entity, "part": part, "state": state, "time": time}
    if not isinstance(source, str) or not source:
        raise SettingError(f"source={source!r} must be a name")
    return Paths(source, **{member: _paths(member, dotted) for member, dotted in given.items() if dotted is not None})


def _paths(member: str, dotted: str) -> tuple[Place, ...]:
    if not isinstance(dotted, str) or not dotted.split() or any(not all(path(each)) for each in dotted.split()):
        raise SettingError(f'{member}={dotted!r} is no path; write it like "data.case.id"')
    return places(*dotted.split())


def has_id(delivery: Delivery, paths: Paths) -> bool:
    return first(_opened(delivery.body), paths.id) is not None


def read(delivery: Delivery, paths: Paths = PATHS) -> Event:
    body = delivery.body
    said = _opened(body)
    if paths is PATHS and (type(detail := said.get("detail")) is not dict or _MEMBERS.isdisjoint(detail)):
        paths = _NOWHERE if _MEMBERS.isdisjoint(said) else _OUTSIDE
    found = identifier(first(said, paths.id))
    return Event(
        source=paths.source,
        id=found,
        type=text(first(said, paths.type)),
        entity=named(said, paths.entity),
        part=named(said, paths.part),
        state=stated(said, paths.state),
        occurred_at=when(said, paths.time),
        content_hash=content_digest(body) if found is None else None,
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )


def _opened(body: dict[str, Any]) -> dict[str, Any]:
    """The document with its detail as an object, where that is JSON text."""
    detail = body.get("detail")
    return {**body, "detail": parsed(detail)} if type(detail) is str else body
