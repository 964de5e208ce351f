"""The documentation is true: its code runs, its commands exist, its links lead somewhere."""

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import msgspec
import pytest

from oncegate.cli import exit_codes
from oncegate.cli.main import cli
from oncegate.cli.serve import _WELCOME
from oncegate.settings import load
from oncegate.settings.parsing import _MAKERS, parsed, shown
from oncegate.settings.schema import SETTINGS, Setting

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
SETTINGS_PAGE = (ROOT / "docs" / "settings.md").read_text()


def commands() -> list[str]:
    """Every `oncegate …` line of the README and the page on settings that is shown to be typed."""
    text = README + SETTINGS_PAGE
    typed = re.findall(r"^ {4}(?:\.venv/bin/)?(oncegate .+)$", text, re.MULTILINE)
    return typed + re.findall(r"`(oncegate (?:serve|work|read|dlq|keys|config|infra|doctor) [^`]+)`", text)


def test_the_readme_runs(tmp_path: Path) -> None:
    """The README's Python, pasted from top to bottom, runs and catches the duplicate."""
    code = "\n".join(re.findall(r"```python\n(.+?)```", README, re.DOTALL))
    code += "\nassert outcome.status == 'processed'\n"
    code += "assert [each.status for each in outcomes] == ['duplicate', 'processed', 'duplicate']\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("processed {'case': 'case for evt-1'}")


@pytest.mark.parametrize("typed", commands())
def test_commands_exist(typed: str) -> None:
    """Every command shown, with its options, is one that there is."""
    command: click.Command = cli
    words = shlex.split(typed)[1:]
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_line_to_try_is_the_one_printed() -> None:
    """The README shows the very line that `make run` prints."""
    printed = _WELCOME.format(version="", url="http://127.0.0.1:8080", store="", done="", note="")
    (line,) = re.findall(r"curl .+", printed)
    assert line in README


def test_what_reading_ends_with() -> None:
    """What the README shows of `oncegate read` is what it prints."""
    shown = re.search(r"^ {4}oncegate (read .+)\n\nIt ends .+\n\n((?: {4}.+\n|\n)+)", README, re.MULTILINE)
    assert shown
    command = [sys.executable, "-m", "oncegate", *shlex.split(shown[1])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n\n" + textwrap.dedent(shown[2]).rstrip("\n") + "\n")


def test_exit_codes_are_listed() -> None:
    """Each exit code is in the README and in `oncegate --help`, with its meaning."""
    listed = re.search(r"Exit codes: (.+?)\.", README, re.DOTALL)
    assert listed
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert codes == set(exit_codes.MEANINGS)
    assert {int(code) for code in re.findall(r"\d+", listed[1].partition(" (")[0])} == codes
    for code, meaning in exit_codes.MEANINGS.items():
        assert f"{code} {meaning}" in " ".join(listed[1].split())
        assert f"{code} {meaning}" in " ".join((cli.epilog or "").split())


def row(setting: Setting) -> str:
    """A setting as its line in the table of settings."""
    default = msgspec.json.encode(shown(setting, setting.default)).decode()
    flags = [setting.flag, f"--no-{setting.flag[2:]}"] if setting.kind == "truth" else [setting.flag]
    named = ", ".join(f"`{flag}`" for flag in flags)
    return f"| `{setting.path}` | `{default}` | {setting.meaning} | `{setting.variable}` | {named} |"


def test_every_setting_is_listed() -> None:
    """The page on settings lists exactly those there are, each with its default, meaning and names."""
    listed = re.findall(r"^\| `.+ \|$", SETTINGS_PAGE, re.MULTILINE)
    assert listed == [row(setting) for setting in SETTINGS.values()]


def test_the_settings_shown_will_do(tmp_path: Path) -> None:
    """The examples of a settings file can be used as they stand."""
    examples = re.findall(r"```toml\n(.+?)```", SETTINGS_PAGE, re.DOTALL)
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(example)
        load(path, environ={}).hints()
    assert load(tmp_path / "0.toml", environ={})["serve.port"] == 8080


def test_the_strategies_shown_will_do() -> None:
    """Each strategy in the list of examples can be written so."""
    examples = re.findall(r"^- `(.+)`: ", SETTINGS_PAGE, re.MULTILINE)
    assert {written.partition("(")[0] for written in examples} == set(_MAKERS)
    assert all(callable(parsed(written)) for written in examples)


def test_make_targets_are_real() -> None:
    """Every `make …` in the pages is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets, page


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "examples").rglob("*.md"))], ids=lambda page: page.name)
def test_what_is_installed_is_the_folder(page: Path) -> None:
    """No page has pip look for the project on an index, where it is not."""
    assert not re.search(r"pip install [^`\n]*\boncegate\[", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the repository names one that is there."""
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert link.startswith("https://") or (page.parent / link).exists(), link


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    """Each example is a program that runs as it is."""
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_lock_names_no_host() -> None:
    """The lock has a hash for everything and no place to fetch it from."""
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    packages = re.findall(r"^[a-z0-9].*==", lock, re.MULTILINE)
    assert len(re.findall(r"^[a-z0-9].*\\$", lock, re.MULTILINE)) == len(packages)
