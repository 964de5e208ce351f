"""Keys: what makes two deliveries one event.

A strategy is a callable from Event to Key. Every strategy here raises MissingKey when a part it needs is not
there: a missing part must never put two events under one key. Paths lead into the body of the event, else into the
whole document that it came in, else to what the source has read: `entity`, `part`, `state`, `type`, `occurred_at`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from msgspec.structs import replace

from oncegate import lifecycles
from oncegate.canonical import content_digest, decode, digest_of, normal
from oncegate.durations import Duration, microseconds
from oncegate.errors import MissingKey, SettingError
from oncegate.events import Event, Key, StateChange
from oncegate.sources.fields import Path, folded, index, into, name, parsed, path
from oncegate.times import microseconds_of, moment

Strategy = Callable[[Event], Key]

_READ = ("entity", "part", "state", "type", "occurred_at")
_WRITTEN_TIME = re.compile(r"\s*\d{4}-\d\d-\d\d[Tt ]\d\d:", re.ASCII)
_NAMED_AS_TIME = re.compile(r"(?i:time|date|stamp|created|updated|modified|occurred|changed|^ts$|^at$|^when$)|At$|_at$")


def make(strategy: str, event: Event, parts: Sequence[Any], *, binds: bool = True) -> Key:
    """A key from its parts, joined as one JSON array: no two different lists of parts give the same bytes.

    The strategy and the source are part of it, so that neither two strategies nor two sources share a key.
    """
    values = tuple(parts)
    return Key(digest_of((strategy, event.source, *values)), strategy, values, binds)


def auto(event: Event) -> Key:
    """The default key of the event's source; where it has none of its own, the id, else the content."""
    if not event.identity:
        return content(event) if event.id is None else event_id(event)
    if event.content_hash is None:
        return make("auto", event, event.identity)
    return make("auto.content", event, (*event.identity, event.content_hash.hex()))


def event_id(event: Event) -> Key:
    """The id that the body itself has for the event, else that of its envelope; never one of the transport."""
    if not event.own_id and event.id is None:
        raise MissingKey("event_id", ("id",))
    return make("event_id", event, event.own_id or [event.id])


def webhook_id(event: Event) -> Key:
    """The `webhook-id` of a Standard Webhook, which its sender signs and keeps when it sends the message again. Events
    that came in any other way have none."""
    if event.webhook_id is None:
        raise MissingKey("webhook_id", ("the signed webhook-id of a Standard Webhook",))
    return make("webhook_id", event, [event.webhook_id])


@overload
def content(event: Event, /) -> Key: ...
@overload
def content(*, exclude: str | Sequence[str]) -> Strategy: ...
def content(event: Event | None = None, /, *, exclude: str | Sequence[str] = ()) -> Key | Strategy:
    """All that the event says: its canonical body, its type and its entity, which may stand around the body.

    `content(exclude=["meta.sentAt"])` leaves members of it out.
    """
    if event is not None:
        return make("content", event, [*_around(event), content_hash(event).hex()])
    if not isinstance(exclude, Sequence):
        raise SettingError(f'exclude={exclude!r} must be a path such as "meta.sentAt", or a list of them')
    left_out = _checked("content(exclude=…)", [exclude] if isinstance(exclude, str) else exclude)

    def by_the_rest(event: Event) -> Key:
        said = {name(_found(event, each)) for each in left_out}
        around = [None if part in said else part for part in _around(event)]
        rest = event.body
        for each in left_out:
            rest = _without(rest, _within_body(event, path(each)))
        return make("content", event, [list(left_out), *around, content_digest(rest).hex()], binds=False)

    return by_the_rest


