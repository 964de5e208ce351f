"""One line for each event, for people on a terminal."""

from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from oncegate.cli.output import clean
from oncegate.gate import Notice
from oncegate.gate.log import outcome_of

_COLOURS = {"processed": "green", "duplicate": "cyan", "in_flight": "yellow"}


def pretty_line(notice: Notice) -> None:
    """An observer. What an exception said is part of the line: whoever started the service is looking at it."""
    outcome = outcome_of(notice)
    if outcome is None:
        return
    time = datetime.fromtimestamp(notice.at / 1_000_000, UTC).strftime("%H:%M:%S")
    status = (outcome.status.ljust(9), _COLOURS.get(outcome.status, "red"))
    line = Text.assemble((time, "dim"), "  ", status, "  ", clean(outcome.event.id or "-"), "  ", clean(outcome.reason))
    Console(highlight=False, soft_wrap=True).print(line)
