"""Write Markdown: tables, wrapped text, and the cells that are written by hand."""

import re
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Final

UNWRITTEN: Final = "(not written yet)"
WIDTH: Final = 120
_CELLS: Final = re.compile(r"(?<!\\)\|")


class Rows:
    """The rows of a table as it is on the page now: the last cell by the first cell."""

    def __init__(self, text: str) -> None:
        lines = [line for line in text.splitlines() if line.startswith("| ")]
        cells = [[cell.strip() for cell in _CELLS.split(line)[1:-1]] for line in lines]
        self._last = {row[0]: row[-1] for row in cells}

    def text_of(self, first: str, otherwise: str = UNWRITTEN) -> str:
        """The text that somebody has written for this row."""
        found = self._last.get(first, UNWRITTEN)
        return otherwise if found == UNWRITTEN else found


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (headers, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(headers)}", *lines[1:]])


def code(text: str) -> str:
    """Text in the font of code, for a cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def wrapped(text: str, indent: str = "") -> str:
    """A paragraph on lines of at most WIDTH characters."""
    return fill(" ".join(text.split()), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
