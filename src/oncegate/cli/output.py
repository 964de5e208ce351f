"""Print text, tables and JSON: with colour and fitted tables on a terminal, as plain lines in a pipe."""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from textwrap import indent, wrap
from types import TracebackType
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oncegate.clocks import since_boot
from oncegate.gate.observers import escaped
from oncegate.service.log import console_for
from oncegate.text import clean, on_one_line

_WIDE = 150  # a terminal with at least this width shows all columns if they fit when cells are folded
_GAP = 2
_MOST_INDENT = 4
_NARROWEST = 8  # a column that would be narrower than this is left out
_LONGEST_LABEL = 40
_LONGEST_WORD = 16
_LONGEST_ID = 40  # a word that is not longer, such as a UUID, is folded only if no column can be left out
_KEPT = 3  # essential columns that are folded before they are left out
_PIECES = re.compile(r"[^,.-]*[,.-]|[^,.-]+")  # a long id or type is folded after these characters
_KEY = "key"
_TYPE = "type"
_REASON = "reason"
_LEAST_REASON = 24  # a sentence in a narrower column has too many lines
_JSON_STARTS = ("{", "[")
_PROGRESS_AFTER = 1_000_000  # microseconds
_PROGRESS_EVERY = 200_000
_COLOURS = {"in progress": "yellow", "waiting": "cyan", "completed": "green", "dead letter": "red"}


# ── text and JSON ─────────────────────────────────────────────────────────────────────────────────────────


def print_text(text: str) -> None:
    """Print a line. On a terminal, a line that does not fit is folded between words."""
    print("\n".join(_lines(on_one_line(text))))


def print_copyable(text: str) -> None:
    """Print a line that is not folded, because it is copied, such as a line of the settings file."""
    print(on_one_line(text))


def print_indented(text: str, indent: int) -> None:
    """Print a line with an indent. On a terminal, the indent is at most 4, and a line that does not fit is folded."""
    first = " " * (min(indent, _MOST_INDENT) if sys.stdout.isatty() else indent)
    before = first
    for line in _lines(on_one_line(text), len(first) + 2):
        print(f"{before}{line}")
        before = f"{first}  "


def _lines(line: str, indent: int = 0) -> list[str]:
    """The line, folded between words so that it fits into a terminal with this indent. Words are not folded, because
    they may be copied."""
    if not sys.stdout.isatty():
        return [line]
    room = max(console_for().width - indent, _NARROWEST)
    return wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""]


def print_note(text: str) -> None:
    """Print to stderr, for people who redirect stdout to a program."""
    print(on_one_line(text), file=sys.stderr)


def print_error(text: str) -> None:
    console_for(stderr=True).print(Text.assemble(("Error: ", "bold red"), on_one_line(text)))


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


def show_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Any]],
    essential: Sequence[str],
    *,
    required: Collection[str] = (),
) -> None:
    """Print a table. Long cells are folded, never cut.

    If the terminal is too narrow for all columns, only the essential columns are shown. `essential` lists the most
    important column first. Essential columns after the third are left out if an id would have to be folded otherwise.
    If the terminal is still too narrow, ids are folded, and then the last of these columns are left out. If a required
    column would be left out, each row is printed with one essential column per line instead. A line below the table
    names the missing columns. A column without any text is shown only if it is required. In a pipe, all columns are
    printed.
    """
    texts = _texts(rows)
    if not sys.stdout.isatty():
        _print_plain(headers, texts)
        return
    console = console_for(soft_wrap=False)
    columns = [
        _Column(header, [row[index] for row in texts], is_first=not index, is_required=header in required)
        for index, header in enumerate(headers)
    ]
    used = [column for column in columns if any(column.cells) or column.is_required or not rows]
    wanted = shown = used
    room = _total(column.least if console.width >= _WIDE else column.width for column in used)
    if room > console.width:
        wanted = [column for column in used if column.header in essential]
        shown = _fitting(wanted, essential, console.width)
    if any(column.is_required and column not in shown for column in used):
        shown = wanted
        _print_rows(shown)
    else:
        _print_table(console, shown)
    missing = [column.header for column in used if column not in shown]
    if missing:
        console.print(Text(f"Columns not shown: {', '.join(missing)}. Use a wider terminal or a pipe.", "dim"))


class _Column:
    """A column, its width, the least width at which no id is folded (`whole`), and the least width to which its cells
    may be folded (`least`). Keys and short labels are not folded. Types are folded at dots. A required column is not
    folded within a word, unless the word is long. A reason is a sentence, so it gets more room than an id."""

    def __init__(self, header: str, cells: list[str], *, is_first: bool, is_required: bool) -> None:
        self.header, self.cells, self.is_required = header, cells, is_required
        self.width = max(map(cell_len, [header, *cells]))
        self.is_folded = header != _KEY and not (is_first and self.width <= _LONGEST_LABEL)
        self.least = min(self.width, _NARROWEST) if self.is_folded else self.width
        words = [word for cell in cells for word in cell.split()]
        if is_required:
            self.least = max(self.least, min(max(map(cell_len, words), default=0), _LONGEST_WORD))
        if header == _TYPE:
            words = [piece for word in words for piece in _PIECES.findall(word)]
        if header == _REASON:
            self.least = max(self.least, min(self.width, _LEAST_REASON))
        self.whole = max(self.least, *(size for word in words if (size := cell_len(word)) <= _LONGEST_ID), 0)