def fields(*paths: str, round: Duration | None = None) -> Strategy:  # noqa: A002  # as people say it
    """The values at these paths: `fields("data.case.id", "data.status")`. All must be there.

    With `round="1m"` the times among them count by the minute they fall into, whatever lies on its two sides: two
    copies a second apart may still fall into different ones. As that merges different content, it is not bound.
    """
    wanted = _checked("fields()", paths)
    width = None if round is None else microseconds(round, "round")

    def by_fields(event: Event) -> Key:
        values = _values("fields", event, wanted)
        if width is None:
            return make("fields", event, [list(wanted), *values])
        rounded = [_rounded(each, value, width) for each, value in zip(wanted, values, strict=True)]
        if rounded == values:
            raise MissingKey("fields", (f"a time to round in {', '.join(wanted)}",))
        return make("fields", event, [list(wanted), width, *rounded], binds=False)

    return by_fields


def once_per(name: str, *paths: str) -> Strategy:
    """One effect for all events with these values: `once_per("survey", "conversationId")`, whatever else they say."""
    wanted = _checked("once_per()", paths)
    if not isinstance(name, str) or not name:
        raise SettingError("once_per() takes a name for the effect and at least one path")

    def by_effect(event: Event) -> Key:
        return make("once_per", event, [name, list(wanted), *_values("once_per", event, wanted)], binds=False)

    return by_effect


def first(*strategies: Callable[[Event], Any]) -> Strategy:
    """The first of these strategies whose parts are there."""
    if not strategies:
        raise SettingError("first() takes at least one strategy, such as first(keys.event_id, keys.content)")
    tries = [strategy(each) for each in strategies]

    def by_first(event: Event) -> Key:
        tried: list[str] = []
        for each in tries:
            try:
                return each(event)
            except MissingKey as missing:
                tried += missing.tried
        raise MissingKey("first", tuple(tried))

    return by_first


def state_change(
    window: Duration = "500ms",
    *,
    entity: str | None = None,
    state: str | None = None,
    aliases: Mapping[str, str] | None = None,
    rank: Mapping[str, int] | Sequence[str] | None = None,
) -> Strategy:
    """Emissions of one state change, whatever their ids and content: same entity and state, times within the window.

    `entity` and `state` are paths; without them it is what the source has read. A type may end with a state, such as
    `call.ended`: it is then of one family with `call.held`, and that is its state if it has no other.
    `aliases={"answered": "connected"}` takes one state for another, and `rank` orders states that have the same time.
    Which emissions are one event, the timeline of the entity decides.
    """
    width = microseconds(window, "window")
    _checked("state_change(entity=…, state=…)", [each for each in (entity, state) if each is not None] or ["entity"])
    states = lifecycles.States(rank, aliases)

    def by_change(event: Event) -> Key:
        who = event.entity if entity is None else _found(event, entity)
        said = _stated(event.state if state is None else _found(event, state))
        # Where a path is to lead to the state, what the type ends with is no substitute for it.
        told = None if said is None and state is not None else states.told(event.type or "", said)
        if told is None or _absent(who) or event.occurred_at is None:
            parts = ((entity or "entity", who), (state or "state", told), ("time", event.occurred_at))
            raise MissingKey("state_change", tuple(needed for needed, part in parts if _absent(part)))
        at = microseconds_of(event.occurred_at)
        place = [told.family, who, event.part]
        change = StateChange(digest_of(("timeline", event.source, *place)), told.state, at, told.rank, width)
        return replace(make("state_change", event, [*place, told.state, at], binds=False), change=change)

    return by_change


def strategy(given: Callable[[Event], Any]) -> Strategy:
    """Any callable as a strategy: it may answer a Key, or the parts of one (a value or a list of values)."""
    if not callable(given):
        raise SettingError(f"key={given!r} is no strategy; use keys.auto, keys.event_id, keys.fields(…) or a function")
    if given is auto or given is event_id or given is webhook_id or given is content:
        return given
    if given in _MAKERS:
        name = getattr(given, "__name__", "")
        raise SettingError(f"key=keys.{name} needs its arguments, and makes a strategy of them: keys.{name}(…)")

    def by_callable(event: Event) -> Key:
        found = given(event)
        if isinstance(found, Key):
            return found
        parts = list(found) if isinstance(found, list | tuple) else [found]
        if not parts or any(_absent(part) for part in parts):
            raise MissingKey(getattr(given, "__name__", "custom"), ("every part it returns",))
        return make("custom", event, normal(parts))

    return by_callable


