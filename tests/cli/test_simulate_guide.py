"""The guide to simulated traffic: its commands exist, its figures are correct, and it has all options."""

import re
import textwrap
from pathlib import Path

from oncegate.cli.main import cli
from tests import test_docs, test_guide
from tests.cli.conftest import Run
from tests.test_guide import DOCS

PAGE = DOCS / "guide" / "simulate.md"
TEXT = PAGE.read_text()


def test_commands_exist() -> None:
    """Every command in the guide exists, with its options."""
    typed = re.findall(r"^ {4}(oncegate [a-z].+?)(?: > .+)?$", TEXT, re.MULTILINE)
    assert len(typed) == 5
    for command in typed:
        test_docs.test_commands_exist(command)


def test_what_it_ends_with(oncegate: Run, tmp_path: Path) -> None:
    """The table in the guide is that of its seed."""
    shown = re.search(r"^( {4}kind +deliveries.+?with --seed (\d+)\.)", TEXT, re.DOTALL | re.MULTILINE)
    assert shown
    code, out, _ = oncegate("simulate", "--to", "file://traffic.jsonl", "--seed", shown[2])
    assert code == 0
    assert out.splitlines()[:-1] == textwrap.dedent(shown[1]).splitlines()[:-1]


def test_every_option_is_in_the_guide() -> None:
    """The guide has all options and no others."""
    options = {each for parameter in cli.commands["simulate"].params for each in parameter.opts}
    assert set(re.findall(r"--[a-z]+", TEXT)) == options - {"--output", "--config"} | {
        "--effects",
        "--handler",
        "--key",
        "--store",
    }


def test_defaults() -> None:
    """The defaults in the guide are those of the command."""
    rows = dict(re.findall(r"^\| `--([a-z]+) ([\d.]+)`", TEXT, re.MULTILINE))
    defaults = {each.name: str(each.default) for each in cli.commands["simulate"].params if each.name in rows}
    assert list(rows) == list(defaults) == ["copies", "reemit", "rewrap", "replay", "echo", "conflict", "invalid"]
    shown = list(rows.values())
    assert list(defaults.values()) == [*shown[:4], "0.0", "0.0", "0.0"]


def test_links_lead_somewhere() -> None:
    """The links of the guide have targets."""
    test_guide.test_links_lead_somewhere(PAGE)
