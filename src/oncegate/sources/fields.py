"""Read single fields of a body (paths, ids, names, states, times), and check the values for hostile input."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from oncegate.carriers import pieces
from oncegate.events import Delivery
from oncegate.times import moment

_LONGEST_ID = 256
_MOST_DIGITS = 20

# The steps of a path into a body: ("data", "case", "id").
Path = tuple[str, ...]
# The first step of a path, and the other steps: ("data", ("case", "id")). Most paths have only one step, so a look-up
# in the body is often enough.
Place = tuple[str, Path]


def path(dotted: str) -> Path:
    return tuple(dotted.split("."))


def places(*dotted: str) -> tuple[Place, ...]:
    return tuple((steps[0], steps[1:]) for steps in map(path, dotted))


def at(value: Any, path: Path) -> Any:
    """Return the value at a path, or None if there is no value. In a list, a step is an index; -1 is the last item."""
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
    """Return the index of the item that a step of a path selects in a list, or None if the list has no such item."""
    if name == "-1":
        return len(items) - 1 if items else None
    if not (name.isascii() and name.isdecimal()) or len(name) > 6:
        return None
    return int(name) if int(name) < len(items) else None


def into(value: Any, path: Path) -> Any:
    """Return the value at a path. If a value on the path is the JSON text of an object, the text is decoded."""
    for step in path:
        value = at(parsed(value), (step,))
    return value


def first(body: dict[str, Any], candidates: tuple[Place, ...]) -> Any:
    """Return the first value at `candidates` that is not missing, null or an empty string; None if there is no such
    value."""
    for member, rest in candidates:
        found = body.get(member)
        if rest and found is not None:
            found = at(found, rest)
        if found is not None and found != "":
            return found
    return None


def parsed(value: Any) -> Any:
    """Decode the JSON text of an object. Other values are returned unchanged."""
    return pieces.parsed(value) if type(value) is str and value.lstrip()[:1] == "{" else value


def when(body: dict[str, Any], candidates: tuple[Place, ...]) -> datetime | None:
    """Return the first value at `candidates` that is a time."""
    for member, rest in candidates:
        found = body.get(member)
        if found is None or (rest and (found := at(found, rest)) is None):
            continue
        if (time := moment(found)) is not None:
            return time
    return None


def latest(body: dict[str, Any], candidates: tuple[Place, ...]) -> datetime | None:
    """Return the latest of the times at `candidates`."""
    return max(filter(None, (when(body, (candidate,)) for candidate in candidates)), default=None)


def envelope_id(delivery: Delivery) -> str | None:
    return None if delivery.envelope is None else identifier(delivery.envelope.get("id"))


def apart(delivery: Delivery, time: datetime | None) -> Any:
    """Return a value that distinguishes an event from a later event with the same content. This is the time of the
    event, otherwise the id of its envelope, otherwise the time of its envelope. None if the event has none of them."""
    if time is not None:
        return time.isoformat()
    return None if delivery.envelope is None else envelope_id(delivery) or delivery.envelope.get("time")


def within_envelope(delivery: Delivery, time: datetime | None) -> tuple[Any, ...]:
    """Return what identifies a detail in addition to its content. Empty for a document without an envelope: only the
    content identifies such a document."""
    return () if delivery.envelope is None else (apart(delivery, time),)


def identifier(value: Any, name: str = "id") -> str | None:
    """Return an id as text, or None if the value is missing, null or empty. Raises ValueError for a value that could be
    confused with another id, and for an id that is too long."""
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
    """Return the name of an object other than the event, such as a conversation. Text is returned unchanged, a whole
    number as text, and None for every other value."""
    if type(value) is str:
        return value or None
    return str(value) if type(value) is int and abs(value) < 10**_MOST_DIGITS else None


def named(
    body: dict[str, Any], candidates: tuple[Place, ...], meaning: Callable[[Any], str | None] = name
) -> str | None:
    """Return the first value at `candidates` that `meaning` accepts, as text. By default this is the first name."""
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
    """Return a state as it was sent. Booleans are also states: for example, whether a member has joined a queue."""
    if type(value) is bool:
        return "true" if value else "false"
    return name(value)


def stated(body: dict[str, Any], candidates: tuple[Place, ...]) -> str | None:
    """Return the first value at `candidates` that is a state."""
    return named(body, candidates, state)


def folded(state: str | None) -> str | None:
    """Return a state in the form for comparisons, because senders differ in upper and lower case."""
    return None if state is None else state.casefold()
