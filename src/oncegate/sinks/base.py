"""Parts that the sinks share.

They are not in the package itself: the package imports the sinks, so the sinks must not import the package.
"""

import os
from typing import TypeAlias

import msgspec

from oncegate.events import Event

Path: TypeAlias = str | os.PathLike[str]


def document(event: Event) -> bytes:
    """The JSON that a sink sends: the bytes that were received, else the body."""
    return event.raw or msgspec.json.encode(event.body)
