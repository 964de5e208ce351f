"""The page on the setup of Genesys Cloud: every command in it runs, and so do the examples of the commands."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncegate.cli import exit_codes
from oncegate.cli.main import cli
from oncegate.genesys.permissions import NOT_IN_SDK, REQUIREMENTS
from oncegate.settings import load
from tests.cli.conftest import Run
from tests.cli.test_commands import walk
from tests.genesys.aws import with_sources
from tests.genesys.conftest import Genesys
from tests.genesys.server import SECRET, FakeGenesys
from tests.genesys.test_commands import Process, listen
from tests.stores.dynamo_server import CREDENTIALS, DynamoServer

__all__ = ["listen"]

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "genesys-setup.md").read_text()
COMMANDS = re.findall(r"^ {4}oncegate (.+)$", PAGE, re.MULTILINE)
EXAMPLES = {
    line.removeprefix("oncegate ")
    for path, command in walk(cli)
    if path[:1] == ("genesys",)
    for line in getattr(command, "examples", ())
}


@pytest.fixture
def place(
    fake: FakeGenesys, dynamo_server: DynamoServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[list[str]], list[str]]]:
    """Add the address of the AWS emulator to a command that needs AWS."""
    for name, value in {**CREDENTIALS, "AWS_REGION": "eu-central-1", "MESSAGES_SECRET": "m" * 20}.items():
        monkeypatch.setenv(name, value)
    with with_sources(fake, dynamo_server.port) as endpoint:
        yield lambda words: [*words, *(["--endpoint", endpoint] if "eventbridge" in words[:3] else [])]


def test_the_commands_of_the_page(
    genesys: Genesys,
    oncegate: Run,
    listen: Callable[..., Process],
    place: Callable[[list[str]], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commands succeed in the order of the page, with the settings file of the page."""
    (settings,) = re.findall(r"```toml\n(\[genesys\].+?)```", PAGE, re.DOTALL)
    (tmp_path / "oncegate.toml").write_text(settings)
    (tmp_path / "genesys.secret").write_text(SECRET)
    monkeypatch.delenv("ONCEGATE_GENESYS_CLIENT_SECRET")
    assert len(COMMANDS) > 9
    for line in COMMANDS:
        words = shlex.split(line)
        if words[:2] == ["genesys", "listen"]:
            assert listen(*words[2:], without=("ONCEGATE_GENESYS_CLIENT_SECRET",)).listens().end()[0] == 0
        else:
            code, _, err = oncegate(*place(words))
            assert (code, err) == (exit_codes.OK, ""), line
    (route,) = re.findall(r"```toml\n   (\[route.+?)```", PAGE, re.DOTALL)
    lines = [line.strip() for line in route.strip().splitlines()]
    assert "\n".join(lines) in (tmp_path / "oncegate.toml").read_text()
    assert "messages" in load(tmp_path / "oncegate.toml", environ={}).routes


def test_the_examples_of_the_commands(
    genesys: Genesys, listen: Callable[..., Process], place: Callable[[list[str]], list[str]]
) -> None:
    """The examples in the help succeed, also those that the page does not have."""
    others = sorted(EXAMPLES - set(COMMANDS))
    assert others
    for line in others:
        words = shlex.split(line)
        if words[1] == "listen":
            assert listen(*words[2:]).listens().end()[0] == 0, line
        else:
            assert genesys(*place(words)[1:])[0] == exit_codes.OK, line


def test_the_permissions_of_the_page() -> None:
    """The page lists the permissions that `check` checks, and the names that the SDK does not have."""
    section = PAGE.partition("| use | permissions")[2].partition("\n\n")[0]
    listed = set(re.findall(r"`(\w+:\w+:\w+)`", section))
    assert listed == {each.permission for each in REQUIREMENTS} | {"authorization:grant:view"}
    assert all(f"`{name}`" in PAGE for name in NOT_IN_SDK)
