"""The plain source: any JSON object, with its members found at configurable paths."""

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.events import Delivery, Event
from oncegate.sources import tutorials
from oncegate.sources.fields import Path, first, identifier, name, path, stated, text, when


class Paths(Struct, frozen=True):
    """Where a plain event has what; the first path that leads to something counts."""

    source: str = "plain"
    id: tuple[Path, ...] = (("id",), ("eventId",))
    type: tuple[Path, ...] = (("type",), ("eventType",))
    entity: tuple[Path, ...] = tutorials.ENTITY
    part: tuple[Path, ...] = ()
    state: tuple[Path, ...] = tutorials.STATE
    time: tuple[Path, ...] = tutorials.TIME


PATHS = Paths()


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


def _paths(member: str, dotted: str) -> tuple[Path, ...]:
    if not isinstance(dotted, str) or not dotted.split() or any(not all(path(each)) for each in dotted.split()):
        raise SettingError(f'{member}={dotted!r} is no path; write it like "data.case.id"')
    return tuple(map(path, dotted.split()))


def read(delivery: Delivery, paths: Paths = PATHS) -> Event:
    body = delivery.body
    return Event(
        source=paths.source,
        id=identifier(first(body, paths.id)),
        type=text(first(body, paths.type)),
        entity=name(first(body, paths.entity)),
        part=name(first(body, paths.part)),
        state=stated(body, paths.state),
        occurred_at=when(body, paths.time),
        body=body,
        raw=delivery.raw,
        evidence=delivery.evidence,
    )
