"""What of an event is handed on."""

import msgspec

from oncegate.events import Event


def document(event: Event) -> bytes:
    """The event's JSON: as it came, else what is said in it."""
    return event.raw or msgspec.json.encode(event.body)
