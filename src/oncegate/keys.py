"""Key strategies: functions from an event to its key. Two deliveries with the same key are the same event.

A strategy raises MissingKey when an event lacks a part of the key. Otherwise all events that lack this part could get
the same key. A path is looked up in the body of the event, then in the whole document that arrived, then among the
fields that the source has read: `entity`, `part`, `state`, `type`, `occurred_at`.
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

_EVENT_FIELDS = ("entity", "part", "state", "type", "occurred_at")
_ISO_TIME = re.compile(r"\s*\d{4}-\d\d-\d\d[Tt ]\d\d:", re.ASCII)
_TIME_NAME = re.compile(r"(?i:time|date|stamp|created|updated|modified|occurred|changed|^ts$|^at$|^when$)|At$|_at$")


def make(strategy: str, event: Event, parts: Sequence[Any], *, binds: bool = True) -> Key:
    """Make a key from its parts. The parts are encoded as one JSON array, so different parts give different bytes.

    The strategy and the source are part of the key: two strategies or two sources never share a key.
    """
    values = tuple(parts)
    return Key(digest_of((strategy, event.source, *values)), strategy, values, binds)


def auto(event: Event) -> Key:
    """Use the default key of the source of the event. If the source has no default key, use the id of the event. If the
    event has no id, use its content."""
    if not event.identity:
        return content(event) if event.id is None else event_id(event)
    if event.content_hash is None:
        return make("auto", event, event.identity)
    return make("auto.content", event, (*event.identity, event.content_hash.hex()))


def event_id(event: Event) -> Key:
    """Use the id in the body, otherwise the id of the envelope. An id of the transport, such as an SQS message id, is
    never used."""
    if not event.own_id and event.id is None:
        raise MissingKey("event_id", ("id",))
    return make("event_id", event, event.own_id or [event.id])


def webhook_id(event: Event) -> Key:
    """Use the `webhook-id` of a Standard Webhook. The sender signs this id and repeats it in retries. Other events have
    no key under this strategy."""
    if event.webhook_id is None:
        raise MissingKey("webhook_id", ("the signed webhook-id of a Standard Webhook",))
    return make("webhook_id", event, [event.webhook_id])


@overload
def content(event: Event, /) -> Key: ...
@overload
def content(*, exclude: str | Sequence[str]) -> Strategy: ...
def content(event: Event | None = None, /, *, exclude: str | Sequence[str] = ()) -> Key | Strategy:
    """Use the canonical body, the type and the entity of the event. The type and the entity may come from outside the
    body.

    `content(exclude=["meta.sentAt"])` leaves out members of the body.
    """
    if event is not None:
        return make("content", event, [*_outside_body(event), content_hash(event).hex()])
    if not isinstance(exclude, Sequence):
        raise SettingError(f'exclude={exclude!r} must be a path such as "meta.sentAt", or a list of them')
    excluded = _check_paths("content(exclude=…)", [exclude] if isinstance(exclude, str) else exclude)

    def by_remaining_content(event: Event) -> Key:
        excluded_values = {name(_lookup(event, each)) for each in excluded}
        outside = [None if part in excluded_values else part for part in _outside_body(event)]
        rest = event.body
        for each in excluded:
            rest = _without(rest, _path_in_body(event, path(each)))
        return make("content", event, [list(excluded), *outside, content_digest(rest).hex()], binds=False)

    return by_remaining_content


def fields(*paths: str, round: Duration | None = None) -> Strategy:  # noqa: A002  # a public name
    """Use the values at these paths, such as `fields("data.case.id", "data.status")`. The event must have a value at
    every path.

    With `round="1m"`, times among the values are rounded down to the minute. Two copies that are one second apart may
    still be rounded to different minutes. Rounding merges different content, so the key does not bind content.
    """
    wanted = _check_paths("fields()", paths)
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
    """Allow one effect for all events with the same values at these paths, such as `once_per("survey",
    "conversationId")`. The rest of their content does not matter."""
    wanted = _check_paths("once_per()", paths)
    if not isinstance(name, str) or not name:
        raise SettingError(f"once_per({name!r}, …): the first argument must be a name for the effect")

    def by_effect(event: Event) -> Key:
        return make("once_per", event, [name, list(wanted), *_values("once_per", event, wanted)], binds=False)

    return by_effect


def first(*strategies: Callable[[Event], Any]) -> Strategy:
    """Use the first of these strategies whose parts the event has."""
    if not strategies:
        raise SettingError("first() takes at least one strategy, such as first(keys.event_id, keys.content)")
    candidates = [strategy(each) for each in strategies]

    def by_first(event: Event) -> Key:
        tried: list[str] = []
        for each in candidates:
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
    """Treat all emissions of one state change as one event: same entity, same state, event times within `window`. Their
    ids and content may differ.

    `entity` and `state` are paths; by default the fields that the source has read are used. A type may end with a
    state, such as `call.ended`. Events of type `call.ended` then share a timeline with events of type `call.held`. The
    state of a `call.ended` event is `ended` if the event has no other state. `aliases={"answered": "connected"}` makes
    these two states equal. `rank` orders states with equal times. The timeline of the entity decides which emissions
    are one event.
    """
    width = microseconds(window, "window")
    _check_paths(
        "state_change(entity=…, state=…)", [each for each in (entity, state) if each is not None] or ["entity"]
    )
    states = lifecycles.States(rank, aliases)

    def by_change(event: Event) -> Key:
        subject = event.entity if entity is None else _lookup(event, entity)
        stated = _state_text(event.state if state is None else _lookup(event, state))
        # If a path to the state is given and finds no value, the end of the type is not used as the state instead.
        found = None if stated is None and state is not None else states.find(event.type or "", stated)
        if found is None or _absent(subject) or event.occurred_at is None:
            parts = ((entity or "entity", subject), (state or "state", found), ("time", event.occurred_at))
            raise MissingKey("state_change", tuple(needed for needed, part in parts if _absent(part)))
        at = microseconds_of(event.occurred_at)
        timeline = [found.family, subject, event.part]
        change = StateChange(digest_of(("timeline", event.source, *timeline)), found.state, at, found.rank, width)
        return replace(make("state_change", event, [*timeline, found.state, at], binds=False), change=change)

    return by_change


def strategy(given: Callable[[Event], Any]) -> Strategy:
    """Make a strategy of any callable. The callable returns a Key, or the parts of a key: a value or a list of
    values."""
    if not callable(given):
        raise SettingError(
            f"key={given!r} is not a strategy; use keys.auto, keys.event_id, keys.fields(…) or a function"
        )
    if given is auto or given is event_id or given is webhook_id or given is content:
        return given
    if given in _MAKERS:
        name = getattr(given, "__name__", "")
        raise SettingError(f"key=keys.{name} needs its arguments; write keys.{name}(…)")

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
    """The hash of the body without its wrapping. A key that binds content is bound to this hash."""
    return content_digest(event.body) if event.content_hash is None else event.content_hash


def _outside_body(event: Event) -> tuple[Any, ...]:
    """The type and the entity of the event. The body does not always contain them, so two events of different types or
    entities may have equal bodies. The result is empty if the source identifies the event by its content alone."""
    content_is_all = event.content_hash is not None and not event.identity
    return () if content_is_all or (event.type is None and event.entity is None) else (event.type, event.entity)


def _state_text(value: Any) -> str | None:
    """Convert a value to the name of a state. Returns None if the value cannot be a state."""
    return str(value) if isinstance(value, bool | int | str) and value != "" else None


def _check_paths(what: str, paths: Sequence[str]) -> tuple[str, ...]:
    if not paths or not all(isinstance(each, str) for each in paths):
        raise SettingError(f'{what} takes at least one path such as "data.case.id"')
    for each in paths:
        if not all(path(each)):
            raise SettingError(f'{what}: {each!r} is not a path; write it like "data.case.id"')
    return tuple(paths)


def _values(name: str, event: Event, paths: Sequence[str]) -> list[Any]:
    values = [_lookup(event, each) for each in paths]
    missing = tuple(each for each, value in zip(paths, values, strict=True) if _absent(value))
    if missing:
        raise MissingKey(name, missing)
    return values


def _lookup(event: Event, dotted: str) -> Any:
    """The value at a path: in the body, else in the document that arrived, else among the fields of the event."""
    steps = path(dotted)
    found = into(event.body, steps)
    if found is None and event.source != "plain" and event.raw:
        found = _in_document(decode(event.raw), steps)
    if found is None and dotted in _EVENT_FIELDS:
        return _event_field(event, dotted)
    return found


def _in_document(document: Any, steps: Path) -> Any:
    """The value at a path in the document that arrived. An EventBridge input path may have passed on only the `detail`,
    without the envelope. A path that starts with `detail` then finds the same value as with the envelope."""
    found = into(document, steps)
    if found is None and steps[0] == "detail" and isinstance(document, dict) and "detail" not in document:
        return into(document, steps[1:])
    return found


def _event_field(event: Event, name: str) -> Any:
    if name == "occurred_at":
        return None if event.occurred_at is None else event.occurred_at.isoformat()
    return folded(event.state) if name == "state" else getattr(event, name)


def _rounded(dotted: str, value: Any, width: int) -> Any:
    """The bucket that a time falls into; the value itself if it is not a time. A value that is not an ISO time counts
    as a time only if its member is named like a time, because an id can also consist of digits."""
    is_iso = isinstance(value, str) and _ISO_TIME.match(value)
    if not is_iso and not isinstance(value, dict) and not _TIME_NAME.search(path(dotted)[-1]):
        return value
    when = moment(value)
    return value if when is None else {"bucket": microseconds_of(when) // width}


def _path_in_body(event: Event, steps: Path) -> Path:
    """Make a path relative to the body. If the path starts at the document, the steps that lead to the body are
    removed. Any other path is returned unchanged."""
    if into(event.body, steps) is None and event.source != "plain" and event.raw:
        document = decode(event.raw)
        for count in range(1, len(steps)):
            if parsed(into(document, steps[:count])) == event.body:
                return steps[count:]
    return steps


def _without(value: Any, steps: Path) -> Any:
    """A copy of the value without the member or item at a path."""
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict) and step in value:
        others = {name: each for name, each in value.items() if name != step}
        return {**others, step: _without(value[step], rest)} if rest else others
    position = index(value, step) if isinstance(value, list) else None
    if position is None:
        return value
    changed = [_without(value[position], rest)] if rest else []
    return [*value[:position], *changed, *value[position + 1 :]]


def _absent(value: Any) -> bool:
    return value is None or value == ""
