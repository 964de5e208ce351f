"""Code that several sinks use.

This code is not in `sinks/__init__.py`, because `sinks/__init__.py` imports the sinks. An import in the other direction
would be a cycle.
"""

from urllib.parse import quote

import msgspec

from oncegate.carriers.pieces import HANDED_KEY
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
