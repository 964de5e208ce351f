"""Print the table: the figures, the comparison, the aim, and whether the aim was met."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.events import DESCRIPTION

_HEAD = ("benchmark", "ours", "compared with", "ratio", "aim", "")
_NOTES = (
    "A ratio is the median of the ratios of all rounds. In a round, Oncegate and the competitor take turns.",
    "The absolute figures are medians. They depend on the machine, so compare the ratios.",
    "Figures in µs/event are the minimum over all batches, with the median in the name: noise only adds time.",
    DESCRIPTION,
)


@dataclass(frozen=True)
class Aim:
    """A bound on the ratio, or with on="ours" on our own figure."""

    kind: Literal["at least", "at most"]
    bound: float
    on: Literal["ratio", "ours"] = "ratio"


@dataclass(frozen=True)
class Row:
    name: str
    unit: str
    ours: float
    other: float
    other_name: str
    ratio: float
    aim: Aim | None = None

    @property
    def met(self) -> bool:
        if self.aim is None:
            return True
        figure = self.ratio if self.aim.on == "ratio" else self.ours
        return figure >= self.aim.bound if self.aim.kind == "at least" else figure <= self.aim.bound


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps([{**asdict(row), "met": row.met} for row in rows], indent=2)


def show(rows: Sequence[Row]) -> None:
    if sys.stdout.isatty():
        _show_rich(rows)
    else:
        print(_plain(rows))


def _show_rich(rows: Sequence[Row]) -> None:
    table = Table(*_HEAD)
    for column in (1, 2, 3):
        table.columns[column].justify = "right"
    for row in rows:
        table.add_row(*_cells(row), style=None if row.met else "yellow")
    console = Console()
    console.print(table)
    for note in _NOTES:
        console.print(note, style="dim", highlight=False)


def _plain(rows: Sequence[Row]) -> str:
    lines = [_HEAD, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*(line.rstrip() for line in table), "", *_NOTES])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        f"{_number(row.ours)} {row.unit}",
        f"{row.other_name} {_number(row.other)} {row.unit}",
        f"{row.ratio:.2f}",
        "" if row.aim is None else _aimed(row.aim, row.unit),
        "" if row.aim is None else "met" if row.met else "missed",
    )


def _aimed(aim: Aim, unit: str) -> str:
    sign = "≥" if aim.kind == "at least" else "≤"
    return f"{sign} {aim.bound:.2f}" if aim.on == "ratio" else f"{sign} {aim.bound:.0f} {unit}"


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"