def _fitting(columns: list[_Column], essential: Sequence[str], room: int) -> list[_Column]:
    """The columns that fit into the room. Rich reduces the widths of columns, but it never leaves out a column.

    If the most important columns fit without folding an id, the others are added in their order if they fit, too.
    Otherwise foldable columns are removed, the least important column first, until no column has to be narrower than
    its least width."""
    ranked = sorted(columns, key=lambda each: essential.index(each.header))
    shown = [each for each in ranked if not each.is_folded or each.is_required or each in ranked[:_KEPT]]
    if _total(each.whole for each in shown) <= room:
        for column in ranked:
            if column not in shown and _total(each.whole for each in (*shown, column)) <= room:
                shown.append(column)
    while _total(each.least for each in shown) > room and any(each.is_folded for each in shown):
        shown.remove(next(each for each in reversed(shown) if each.is_folded))
    return [each for each in columns if each in shown]


def _total(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP


def _print_table(console: Console, columns: list[_Column]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    widths = _widths(columns, console.width)
    for column, width in zip(columns, widths, strict=True):
        no_wrap = not column.is_folded and column.width <= console.width  # rich would cut a longer cell
        table.add_column(column.header, overflow="fold", no_wrap=no_wrap, width=width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(_fold(cell, width)) for cell, width in zip(cells, widths, strict=True)))
    console.print(table)


def _fold(cell: str, width: int | None) -> str:
    """The cell with line breaks within words that are longer than the width: after commas, dots and hyphens, if
    possible. Rich makes the other line breaks."""
    if width is None or cell_len(cell) <= width:
        return cell
    return " ".join(_fold_word(word, width) if cell_len(word) > width else word for word in cell.split(" "))


def _fold_word(word: str, width: int) -> str:
    lines = [""]
    for piece in _PIECES.findall(word):
        if lines[-1] and cell_len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _widths(columns: list[_Column], room: int) -> list[int | None]:
    """The width of each column: its least width, and a share of the remaining room if the column needs more. If there
    is room, the least width is the width at which no id is folded. All are None if the least widths do not fit; rich
    then chooses the widths. Rich also reduces a column below its minimum width, and then cuts its cells, so the widths
    are not left to rich."""
    least = [column.whole for column in columns]
    if _total(least) > room:
        least = [column.least for column in columns]
    left = room - _total(least)
    if left < 0:
        return [None] * len(columns)
    widths: dict[int, int | None] = {}
    by_need = sorted(range(len(columns)), key=lambda index: columns[index].width - least[index])
    for position, index in enumerate(by_need):
        more = min(columns[index].width - least[index], left // (len(columns) - position))
        widths[index] = least[index] + more
        left -= more
    return [widths[index] for index in range(len(columns))]


def _print_rows(columns: list[_Column]) -> None:
    """Print each row with one cell per line. Empty cells are left out."""
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if number:
            print()
        show_facts({column.header: cell for column, cell in zip(columns, cells, strict=True) if cell})


def show_plain_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table without folding it, even on a narrow terminal. The column with long cells must be the last
    column."""
    _print_plain(headers, _texts(rows))


def _texts(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [["" if cell is None else on_one_line(cell) for cell in row] for row in rows]


def _print_plain(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns without trailing spaces. Rich would pad every line to the width of the table."""
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]
    for row in [headers, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show_facts(facts: dict[str, Any]) -> None:
    """Print one fact per line. Facts that are None are left out. If a value has several lines, the lines after the
    first are indented. On a terminal, a long text is folded between words. JSON is not folded, because it may be
    copied."""
    width = max(len(name) for name, value in facts.items() if value is not None)
    known = {name: list(_fact_lines(str(value), width + 2)) for name, value in facts.items() if value is not None}
    console = console_for()
    for name, (first, *others) in known.items():
        console.print(Text.assemble((name.ljust(width), "dim"), "  ", (clean(first), _COLOURS.get(first, ""))))
        for line in others:
            console.print(Text(f"{' ' * (width + 2)}{clean(line)}"))


def _fact_lines(value: str, indent: int) -> Iterator[str]:
    for line in value.splitlines() or [""]:
        yield from [line] if line.startswith(_JSON_STARTS) else _lines(line, indent)


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
        print(f"\r\x1b[K{on_one_line(text)}", end="", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the progress line, so that other text can be printed."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._is_shown = False
