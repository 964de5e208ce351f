"""Code that several sinks use.

This code is not in `sinks/__init__.py`, because `sinks/__init__.py` imports the sinks. An import in the other direction
would be a cycle.
"""

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from oncegate.carriers.pieces import HANDED_KEY
from oncegate.durations import microseconds
from oncegate.errors import Bury, RetryLater
from oncegate.events import Event

_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def document(event: Event) -> bytes:
    """The JSON that a sink sends: the bytes of the event as received, or the encoded body if the event has no such
    bytes."""
    return event.raw or msgspec.json.encode(event.body)


def headers_of(event: Event) -> dict[str, str]:
    """The headers of a message on a bus. Text from the sender of the event could contain a line break, so all
    characters except printable ASCII are percent-encoded."""
    headers = {"oncegate-source": event.source, "oncegate-type": event.type, "oncegate-attempt": str(event.attempt)}
    if event.key is not None:
        headers[HANDED_KEY] = str(event.key)
    return {name: quote(value, safe=_PRINTABLE, errors="replace") for name, value in headers.items() if value}


def timeout_of(options: Mapping[str, str]) -> float:
    """The option `timeout` of the URL of a destination, in seconds; 10 s by default. Raises SettingError."""
    return microseconds(options.get("timeout", "10s"), "timeout") / 1e6


def not_confirmed(place: str, reason: str) -> RetryLater:
    """The error of a publisher whose destination has not confirmed the message. `place` describes the destination."""
    return RetryLater(f"publish failed: {place} did not confirm the message ({reason})", public=True)


def rejected(place: str, reason: str = "it is too large") -> Bury:
    """The error of a publisher whose destination rejects the event itself."""
    return Bury(f"publish failed: {place} rejects this event ({reason})")
