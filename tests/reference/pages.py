"""The pages with generated blocks, and the functions that write the blocks."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.reference import command_line, monitoring, python_names
from tests.reference.markdown import UNWRITTEN, Rows

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "reference"
PAGES: Final = (*sorted(FOLDER.glob("*.md")), ROOT / "README.md")
_BLOCK: Final = re.compile(r"(<!-- generated: (\w+)(?: ([^\n]+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
# The README must stay short, so its table of statuses has no lines around it. It is found by its header.
_SUMMARY: Final = re.compile(r"^\| status \| meaning \|.*\n(?:\|.*\n)+", re.MULTILINE)


BLOCKS: Final[dict[str, Callable[[str, Rows], str]]] = {
    "causes": python_names.causes,
    "choices": python_names.choices,
    "codes": command_line.codes,
    "command_index": command_line.command_index,
    "commands": command_line.commands,
    "error_list": python_names.error_list,
    "error_tree": python_names.error_tree,
    "global_options": command_line.global_options,
    "interface": python_names.interface,
    "kinds": python_names.kinds,
    "log_fields": monitoring.log_fields,
    "members": python_names.members,
    "metrics": monitoring.metrics,
    "names": python_names.names,
    "notices": monitoring.notices,
    "options": python_names.options,
    "shared_options": command_line.shared_options,
    "signature": python_names.signature,
    "status_counters": python_names.status_counters,
    "statuses": python_names.statuses,
    "strategies": python_names.strategies,
}


def render(text: str) -> str:
    """The text of a page, with the blocks that the code gives now. Raises ValueError if a block has no end, because the
    text up to the end of the next block would be replaced."""
    if text.count("<!-- generated: ") != text.count("<!-- end -->"):
        raise ValueError("each line <!-- generated: … --> needs a line <!-- end -->")
    return _SUMMARY.sub(lambda _: f"{_status_summary()}\n", _BLOCK.sub(_rendered, text))


def _rendered(block: re.Match[str]) -> str:
    begin, name, argument, current, end = block.groups()
    return f"{begin}{BLOCKS[name](argument or '', Rows(current))}\n{end}"


def blocks(text: str) -> list[tuple[str, str]]:
    """The name and the argument of each block of a page."""
    return [(block[2], block[3] or "") for block in _BLOCK.finditer(text)]


def unwritten(text: str) -> list[str]:
    """The first cell of each row whose last cell a person has to write."""
    return re.findall(rf"^\| (.+?) \|.*{re.escape(UNWRITTEN)} \|$", text, re.MULTILINE)


def _status_summary() -> str:
    """The statuses for the README, with the meanings that are written in docs/reference/outcome.md."""
    found = _BLOCK.finditer((FOLDER / "outcome.md").read_text())
    return python_names.status_summary(Rows(next(block[4] for block in found if block[2] == "statuses")))
