"""One line for each delivery: for people on a terminal, as JSON elsewhere. Payloads are not part of it."""

import sys
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.text import Text

from oncegate.cli.output import clean
from oncegate.gate.outcome import Outcome

_COLOURS = {"processed": "green", "duplicate": "cyan", "in_flight": "yellow"}


def json_line(outcome: Outcome) -> None:
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "status": outcome.status,
        "kind": outcome.kind,
        "event_id": outcome.event.id,
        "key": None if outcome.key is None else str(outcome.key),
        "reason": outcome.reason,
    }
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def pretty_line(outcome: Outcome) -> None:
    time = datetime.now(UTC).strftime("%H:%M:%S")
    status = (outcome.status.ljust(9), _COLOURS.get(outcome.status, "red"))
    line = Text.assemble((time, "dim"), "  ", status, "  ", clean(outcome.event.id or "-"), "  ", clean(outcome.reason))
    Console(highlight=False, soft_wrap=True).print(line)
