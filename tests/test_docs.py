"""Check the documentation: its code runs, its commands exist, its links resolve, its quotations are what is printed."""

import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

import click
import msgspec
import pytest

from oncegate import Event, Gate, Outcome, read
from oncegate.cli import exit_codes
from oncegate.cli.main import cli
from oncegate.cli.serve import welcome
from oncegate.console.tokens import Login
from oncegate.gate.outcome import Status
from oncegate.ingress.http_answers import answer_of
from oncegate.settings import load
from oncegate.settings.parsing import _MAKERS, parsed, shown
from oncegate.settings.schema import SETTINGS, Setting
from tests.cli.conftest import Run, oncegate
from tests.service.running import Service, until

__all__ = ["oncegate"]

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = ("library", "tutorial", "command-line")  # the pages of docs/ whose links to headings are checked here
README = (ROOT / "README.md").read_text()
SETTINGS_PAGE = (ROOT / "docs" / "settings.md").read_text()
LIBRARY = (ROOT / "docs" / "library.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text()
EXACTLY_ONCE = (ROOT / "docs" / "guide" / "exactly-once.md").read_text()
REFERENCE = ROOT / "docs" / "reference"


def commands() -> list[str]:
    """Every `oncegate …` line that a reader of these pages is asked to type."""
    text = README + SETTINGS_PAGE + LIBRARY + TUTORIAL + COMMAND_LINE + EXACTLY_ONCE
    typed = re.findall(r"^ {4}(?:\.venv/bin/)?(oncegate .+)$", text, re.MULTILINE)
    return typed + re.findall(r"`(oncegate (?:serve|work|read|dlq|keys|config|infra|doctor) [^`]+)`", text)


def _python(page: str, tmp_path: Path, checks: str = "") -> str:
    """What the Python of a page prints, pasted into one program from top to bottom."""
    code = "\n".join(re.findall(r"```python\n(.+?)```", page, re.DOTALL)) + checks
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_runs(tmp_path: Path) -> None:
    """The README's program prints what the README says, and finds a duplicate when it runs again."""
    (shown,) = re.findall(r"`.venv/bin/python case.py` prints\s`(.+?)`", README)
    assert _python(README, tmp_path) == f"{shown}\n"
    assert _python(README, tmp_path).startswith("duplicate {'case': 'case for evt-1'}")
    assert len(README.splitlines()) <= 150


def test_the_library_page_runs(tmp_path: Path) -> None:
    """The Python of the library page, pasted from top to bottom, runs and catches the duplicate."""
    checks = "\nassert outcome.status == 'processed'\n"
    checks += "assert [each.status for each in outcomes] == ['duplicate', 'processed', 'duplicate']\n"
    printed = _python(LIBRARY, tmp_path, checks)
    assert printed.startswith("processed {'case': 'case for evt-1'}")
    assert f"`{printed.splitlines()[0]}`" in LIBRARY


def test_the_tutorial_program_runs(tmp_path: Path) -> None:
    """The last program of the tutorial prints the lines below it."""
    *_, program = re.findall(r"```python\n.+?```", TUTORIAL, re.DOTALL)
    shown = re.search(r"although their bytes differ:\n\n((?: {4}.+\n)+)", TUTORIAL)
    assert shown
    assert _python(program, tmp_path) == textwrap.dedent(shown[1])


def _any_time(text: str) -> str:
    """The text without ages and times, which differ from run to run."""
    text = re.sub(r"\d+ (?:µs|ms|s|m|h|d) ago", "… ago", text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", "…", text)


def test_the_answers_shown_are_given(tmp_path: Path, oncegate: Run) -> None:
    """The JSON answers and the explanations in the README and the tutorial are those of the program."""
    ended, started = ({"id": "evt-1", "type": kind} for kind in ("call.ended", "call.started"))
    with Service(tmp_path) as service:
        answers = [service.post(ended).text]
        until(lambda: '"processed"' in (tmp_path / "log").read_text())
        answers += [service.post(payload).text for payload in (ended, started)]
    given = [_any_time(answer) for answer in answers]
    assert [_any_time(line) for line in re.findall(r"^ {4}(\{\"status.+)$", TUTORIAL, re.MULTILINE)] == given
    assert [_any_time(line) for line in re.findall(r"^ {4}(\{\"status.+)$", README, re.MULTILINE)] == [given[1]]
    (dropped,) = re.findall(r"oncegate dlq drop --yes ([0-9a-f]{32})", TUTORIAL)
    assert oncegate("dlq", "drop", "--yes", dropped)[0] == 0
    explained = _any_time(oncegate("explain", "evt-1")[1].splitlines()[0])
    for page in (README, TUTORIAL):
        assert [_any_time(line) for line in re.findall(r"^ {4}(Run: .+)$", page, re.MULTILINE)] == [explained]


def test_the_dead_letter_of_the_tutorial(tmp_path: Path, oncegate: Run) -> None:
    """Its handler buries the event that it shows, under the key that it redrives, and the corrected handler runs it."""
    broken, corrected = re.findall(r"```python\n(.+?)```", TUTORIAL, re.DOTALL)[:2]
    (key,) = re.findall(r"oncegate dlq redrive ([0-9a-f]{32})", TUTORIAL)

    def handler(source: str) -> Callable[[Event], object]:
        (tmp_path / "app.py").write_text(source)
        return cast("Callable[[Event], object]", runpy.run_path(str(tmp_path / "app.py"))["open_case"])

    gate = Gate(f"sqlite:///{tmp_path}/oncegate.db", max_attempts=2)
    statuses = [gate.run({"id": "call-8", "type": "call.ended"}, handler(broken)).status for _ in range(2)]
    assert statuses == ["failed", "buried"]
    assert f"    {oncegate('explain', 'call-8')[1].splitlines()[0]}\n" in TUTORIAL
    count, redriven = oncegate("dlq", "redrive", key)[1].splitlines()
    assert f"prints `{count}` and `{redriven}`" in TUTORIAL
    assert [outcome.status for outcome in gate.run_waiting(handler(corrected))] == ["processed"]
    gate.close()
    assert f"    {oncegate('dlq', 'list')[1]}" in TUTORIAL


def test_the_status_tables() -> None:
    """Each status is in both tables; acknowledgement and HTTP code are those of the program."""
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (yes|no) \| (\d+) \|$", README, re.MULTILINE)
    assert {status for status, _, _ in rows} == set(get_args(Status))
    (event,) = read({"id": 1})
    for status, acknowledged, code in rows:
        outcome = Outcome(cast("Status", status), event)
        assert outcome.acked == (acknowledged == "yes")
        assert answer_of([outcome]).code == int(code)
    listed = re.findall(
        r"^\| `(\w+)` \| (yes|no) \| (\d+) \| .+ \|$", (REFERENCE / "outcome.md").read_text(), re.MULTILINE
    )
    assert listed == rows


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
    """The README shows the line that `make run` prints, and the tutorial shows all that it prints."""
    url, store = "http://127.0.0.1:8080", "sqlite:///oncegate.db"
    settings = load(environ={}, flags={"store": store, "serve.handler": "log"})
    (token,) = re.findall(r"^ {6}([\w-]{43})$", TUTORIAL, re.MULTILINE)
    login = Login((token,), generated=token, file="oncegate.console-token")
    printed = "\n".join(welcome(settings, url, login=login))
    (line,) = re.findall(r"curl .+", printed)
    assert line in README
    assert textwrap.indent(printed, "    ") in TUTORIAL


def test_what_reading_ends_with() -> None:
    """What the library page shows of `oncegate read` is what it prints."""
    shown = re.search(r"^ {4}oncegate (read .+)\n\nThe output ends .+\n\n((?: {4}.+\n|\n)+)", LIBRARY, re.MULTILINE)
    assert shown
    command = [sys.executable, "-m", "oncegate", *shlex.split(shown[1])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n\n" + textwrap.dedent(shown[2]).rstrip("\n") + "\n")


def test_exit_codes_are_listed() -> None:
    """The reference of the command line and `oncegate --help` list each exit code with its meaning, and no other."""
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    listed = re.findall(r"^\| (\d+) \| (.+) \|$", (REFERENCE / "cli.md").read_text(), re.MULTILINE)
    assert {int(code) for code, _ in listed} == codes == set(exit_codes.MEANINGS)
    for code, meaning in listed:
        assert meaning.replace("`", "").startswith(exit_codes.MEANINGS[int(code)])
    shown = re.findall(r"^  (\d+) +(.+)$", cli.get_help(click.Context(cli)), re.MULTILINE)
    assert {int(code): meaning for code, meaning in shown} == exit_codes.MEANINGS


def test_every_command_is_listed() -> None:
    """The page on the command line lists each command, and no other."""
    table = COMMAND_LINE.partition("## ")[0]
    rows = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(cli.commands)


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


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name in (ROOT.name, "guide") or page.stem in LINKED],
    ids=lambda page: page.name,
)
def test_links_name_headings(page: Path) -> None:
    """A link to a part of a page names a heading of that page."""
    for name, heading in re.findall(r"\]\((?!https:)([^)#]*)#([^)]+)\)", page.read_text()):
        headings = re.findall(r"^#+ (.+)$", (page.parent / name if name else page).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^a-z0-9_ -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert heading in anchors, f"{name}#{heading}"


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
