"""What people and pipes see: colour and tables on a terminal, plain lines and JSON elsewhere."""

import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oncegate.gate.log import escaped

_WIDE = 150
_NARROW = 24
_STATES = {"P": "in progress", "R": "waiting", "C": "completed", "D": "dead letter"}
_COLOURS = {"in progress": "yellow", "waiting": "cyan", "completed": "green", "dead letter": "red"}


def state_name(state: str) -> str:
    return _STATES[state]


def clean(text: Any) -> str:
    """Text that cannot steer a terminal: control characters are shown by their escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def moment(time_us: int | None) -> str | None:
    """A store's time for a person: UTC, to the millisecond."""
    if time_us is None:
        return None
    when = datetime.fromtimestamp(time_us / 1_000_000, UTC)
    return when.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def say(text: str) -> None:
    print(clean(text))


def say_error(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble(("Error: ", "bold red"), clean(text)))


def show_json(value: Any) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    print("".join(c if c.isprintable() or c == "\n" else escaped(c) for c in text))


def show_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], essential: Collection[str]) -> None:
    """A table; on a terminal too narrow for all of it, its essential columns. The first is never cut."""
    texts = [["" if cell is None else clean(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _plain_table(headers, texts)
        return
    console = Console(highlight=False)
    wide = console.width >= _WIDE
    shown = [index for index, header in enumerate(headers) if wide or header in essential]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index in shown:
        widest = max(len(row[index]) for row in [headers, *texts])
        width = widest if index == 0 else min(widest, _NARROW)
        table.add_column(headers[index], overflow="ellipsis", no_wrap=True, min_width=width)
    for row in texts:
        table.add_row(*(Text(row[index]) for index in shown))
    console.print(table)


def _plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]
    for row in [headers, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show_facts(facts: dict[str, Any]) -> None:
    """One fact a line; what is not known is left out."""
    known = {name: clean(value) for name, value in facts.items() if value is not None}
    width = max(len(name) for name in known)
    console = Console(highlight=False, soft_wrap=True)
    for name, value in known.items():
        console.print(Text.assemble((name.ljust(width), "dim"), "  ", (value, _COLOURS.get(value, ""))))