_MAKERS: tuple[Callable[..., Strategy], ...] = (fields, once_per, first, state_change)


def content_hash(event: Event) -> bytes:
    """The hash of the body without its wrapping: what a key that binds content is bound to."""
    return content_digest(event.body) if event.content_hash is None else event.content_hash


def _around(event: Event) -> tuple[Any, ...]:
    """What the body may not say and is no wrapping: two events of other types or entities may have the same body. Not
    so where the source takes the content alone for the identity: there it says all."""
    says_all = event.content_hash is not None and not event.identity
    return () if says_all or (event.type is None and event.entity is None) else (event.type, event.entity)


def _stated(said: Any) -> str | None:
    """What is there as the text of a state; None if it can be none."""
    return str(said) if isinstance(said, bool | int | str) and said != "" else None


def _checked(what: str, paths: Sequence[str]) -> tuple[str, ...]:
    if not paths or not all(isinstance(each, str) for each in paths):
        raise SettingError(f'{what} takes at least one path such as "data.case.id"')
    for each in paths:
        if not all(path(each)):
            raise SettingError(f'{what}: {each!r} is no path; write it like "data.case.id"')
    return tuple(paths)


def _values(name: str, event: Event, paths: Sequence[str]) -> list[Any]:
    values = [_found(event, each) for each in paths]
    missing = tuple(each for each, value in zip(paths, values, strict=True) if _absent(value))
    if missing:
        raise MissingKey(name, missing)
    return values


def _found(event: Event, dotted: str) -> Any:
    """In the body; else in the document, as a person sees it who looks at what arrived; else as the source read it."""
    steps = path(dotted)
    found = into(event.body, steps)
    if found is None and event.source != "plain" and event.raw:
        found = _in_document(decode(event.raw), steps)
    if found is None and dotted in _READ:
        return _as_read(event, dotted)
    return found


def _in_document(document: Any, steps: Path) -> Any:
    """What is at a path in the document that arrived. Where an input path handed over the detail alone, a path that
    leads through the `detail` finds what it finds in the envelope."""
    found = into(document, steps)
    if found is None and steps[0] == "detail" and isinstance(document, dict) and "detail" not in document:
        return into(document, steps[1:])
    return found


def _as_read(event: Event, name: str) -> Any:
    if name == "occurred_at":
        return None if event.occurred_at is None else event.occurred_at.isoformat()
    return folded(event.state) if name == "state" else getattr(event, name)


def _rounded(dotted: str, value: Any, width: int) -> Any:
    """The start of the bucket that a time falls into. What is not written as date and time is one only if its name
    says so, as ids are made of digits too."""
    is_written = isinstance(value, str) and _WRITTEN_TIME.match(value)
    if not is_written and not isinstance(value, dict) and not _NAMED_AS_TIME.search(path(dotted)[-1]):
        return value
    when = moment(value)
    return value if when is None else {"bucket": microseconds_of(when) // width}


def _within_body(event: Event, steps: Path) -> Path:
    """A path as it leads into the body: as it is, else without the steps that lead to the body in the document."""
    if into(event.body, steps) is None and event.source != "plain" and event.raw:
        document = decode(event.raw)
        for count in range(1, len(steps)):
            if parsed(into(document, steps[:count])) == event.body:
                return steps[count:]
    return steps


def _without(value: Any, steps: Path) -> Any:
    """A copy of the value without what is at a path."""
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict) and step in value:
        left = {name: each for name, each in value.items() if name != step}
        return {**left, step: _without(value[step], rest)} if rest else left
    place = index(value, step) if isinstance(value, list) else None
    if place is None:
        return value
    changed = [_without(value[place], rest)] if rest else []
    return [*value[:place], *changed, *value[place + 1 :]]


def _absent(value: Any) -> bool:
    return value is None or value == ""
