"""Code that all sinks use.

This code is not in `sinks/__init__.py`, because `sinks/__init__.py` imports the sinks. An import in the other direction
would be a cycle.
"""

import msgspec

from oncegate.events import Event


def document(event: Event) -> bytes:
    """The JSON that a sink sends: the bytes of the event as received, or the encoded body if the event has no such
    bytes."""
    return event.raw or msgspec.json.encode(event.body)
