"""The guide to switching: its commands print what it shows."""

import json
import re
import shlex
import textwrap
from pathlib import Path

import pytest

from oncegate.cli.main import cli
from oncegate.previous.base import EXPIRY_COLUMNS, OPTIONS, read_place_url
from tests.cli.conftest import Run
from tests.previous.old_places import DAY, OldDynamo, payload
from tests.stores.dynamo_server import DynamoServer
from tests.test_guide import DOCS

TEXT = (DOCS / "guide" / "switching.md").read_text()
TABLE = "GenesysEventDedup"
# Times and ages differ from run to run.
_TIME = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{3})?Z|\d+ m?s ago")


def sessions() -> list[tuple[str, str]]:
    """Each command of the guide, and the output below it."""
    found = re.findall(r"```console\n\$ (.+?[^\\])\n(.*?)```", TEXT, re.DOTALL)
    return [(command.replace("\\\n", " "), output) for command, output in found]


def without_times(text: str) -> str:
    return _TIME.sub("TIME", text)


def test_the_commands(
    oncegate: Run, dynamo_server: DynamoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command prints the output of the guide, one after the other, with a table of a thousand rows."""
    old = OldDynamo(dynamo_server, TABLE)
    old.mark(range(997), DAY)
    old.mark(range(5_000, 5_003), -DAY)
    recent = [*range(997), 996, 2_000, 2_001]
    (tmp_path / "recent.jsonl").write_text("\n".join(json.dumps(payload(number)) for number in recent))
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamo_server.endpoint)
    assert len(sessions()) == 6
    for command, output in sessions():
        words = shlex.split(command)
        is_cut = words[-4:] == ["|", "head", "-n", "1"]
        _, out, err = oncegate(*(words[1:-4] if is_cut else words[1:]))
        shown = err + (out.splitlines(keepends=True)[0] if is_cut else out)
        assert without_times(shown) == without_times(output), command


def test_the_commands_of_the_sources_exist() -> None:
    """Every command in the table of sources has arguments that exist."""
    commands = re.findall(r"\| `(oncegate seed [^`]+)`", TEXT)
    assert len(commands) == 5
    for command in commands:
        cli.commands["seed"].make_context("seed", [*shlex.split(command)[2:]], resilient_parsing=False)


def test_every_option_is_in_the_guide() -> None:
    """The guide names all options of the command that are its own, and all options of a URL."""
    own = {"--match", "--template", "--table", "--expires", "--map", "--source", "--lines", "--sample", "--dry-run"}
    assert own | {"--stopped"} <= set(re.findall(r"--[a-z-]+", TEXT))
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(OPTIONS)


def test_the_line_is_a_valid_url() -> None:
    """The lines of the guide are URLs of an old place. Only the line of `--stopped` has a time."""
    without, with_time = re.findall(r'^previous = "(.+)"$', TEXT, re.MULTILINE)
    assert read_place_url(without).until is None
    assert read_place_url(with_time).until is not None


def test_the_columns_of_the_expiry() -> None:
    """The guide names the usual columns of an expiry in the order in which they are tried."""
    found = re.search(r"in this order: (.+?)\.\n", TEXT, re.DOTALL)
    assert found
    assert tuple(re.findall(r"`(\w+)`", found[1])) == EXPIRY_COLUMNS


def test_the_output_is_readable() -> None:
    """No sentence of the guide is wider than the page, apart from tables and output."""
    prose = re.sub(r"```console.+?```", "", TEXT, flags=re.DOTALL)
    wide = [line for line in textwrap.dedent(prose).splitlines() if len(line) > 120 and not line.startswith("|")]
    assert wide == []
