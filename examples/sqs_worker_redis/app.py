"""What the worker calls: it opens a case for each event, once. A file stands for the CRM."""

import json
from pathlib import Path

from oncegate import Event

CASES = Path("effects.jsonl")


def open_case(event: Event) -> None:
    """Several workers append to the file at a time, a line each; what it raises lets the message come again."""
    case = {"key": str(event.key), "type": event.type, "about": event.entity, "attempt": event.attempt}
    with CASES.open("a") as file:
        file.write(f"{json.dumps(case)}\n")
