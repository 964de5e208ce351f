"""Print text, tables and JSON: with colour and fitted tables on a terminal, as plain lines in a pipe."""

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from textwrap import indent
from types import TracebackType
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oncegate.clocks import since_boot
from oncegate.gate.observers import escaped
from oncegate.text import clean
from oncegate.times import EPOCH

_WIDE = 150  # a terminal with at least this width shows all columns, with folded cells if needed
_GAP = 2
_NARROWEST = 8  # a column that would be narrower than this is left out
_LONGEST_LABEL = 40
_KEY = "key"
_PROGRESS_AFTER = 1_000_000  # microseconds
_PROGRESS_EVERY = 200_000
_STATES = {"P": "in progress", "R": "waiting", "C": "completed", "D": "dead letter"}
_COLOURS = {"in progress": "yellow", "waiting": "cyan", "completed": "green", "dead letter": "red"}


def state_name(state: str) -> str:
    return _STATES[state]


def readable_time(time_us: int | None, *, sep: str = " ", exact: bool = False) -> str | None:
    """A time of a store in UTC, to the millisecond. `exact`: to the microsecond if the time has microseconds."""
    if time_us is None:
        return None
    when = EPOCH + timedelta(microseconds=time_us)
    unit = "microseconds" if exact and time_us % 1_000 else "milliseconds"
    return when.isoformat(sep=sep, timespec=unit).replace("+00:00", "Z")


def rfc3339(time_us: int | None) -> str | None:
    """A time of a store for programs: RFC 3339, without loss of precision."""
    return readable_time(time_us, sep="T", exact=True)


# ── text and JSON ─────────────────────────────────────────────────────────────────────────────────────────


def print_text(text: str) -> None:
    print(clean(text))


def print_note(text: str) -> None:
    """Print to stderr, for people who redirect stdout to a program."""
    print(clean(text), file=sys.stderr)


def print_error(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble(("Error: ", "bold red"), clean(text)))


def show_json(value: Any) -> None:
    print(_json(value))


def show_json_stream(name: str, items: Iterable[Any], rest: Callable[[], dict[str, Any]]) -> None:
    """Print one JSON object. Its first member, `name`, is a list that need not fit into memory. The members that `rest`
    returns follow. `rest` is called after the last item."""
    print(f'{{\n  "{name}": [', end="")
    before = "\n"
    for item in items:
        print(f"{before}{indent(_json(item), '    ')}", end="")
        before = ",\n"
    print("\n  ]," if before == ",\n" else "],")
    print(_json(rest()).removeprefix("{\n"))


def _json(value: Any) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else escaped(c) for c in text)


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────


def show_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], essential: Sequence[str]) -> None:
    """Print a table. Long cells are folded, never cut.

    If the terminal is too narrow for all columns, only the essential columns are shown. If the terminal is too narrow
    for the essential columns, the last names in `essential` are left out first. A line below the table names the
    missing columns. In a pipe, all columns are printed.
    """
    texts = _texts(rows)
    if not sys.stdout.isatty():
        _print_plain(headers, texts)
        return
    console = Console(highlight=False)
    used = [index for index, header in enumerate(headers) if header in essential or any(row[index] for row in texts)]
    widths = {index: max(cell_len(row[index]) for row in [headers, *texts]) for index in used}
    unfolded = {index for index in used if headers[index] == _KEY or (index == 0 and widths[index] <= _LONGEST_LABEL)}
    shown = used
    if console.width < _WIDE and sum(widths.values()) + _GAP * (len(widths) - 1) > console.width:
        by_importance = sorted(
            (index for index in used if headers[index] in essential), key=lambda index: essential.index(headers[index])
        )
        shown = sorted(_fitting(by_importance, widths, unfolded, console.width))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index in shown:
        least = None if index in unfolded else min(widths[index], _NARROWEST)
        no_wrap = index in unfolded and widths[index] <= console.width  # rich would cut a longer cell
        table.add_column(headers[index], overflow="fold", no_wrap=no_wrap, min_width=least)
    for row in texts:
        table.add_row(*(Text(row[index]) for index in shown))
    console.print(table)
    missing = [headers[index] for index in used if index not in shown and any(row[index] for row in texts)]
    if missing:
        console.print(Text(f"Columns not shown: {', '.join(missing)}. Use a wider terminal or a pipe.", "dim"))


def _fitting(columns: list[int], widths: dict[int, int], unfolded: Collection[int], room: int) -> list[int]:
    """Remove foldable columns, the last of `columns` first, until no column has to be narrower than `_NARROWEST`.
    Returns the remaining columns. Rich reduces the widths of columns, but it never leaves out a column."""
    shown = list(columns)
    least = {index: widths[index] if index in unfolded else min(widths[index], _NARROWEST) for index in columns}
    while sum(least[index] + _GAP for index in shown) - _GAP > room:
        foldable = [index for index in shown if index not in unfolded]
        if not foldable:
            break
        shown.remove(foldable[-1])
    return shown


def show_plain_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table without folding it, even on a narrow terminal. The column with long cells must be the last
    column."""
    _print_plain(headers, _texts(rows))


def _texts(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [["" if cell is None else clean(cell) for cell in row] for row in rows]


def _print_plain(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns without trailing spaces. Rich would pad every line to the width of the table."""
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]
    for row in [headers, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show_facts(facts: dict[str, Any]) -> None:
    """Print one fact per line. Facts that are None are left out."""
    known = {name: clean(value) for name, value in facts.items() if value is not None}
    width = max(len(name) for name in known)
    console = Console(highlight=False, soft_wrap=True)
    for name, value in known.items():
        console.print(Text.assemble((name.ljust(width), "dim"), "  ", (value, _COLOURS.get(value, ""))))


class Progress:
    """A progress line on stderr, if stderr is a terminal and the work takes longer than a second."""

    def __init__(self, what: str = "") -> None:
        self._what = what
        self._next = since_boot() + _PROGRESS_AFTER
        self._is_shown = False

    def __enter__(self) -> "Progress":
        return self

    def update(self, count: int) -> None:
        self.show(f"{count:,} {self._what} read")

    def show(self, text: str) -> None:
        now = since_boot()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next, self._is_shown = now + _PROGRESS_EVERY, True
        print(f"\r\x1b[K{clean(text)}", end="", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the progress line, so that other text can be printed."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_shown = False
