"""The handler of the worker: it opens one case for each event. A file takes the place of a CRM."""

import json
from pathlib import Path

from oncegate import Event

CASES = Path("effects.jsonl")


def open_case(event: Event) -> None:
    """Append one line to the file, which several workers share. If it raises, the message is delivered again."""
    case = {"key": str(event.key), "type": event.type, "about": event.entity, "attempt": event.attempt}
    with CASES.open("a") as file:
        file.write(f"{json.dumps(case)}\n")
