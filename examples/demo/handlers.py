"""The handlers of the demo. A file takes the place of a CRM."""

import json
import time
from pathlib import Path

from oncegate import Event

CASES = Path("effects.jsonl")
REPAIRED = Path("repaired")  # while this file does not exist, the CRM does not know some customers


def open_case(event: Event) -> None:
    """Open a case. Some events fail at the first attempt, as if the CRM were overloaded."""
    fails_first = event.key is not None and sum(str(event.key).encode()) % 40 == 0
    if fails_first and event.attempt == 1:
        raise RuntimeError("the CRM is overloaded")
    with CASES.open("a") as file:
        file.write(f"{json.dumps({'key': str(event.key), 'type': event.type, 'attempt': event.attempt})}\n")


def write_invoice(event: Event) -> dict[str, str]:
    """Write an invoice. The result is stored, and every duplicate gets it."""
    if event.body.get("slow"):
        time.sleep(2)
    if "customer" not in event.body:
        raise KeyError("customer")
    if event.entity and event.entity.startswith("unknown") and not REPAIRED.exists():
        raise LookupError(f"the CRM has no customer {event.entity}")
    return {"invoice": f"INV-{event.id}"}
