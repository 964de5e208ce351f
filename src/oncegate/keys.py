"""Keys: what makes two deliveries one event.

A strategy is a callable from Event to Key. Every strategy here raises MissingKey when a part it needs is not
there: a missing part must never put two events under one key.
"""

from collections.abc import Callable, Sequence
from typing import Any

from oncegate.canonical import digest, encode, normal
from oncegate.errors import MissingKey, SettingError
from oncegate.events import Event, Key

Strategy = Callable[[Event], Key]


def make(strategy: str, event: Event, parts: Sequence[Any], *, binds: bool = True) -> Key:
    """A key from its parts, joined as one JSON array: no two different lists of parts give the same bytes.

    The strategy and the source are part of it, so that neither two strategies nor two sources share a key.
    """
    values = tuple(parts)
    return Key(digest(encode([strategy, event.source, *values])), strategy, values, binds)


def event_id(event: Event) -> Key:
    """The id that the event carries."""
    if event.id is None:
        raise MissingKey("event_id", ("id",))
    return make("event_id", event, [event.id])


def content(event: Event) -> Key:
    """All that the event says: its canonical body."""
    return make("content", event, [content_hash(event).hex()])


def auto(event: Event) -> Key:
    """The default key of the event's source. Plain events: their id, else their content."""
    return content(event) if event.id is None else event_id(event)


def fields(*paths: str) -> Strategy:
    """The values at these paths of the body: `fields("data.case.id", "data.status")`. All must be there."""
    if not paths or not all(isinstance(path, str) and path.strip(".") for path in paths):
        raise SettingError('fields() takes at least one path such as "data.case.id"')

    def by_fields(event: Event) -> Key:
        values = [_at(event.body, path) for path in paths]
        missing = tuple(path for path, value in zip(paths, values, strict=True) if _absent(value))
        if missing:
            raise MissingKey("fields", missing)
        return make("fields", event, [list(paths), *values])

    return by_fields


def strategy(given: Callable[[Event], Any]) -> Strategy:
    """Any callable as a strategy: it may answer a Key, or the parts of one (a value or a list of values)."""
    if not callable(given):
        raise SettingError(f"key={given!r} is no strategy; use keys.auto, keys.event_id, keys.fields(…) or a function")

    def by_callable(event: Event) -> Key:
        found = given(event)
        if isinstance(found, Key):
            return found
        parts = list(found) if isinstance(found, list | tuple) else [found]
        if not parts or any(_absent(part) for part in parts):
            raise MissingKey(getattr(given, "__name__", "custom"), ("every part it returns",))
        return make("custom", event, normal(parts))

    return by_callable


def content_hash(event: Event) -> bytes:
    """The hash of the body without its wrapping: what a key that binds content is bound to."""
    return digest(encode(event.body))


def _absent(value: Any) -> bool:
    return value is None or value == ""


def _at(body: Any, path: str) -> Any:
    """The value at a dotted path, None if there is none. A number steps into a list."""
    for name in path.split("."):
        if isinstance(body, dict):
            body = body.get(name)
        elif isinstance(body, list) and name.isdecimal() and len(name) < 7 and int(name) < len(body):
            body = body[int(name)]
        else:
            return None
    return body
