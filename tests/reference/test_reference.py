"""The pages of docs/reference/ are complete, agree with the code, and their examples run."""

import builtins
import inspect
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from oncegate import Gate, errors, keys
from oncegate.gate import job, observers, outcome
from tests import test_guide
from tests.reference.command_line import commands_with_paths
from tests.reference.markdown import UNWRITTEN
from tests.reference.pages import BLOCKS, FOLDER, PAGES, blocks, render, unwritten
from tests.reference.python_names import CLASSES, STRATEGIES

REFERENCE = sorted(FOLDER.glob("*.md"))
HELPERS = {"make", "strategy", "content_hash"}  # functions of `keys` that are not strategies
_LONG = re.compile(r"--[a-z-]+")
GATE = (FOLDER / "gate.md").read_text()
TABLE = """\
<!-- generated: kinds -->
| kind | meaning |
|---|---|
| `replay` | sent again |
| `gone` | old |
<!-- end -->
"""


def named(page: Path) -> str:
    return page.name


# ── generated blocks ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_says_what_the_code_says(page: Path) -> None:
    """The generated blocks of each page are those that the program would write now."""
    assert page.read_text() == render(page.read_text()), "run make reference"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_cell_is_written(page: Path) -> None:
    """Each row that the program has added has a text in its last cell."""
    assert unwritten(page.read_text()) == [], f"write the last cells of these rows in {page.name}"


def test_the_check_finds_a_difference() -> None:
    """A block that differs from the code is rewritten: rows are added, removed and ordered; written cells stay."""
    rendered = render(TABLE)
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", rendered, re.MULTILINE)
    assert [kind for kind, _ in rows] == ["redelivery", "re-emission", "state-echo", "replay", "concurrent"]
    assert dict(rows)["replay"] == "sent again"
    assert unwritten(rendered) == ["`redelivery`", "`re-emission`", "`state-echo`", "`concurrent`"]
    assert UNWRITTEN in rendered
    assert render(rendered) == rendered


def test_a_block_without_an_end() -> None:
    """A block without an end is refused: the program would replace what stands after the block."""
    with pytest.raises(ValueError, match="needs a line <!-- end -->"):
        render(f"<!-- generated: codes -->\n\n# By hand\n\n{TABLE}")


def test_every_block_is_used() -> None:
    """Each block that the program can write is on a page."""
    assert {name for page in PAGES for name, _ in blocks(page.read_text())} == BLOCKS.keys()


# ── what must be on the pages ─────────────────────────────────────────────────────────────────────────────


def signatures(page: str) -> set[str]:
    return {argument for name, argument in blocks((FOLDER / page).read_text()) if name == "signature"}


def test_every_method_of_the_gate() -> None:
    """Each public method of Gate has a section with its signature, and each property has a row."""
    public = {name: member for name, member in vars(Gate).items() if not name.startswith("_")}
    properties = {name for name, member in public.items() if isinstance(member, property)}
    assert {f"gate.{name}" for name in public if name not in properties} <= signatures("gate.md")
    assert set(re.findall(r"^## gate\.(\w+)$", GATE, re.MULTILINE)) == public.keys() - properties
    assert set(re.findall(r"^\| `gate\.(\w+)` \|", GATE, re.MULTILINE)) == properties | {"store"}


def test_every_method_has_an_example_and_its_errors() -> None:
    """The Python of the page calls each method of Gate, and the section of the method says what it raises."""
    code = "".join(re.findall(r"```python\n(.+?)```", GATE, re.DOTALL))
    for name, section in re.findall(r"^## gate\.(\w+)\n(.+?)(?=^## )", GATE, re.MULTILINE | re.DOTALL):
        assert f".{name}(" in code, name
        assert re.search(r"[Rr]aises", section), name


def test_every_option_of_every_command() -> None:
    """The section of each command has the options that its help lists, alone or in a list that it links to."""
    page = (FOLDER / "cli.md").read_text()
    lists = dict(re.findall(r"^###? (Options .+?)\n(.+?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    everywhere = {"--help", *_options(lists["Options of every command"])}
    for path, command in commands_with_paths():
        section = page.partition(f"\n### {path}\n")[2].partition("\n###")[0].partition("\n## ")[0]
        linked = [text for title, text in lists.items() if f"[{title[0].lower()}{title[1:]}](" in section]
        listed = {option for text in (section, *linked) for option in _options(text)}
        context = click.Context(command, terminal_width=1_000, max_content_width=1_000)
        shown = re.findall(r"^  (-[^ ].*?)(?:  |$)", command.get_help(context), re.MULTILINE)
        assert {option for text in shown for option in _LONG.findall(text)} - everywhere == listed, path


def _options(text: str) -> set[str]:
    """The options in the first column of the tables of a text."""
    return {option for cell in re.findall(r"^\| `(--.+?)` \|", text, re.MULTILINE) for option in _LONG.findall(cell)}


def test_every_strategy() -> None:
    """Each public function of `keys` has its signature; each strategy has a section, an example and a row."""
    public = {
        name
        for name, member in vars(keys).items()
        if inspect.isfunction(member) and member.__module__ == keys.__name__ and not name.startswith("_")
    }
    assert signatures("keys.md") == {f"keys.{name}" for name in public}
    assert {written.partition("(")[0] for written in STRATEGIES if written.startswith("keys.")} == {
        f"keys.{name}" for name in public - HELPERS
    }
    page = (FOLDER / "keys.md").read_text()
    for name in public - HELPERS:
        section = page.partition(f"### keys.{name}\n")[2].partition("\n### ")[0]
        assert f"keys.{name}" in "".join(re.findall(r"```python\n(.+?)```", section, re.DOTALL)), name


def test_every_class() -> None:
    """The members of each public class are on a page."""
    listed = {argument for page in REFERENCE for name, argument in blocks(page.read_text()) if name == "members"}
    assert listed == CLASSES.keys()


@pytest.mark.parametrize("page", REFERENCE, ids=named)
def test_errors_exist(page: Path) -> None:
    """Each error that a page says a function raises exists."""
    raised = [
        name for text in re.findall(r"[Rr]aises? (.+?)\.\s", page.read_text(), re.DOTALL) for name in _errors(text)
    ]
    for name in raised:
        assert hasattr(errors, name) or hasattr(builtins, name), name
    assert raised or page.stem in ("cli", "outcome")


def _errors(text: str) -> list[str]:
    return [name for name in re.findall(r"`([A-Z]\w+)`", text) if name not in ("None", "False", "True")]


def test_quoted_bounds() -> None:
    """The bounds that the pages quote are those of the code."""
    assert job._RETRIED_FOR == 5 * 86_400_000_000
    assert (job._LONGEST_TEXT, observers._LONGEST_NAME) == (256, 256)
    assert (observers._MOST_QUEUED, observers._FLUSH_AT_EXIT) == (10_000, 2.0)
    assert (outcome._MOST_DIFFERENCES, errors._MAX_RETRY_AFTER) == (5, 604_800)


# ── examples and links ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", [page for page in REFERENCE if page.stem != "cli"], ids=named)
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    """The Python of a page, pasted from top to bottom into one program, runs without a warning."""
    code = "\n".join(re.findall(r"```python\n(.+?)```", page.read_text(), re.DOTALL))
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("page", REFERENCE, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """A link names an existing file and heading."""
    test_guide.test_links_lead_somewhere(page)
