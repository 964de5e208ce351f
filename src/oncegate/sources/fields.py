"""Read single fields of a body: paths, ids, names, states and times, with checks for hostile values."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from oncegate.carriers import pieces
from oncegate.events import Delivery
from oncegate.times import moment

_LONGEST_ID = 256
_MOST_DIGITS = 20

# A path into a body, split: ("data", "case", "id").
Path = tuple[str, ...]
# A path with its first step separated, because most paths have one step: ("data", ("case", "id")).
Place = tuple[str, Path]


def path(dotted: str) -> Path:
    return tuple(dotted.split("."))


def places(*dotted: str) -> tuple[Place, ...]:
    return tuple((steps[0], steps[1:]) for steps in map(path, dotted))


def at(value: Any, path: Path) -> Any:
    """The value at a path; None if there is none. A number is an index into a list; -1 is the last item."""
    for name in path:
        if type(value) is dict:
            value = value.get(name)
        elif type(value) is list:
            value = _item(value, name)
        else:
            return None
    return value


def _item(items: list[Any], name: str) -> Any:
    position = index(items, name)
    return None if position is None else items[position]


def index(items: list[Any], name: str) -> int | None:
    """The index into a list for a step of a path; None if there is no such item."""
    if name == "-1":
        return len(items) - 1 if items else None
    if not (name.isascii() and name.isdecimal()) or len(name) > 6:
        return None
    return int(name) if int(name) < len(items) else None


def into(value: Any, path: Path) -> Any:
    """The value at a path. Objects that are stored as JSON text are decoded on the way."""
    for step in path:
        value = at(parsed(value), (step,))
    return value


def first(body: dict[str, Any], candidates: tuple[Place, ...]) -> Any:
    """The first value that is present, not null and not empty."""
    for member, rest in candidates:
        found = body.get(member)
        if rest and found is not None:
            found = at(found, rest)
        if found is not None and found != "":
            return found
    return None


def parsed(value: Any) -> Any:
    """The value; for the JSON text of an object, the object."""
    return pieces.parsed(value) if type(value) is str and value.lstrip()[:1] == "{" else value


def when(body: dict[str, Any], candidates: tuple[Place, ...]) -> datetime | None:
    """The first value that is a time."""
    for member, rest in candidates:
        found = body.get(member)
        if found is None or (rest and (found := at(found, rest)) is None):
            continue
        if (time := moment(found)) is not None:
            return time
    return None


def latest(body: dict[str, Any], candidates: tuple[Place, ...]) -> datetime | None:
    """The latest of all the times."""
    return max(filter(None, (when(body, (candidate,)) for candidate in candidates)), default=None)


def envelope_id(delivery: Delivery) -> str | None:
    return None if delivery.envelope is None else identifier(delivery.envelope.get("id"))


def apart(delivery: Delivery, time: datetime | None) -> Any:
    """The value that distinguishes an event from a later one with the same content: its time, else the id or the time
    of its envelope."""
    if time is not None:
        return time.isoformat()
    return None if delivery.envelope is None else envelope_id(delivery) or delivery.envelope.get("time")


def within_envelope(delivery: Delivery, time: datetime | None) -> tuple[Any, ...]:
    """What identifies a detail in addition to its content; nothing for a document without an envelope, which has only
    its content."""
    return () if delivery.envelope is None else (apart(delivery, time),)


def identifier(value: Any, name: str = "id") -> str | None:
    """An id as text; None if it is absent, null or empty. Raises ValueError for a value that could be confused with
    another id."""
    if type(value) is str and 0 < len(value) <= _LONGEST_ID and "\0" not in value:
        return value
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{name} must be a string or a whole number")
    if isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
        raise ValueError(f"{name} has more than {_MOST_DIGITS} digits; send it as a string")
    found = str(value)
    if len(found) > _LONGEST_ID:
        raise ValueError(f"{name} is longer than {_LONGEST_ID} characters")
    if "\0" in found:
        raise ValueError(f"{name} contains a NUL character")
    return found


def name(value: Any) -> str | None:
    """The name of something other than the event: text, or a number as text; else None."""
    if type(value) is str:
        return value or None
    return str(value) if type(value) is int and abs(value) < 10**_MOST_DIGITS else None


def named(
    body: dict[str, Any], candidates: tuple[Place, ...], meaning: Callable[[Any], str | None] = name
) -> str | None:
    """The first value that `meaning` accepts: by default the first name."""
    for member, rest in candidates:
        found = body.get(member)
        if found is None:
            continue
        if type(found) is str and found and not rest:
            return found
        if (result := meaning(at(found, rest))) is not None:
            return result
    return None


def text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def state(value: Any) -> str | None:
    """A state as it was sent. Booleans are states, too: a member has joined or has not."""
    if type(value) is bool:
        return "true" if value else "false"
    return name(value)


def stated(body: dict[str, Any], candidates: tuple[Place, ...]) -> str | None:
    """The first value that is a state."""
    return named(body, candidates, state)


def folded(state: str | None) -> str | None:
    """A state for comparison: senders differ in upper and lower case."""
    return None if state is None else state.casefold()
