"""The log: one line of JSON for each event's outcome, without what its payload or an exception said."""

import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from msgspec import json

from oncegate.events import Event, Key
from oncegate.gate.observing import Notice
from oncegate.gate.outcome import Outcome

_LONGEST_NAME: Final = 256
# What is worth a line of its own, beside that of the event's outcome.
_WARNINGS: Final = ("transaction.held",)


class JsonLog:
    """An observer that writes to a stream; without one, to what stdout is at the time."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def __call__(self, notice: Notice) -> None:
        outcome = outcome_of(notice)
        if outcome is not None:
            write_line({"time": spelt(notice.at), **fields_of(outcome, notice.namespace)}, self._stream)
        elif notice.name in _WARNINGS and notice.event is not None:
            write_line({"time": spelt(notice.at), **_warning(notice, notice.event)}, self._stream)


def outcome_of(notice: Notice) -> Outcome | None:
    """The outcome that a notice tells of, None if it tells of something else; every event has one such notice."""
    outcome = notice.outcome
    return outcome if outcome is not None and notice.name == f"event.{outcome.status}" else None


def ascii_only(text: str) -> str:
    """The same JSON in printable ASCII: no character of it can steer a terminal, and every stream can take it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else escaped(c) for c in text)


def escaped(character: str) -> str:
    """A character as JSON writes it in ASCII."""
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def write_line(fields: dict[str, Any], stream: TextIO | None = None) -> None:
    """One line of JSON; without a stream, to what stdout is at the time."""
    stream = sys.stdout if stream is None else stream
    stream.write(f"{ascii_only(json.encode(fields).decode())}\n")
    stream.flush()


def spelt(at: int) -> str:
    """A time in microseconds as RFC 3339 has it."""
    when = datetime.fromtimestamp(at / 1_000_000, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def short(name: str | None) -> str | None:
    """A name of what its sender may have called anything, cut after the length that an id may have."""
    return name if name is None or len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def fields_of(outcome: Outcome, namespace: str) -> dict[str, Any]:
    """What a line says of an outcome; nothing in it is of the payload but what names the event."""
    return {
        "status": outcome.status,
        "kind": outcome.kind,
        **_names_of(outcome.event, outcome.key, namespace),
        "reason": outcome.discreet,
    }


def _warning(notice: Notice, event: Event) -> dict[str, Any]:
    return {"warning": notice.name, **_names_of(event, notice.key, notice.namespace), "reason": notice.detail}


def _names_of(event: Event, key: Key | None, namespace: str) -> dict[str, Any]:
    return {
        "event_id": event.id,
        "key": None if key is None else str(key),
        "namespace": namespace,
        "source": short(event.source),
        "type": short(event.type),
        "entity": short(event.entity),
        "attempt": event.attempt or None,
    }
