"""What people and pipes see: colour and tables on a terminal, plain lines and JSON elsewhere."""

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from textwrap import indent
from types import TracebackType
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oncegate.clocks import since_boot
from oncegate.gate.observers import escaped
from oncegate.text import clean
from oncegate.times import EPOCH

_WIDE = 150
_BETWEEN = 2
_SLIM = 8
_BRIEF = 40
_KEY = "key"
_PATIENCE = 1_000_000  # in microseconds: what takes no longer needs no progress
_PACE = 200_000
_STATES = {"P": "in progress", "R": "waiting", "C": "completed", "D": "dead letter"}
_COLOURS = {"in progress": "yellow", "waiting": "cyan", "completed": "green", "dead letter": "red"}


def state_name(state: str) -> str:
    return _STATES[state]


def moment(time_us: int | None, *, sep: str = " ", exact: bool = False) -> str | None:
    """A store's time for a person: UTC, to the millisecond; to the microsecond if it is to be exact and has any."""
    if time_us is None:
        return None
    when = EPOCH + timedelta(microseconds=time_us)
    unit = "microseconds" if exact and time_us % 1_000 else "milliseconds"
    return when.isoformat(sep=sep, timespec=unit).replace("+00:00", "Z")


def stamp(time_us: int | None) -> str | None:
    """The same for a program: as RFC 3339 has it, and no less than is known."""
    return moment(time_us, sep="T", exact=True)


def say(text: str) -> None:
    print(clean(text))


def say_aside(text: str) -> None:
    """To people, while what is printed goes to a program."""
    print(clean(text), file=sys.stderr)


def say_error(text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble(("Error: ", "bold red"), clean(text)))


def show_json(value: Any) -> None:
    print(_json(value))


def show_json_stream(name: str, items: Iterable[Any], rest: Callable[[], dict[str, Any]]) -> None:
    """One object: a member with a list that may be longer than memory, and what is known when that is at its end."""
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


def show_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], essential: Collection[str]) -> None:
    """A table; on a terminal too narrow for all of it, as many of its essential columns as there is room for, and a
    line that names the others. No cell is cut: what has no room in its line goes on in the next."""
    texts = [["" if cell is None else clean(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _plain_table(headers, texts)
        return
    told = {
        index: max(len(row[index]) for row in [headers, *texts])
        for index, header in enumerate(headers)
        if any(row[index] for row in texts) or header in essential
    }
    console = Console(highlight=False)
    fitted = _chosen(console.width, headers, told, essential)
    console.print(_table([(headers[index], width) for index, width in fitted.items()], texts, fitted))
    left_out = [headers[index] for index in told if index not in fitted and any(row[index] for row in texts)]
    if left_out:
        console.print(Text(f"No room here for: {', '.join(left_out)}. A wider terminal or a pipe shows all.", "dim"))


def _table(columns: Iterable[tuple[str, int]], texts: Sequence[Sequence[str]], shown: Iterable[int]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for header, width in columns:
        table.add_column(header, overflow="fold", width=width)
    for row in texts:
        table.add_row(*(Text(row[index]) for index in shown))
    return table


def _chosen(room: int, headers: Sequence[str], told: dict[int, int], essential: Collection[str]) -> dict[int, int]:
    """Which columns are shown, and how wide. Keys are one word, and so is mostly what comes first."""
    whole = {index for index, width in told.items() if headers[index] == _KEY or (index == 0 and width <= _BRIEF)}
    if room < _WIDE and sum(told.values()) + _BETWEEN * (len(told) - 1) > room:
        told = {index: width for index, width in told.items() if headers[index] in essential}
        whole &= told.keys()
    return _fitted(room, told, whole)


def show_whole(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table of which nothing is left out or cut, however narrow the terminal: its last column is what may be long."""
    _plain_table(headers, [["" if cell is None else clean(cell) for cell in row] for row in rows])


def _fitted(room: int, wanted: dict[int, int], whole: Collection[int]) -> dict[int, int]:
    """Widths for columns: some as they are; the others share the rest evenly, and none takes more than it needs. The
    last of these are left out if they would get next to nothing."""
    others = [column for column in wanted if column not in whole]
    left = room - sum(wanted[column] + _BETWEEN for column in whole) + _BETWEEN
    while others and left < sum(min(wanted[column], _SLIM) + _BETWEEN for column in others):
        others.pop()
    left -= _BETWEEN * len(others)
    fitted = {column: wanted[column] for column in whole}
    for done, column in enumerate(sorted(others, key=wanted.__getitem__)):
        fitted[column] = min(wanted[column], max(left // (len(others) - done), _SLIM))
        left -= fitted[column]
    return dict(sorted(fitted.items()))


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


class Progress:
    """A line on stderr that tells how far something is, if that is a terminal and it takes long."""

    def __init__(self, what: str = "") -> None:
        self._what = what
        self._next = since_boot() + _PATIENCE
        self._told = False

    def __enter__(self) -> "Progress":
        return self

    def at(self, count: int) -> None:
        self.tell(f"{count:,} {self._what} read")

    def tell(self, text: str) -> None:
        now = since_boot()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next, self._told = now + _PACE, True
        print(f"\r\x1b[K{clean(text)}", end="", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hide()

    def hide(self) -> None:
        """Make room for a line that stays."""
        if self._told:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._told = False
