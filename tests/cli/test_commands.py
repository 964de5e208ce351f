"""Every command of the group: its help, its examples, `--config`, and completion in a shell."""

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import click
import pytest

from oncegate import Gate
from oncegate.cli import exit_codes
from oncegate.cli.commands import EXAMPLE_KEY, SECTIONS, CliCommand, CliGroup, section_of
from oncegate.cli.main import cli, run
from oncegate.settings.schema import SETTINGS
from tests.cli.conftest import RecordedGate, Run

Path_ = tuple[str, ...]
PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def walk(command: click.Command = cli, path: Path_ = ()) -> Iterator[tuple[Path_, click.Command]]:
    """Each command and subcommand, with the words of its command line."""
    yield path, command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from walk(each, (*path, name))


COMMANDS = dict(walk())
every_command = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


def helped(path: Path_, columns: int, monkeypatch: pytest.MonkeyPatch, oncegate: Run) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = oncegate(*path, "--help")
    assert (code, err) == (exit_codes.OK, "")
    return out


class TestHelp:
    @every_command
    def test_the_class(self, path: Path_) -> None:
        """Every command is a CliCommand or CliGroup (`cls=CliCommand`), which adds --config, headings and examples."""
        assert isinstance(COMMANDS[path], CliGroup | CliCommand), f"give {' '.join(path)} cls=CliCommand"

    @every_command
    @pytest.mark.parametrize("columns", [80, 50])
    def test_the_width(self, path: Path_, columns: int, monkeypatch: pytest.MonkeyPatch, oncegate: Run) -> None:
        """The help fits the terminal and cuts no text. Only a long name of an option may be wider."""
        for line in helped(path, columns, monkeypatch, oncegate).splitlines():
            assert len(line) <= columns or line.lstrip().startswith("-"), line
            assert "\\n" not in line
            assert not line.endswith(("...", "…")) or line.lstrip().startswith(("-", "Usage:")), line

    @every_command
    def test_config_is_shown(self, path: Path_, monkeypatch: pytest.MonkeyPatch, oncegate: Run) -> None:
        """The help of every command shows --config and examples."""
        out = helped(path, 80, monkeypatch, oncegate)
        assert re.search(r"^General:$(?:\n.+)*\n  --config FILE +The settings file\.", out, re.MULTILINE)
        assert "\nExamples:\n  " in out

    @every_command
    def test_lists_of_commands(self, path: Path_, monkeypatch: pytest.MonkeyPatch, oncegate: Run) -> None:
        """A list of commands has a whole sentence for each command."""
        command = COMMANDS[path]
        if not isinstance(command, click.Group):
            return
        out = " ".join(helped(path, 50, monkeypatch, oncegate).split())
        for name, each in command.commands.items():
            assert each.short_help is not None
            assert each.short_help.endswith(".")
            assert f" {name} {each.short_help}" in out

    def test_headings(self) -> None:
        """Each setting is below one heading, and no heading lists a name twice."""
        options = [setting for setting in SETTINGS.values() if setting.flag.startswith("--")]
        settings = [click.Option([f"--{setting.parameter}"]) for setting in options]
        assert [option.name for option in settings if section_of(option) == "Options"] == []
        names = [name for listed in SECTIONS.values() for name in listed]
        assert len(names) == len(set(names))
        assert section_of(click.Option(["--new-option"])) == "Options"

    def test_files(self, monkeypatch: pytest.MonkeyPatch, oncegate: Run) -> None:
        """An option whose text names a file has the placeholder FILE."""
        for path, command in COMMANDS.items():
            out = helped(path, 80, monkeypatch, oncegate)
            for option in command.params:
                written = getattr(option, "help", None) or ""
                if re.match(r"(A|The) files? ", written):
                    assert re.search(rf"{option.opts[0]} \S*FILE", out), option.opts

    def test_order_of_headings(self, monkeypatch: pytest.MonkeyPatch, oncegate: Run) -> None:
        """The options of serve are below headings; --help is below the last heading."""
        out = helped(("serve",), 80, monkeypatch, oncegate)
        headings = re.findall(r"^(\w[\w ]+):$", out, re.MULTILINE)
        assert headings == [
            *("Address", "Console", "Handler", "Store", "Key", "Signature", "Claims", "Retries", "Limits", "Forward"),
            *("Fields of plain events", "Monitoring", "Journal", "General", "Examples"),
        ]
        assert re.search(r"General:\n  --config[^-]+\n  -h, --help +Show this message and exit\.\n\nExamples:", out)

    def test_exit_codes(self, oncegate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """The main help lists every exit code."""
        out = " ".join(helped((), 50, monkeypatch, oncegate).split())
        assert all(f" {code} {meaning}" in out for code, meaning in exit_codes.MEANINGS.items())


# ── examples ──────────────────────────────────────────────────────────────────────────────────────────────

EXAMPLES = [(path, line) for path, command in COMMANDS.items() for line in getattr(command, "examples", ())]
# These commands wait for requests, or need AWS or a server. Those of `genesys` run in tests/genesys/test_guide.py.
NOT_RUN = re.compile(
    r"oncegate (console|serve|work|infra (up|down|show)|doctor --(store|name|queue)|simulate --to http"
    r"|seed '?(dynamodb|redis):|events tail|genesys)"
)


def arguments_of(line: str) -> list[str]:
    """The arguments of oncegate in an example, which may be part of a pipe."""
    (part,) = [part for part in re.split(r" \| | > ", line) if part.startswith("oncegate ")]
    return shlex.split(part)[1:]


def parse(arguments: list[str]) -> Path_:
    """Parse a command line without running it; returns the words of its command."""
    context = cli.make_context("oncegate", arguments)
    path: Path_ = ()
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        path = (*path, name or "")
        context = command.make_context(name, rest, parent=context)
    return path


class TestExamples:
    @every_command
    def test_number(self, path: Path_) -> None:
        """Every command has one to four examples, and the examples of a command show this command."""
        examples = getattr(COMMANDS[path], "examples", ())
        assert 1 <= len(examples) <= 4
        assert all(parse(arguments_of(line))[: len(path)] == path for line in examples)

    @pytest.mark.parametrize("line", ["oncegate dlq list --no-such", "oncegate keys show", "oncegate keys show 12"])
    def test_the_check_finds_a_wrong_example(self, line: str) -> None:
        """The check itself finds an unknown option, a missing argument and an invalid value."""
        with pytest.raises(click.UsageError):
            parse(arguments_of(line))

    @pytest.mark.parametrize("line", [line for _, line in EXAMPLES if not NOT_RUN.match(line)])
    def test_they_run(
        self, line: str, gate: Gate, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An example runs as printed in a folder with the files that it names. Questions are answered with yes."""
        monkeypatch.setenv("ONCEGATE_JOURNAL_PAYLOADS", "24h")
        (tmp_path / "crm.toml").write_text('retention = "7d"\n')
        (tmp_path / "app.py").write_text("def on_event(event): pass\n")
        event = '{"id": "evt-1", "type": "call.ended", "data": {"case": {"id": 1}}}\n'
        (tmp_path / "event.json").write_text(event)
        (tmp_path / "events.jsonl").write_text(event * 2)
        with closing(sqlite3.connect(tmp_path / "old.db")) as db:
            db.executescript("CREATE TABLE dedup (id); INSERT INTO dedup VALUES ('evt-2')")
        key = str(gate.run(event, lambda _: 1 / 0 if "dlq" in line else None).key)
        with closing(RecordedGate(tmp_path)) as recorded:
            recorded.run(event)
        if "truth.jsonl" in line:
            oncegate("simulate", "--to", "file://t.jsonl", "--truth", "truth.jsonl", "--events", "1")
            ran = re.search(r'"auto":"(\w+)"', (tmp_path / "truth.jsonl").read_text())
            (tmp_path / "effects.jsonl").write_text(f'{{"key": "{ran[1] if ran else ""}"}}\n')
        line = line.replace(EXAMPLE_KEY, key)
        if re.search(r" [|>] ", line):
            script = re.sub(r"\boncegate (?=[a-z-])", f"{shlex.quote(sys.executable)} -m oncegate ", line, count=1)
            done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)  # noqa: S607
            code, err = done.returncode, done.stderr
        else:
            (tmp_path / "yes").write_text("y\n")
            with (tmp_path / "yes").open() as answers:
                monkeypatch.setattr(sys, "stdin", answers)
                code, _, err = oncegate(*arguments_of(line))
        assert code == exit_codes.OK, err


# ── --config ──────────────────────────────────────────────────────────────────────────────────────────────

READERS = [path for path, command in COMMANDS.items() if path and getattr(command, "examples", ())]


class TestConfig:
    @pytest.mark.parametrize("command", ["dlq list", "explain x", "config show", "config check", "doctor", "keys show"])
    def test_every_position(self, command: str, oncegate: Run, tmp_path: Path) -> None:
        """--config is used before the command, between a group and its command, and after the command."""
        (tmp_path / "mine.toml").write_text('no_such_setting = "1"\n')
        words = [*command.split(), *(["0" * 32] if command == "keys show" else [])]
        for place in range(len(command.split()) + 1):
            code, _, err = oncegate(*words[:place], "--config", "mine.toml", *words[place:])
            assert (code, "mine.toml: there is no setting no_such_setting" in err) == (exit_codes.USAGE, True), place

    @every_command
    def test_it_is_accepted(self, path: Path_, oncegate: Run) -> None:
        """Every command accepts --config at every position."""
        for place in range(len(path) + 1):
            code, out, _ = oncegate(*path[:place], "--config", "mine.toml", *path[place:], "--help")
            assert (code, out.startswith("Usage: ")) == (exit_codes.OK, True)

    @pytest.mark.parametrize(
        "line",
        [
            "--config a.toml --config b.toml dlq list",
            "--config a.toml dlq --config b.toml list",
            "dlq --config a.toml list --config b.toml",
            "--config a.toml simulate --to - --config b.toml",
        ],
    )
    def test_two_files(self, line: str, oncegate: Run) -> None:
        """Two different files are an error that names both."""
        code, _, err = oncegate(*line.split())
        assert code == exit_codes.USAGE
        assert "--config is given twice with different files, 'a.toml' and 'b.toml'; use it once" in err

    def test_one_file_twice(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """The same file may be given twice."""
        (tmp_path / "a.toml").write_text("")
        assert oncegate("--config", "a.toml", "dlq", "--config", "a.toml", "list")[0] == exit_codes.OK

    def test_an_empty_name(self, oncegate: Run) -> None:
        """An empty name is an error, as a shell makes it from an unset variable."""
        code, _, err = oncegate("dlq", "list", "--config", "")
        assert (code, "the name of the file is empty" in err) == (exit_codes.USAGE, True)


# ── completion ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def completion(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command with the variables that a shell sets for completion; returns what the shell reads."""

    def call(instruction: str, **environment: str) -> str:
        for name, value in {"_ONCEGATE_COMPLETE": instruction, **environment}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            run([])
        assert ended.value.code == exit_codes.OK
        out, err = capfd.readouterr()
        assert err == ""
        return out

    return call


class TestCompletion:
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("oncegate d", ["plain,dlq", "plain,doctor"]),
            ("oncegate dlq re", ["plain,redrive"]),
            ("oncegate dlq list --na", ["plain,--namespace"]),
            ("oncegate serve --mode ", ["plain,lease", "plain,mark_first"]),
            ("oncegate serve --signature s", ["plain,standard-webhooks"]),
            ("oncegate serve --signature n", ["plain,none"]),
            ("oncegate dlq list --output j", ["plain,json"]),
            ("oncegate read ev", ["file,ev"]),
            ("oncegate verify --truth tr", ["file,tr"]),
            ("oncegate serve --tls-cert ce", ["file,ce"]),
            ("oncegate simulate --replay ev", ["file,ev"]),
            ("oncegate --config on", ["file,on"]),
            ("oncegate --config a.toml conf", ["plain,config"]),
        ],
    )
    def test_bash(self, words: str, expected: list[str], completion: Callable[..., str]) -> None:
        """Bash is offered commands, options, choices and files for the last of the words."""
        out = completion("bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1))
        assert out.split() == expected

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_scripts(self, shell: str, completion: Callable[..., str]) -> None:
        """The script of each shell is printed, and the page on the command line has the line that loads it."""
        assert f"_ONCEGATE_COMPLETE={shell}_complete" in completion(f"{shell}_source")
        assert f"_ONCEGATE_COMPLETE={shell}_source oncegate" in PAGE.read_text()

    def test_in_bash(self, tmp_path: Path) -> None:
        """Bash loads the script of the page and offers the commands."""
        (tmp_path / "oncegate").write_text(f'#!/bin/sh\nexec {sys.executable} -m oncegate "$@"\n')
        (tmp_path / "oncegate").chmod(0o755)
        found = re.search(r"`(eval .+bash_source oncegate.+)` \|$", PAGE.read_text(), re.MULTILINE)
        assert found
        script = (
            f"{found[1]}; COMP_WORDS=(oncegate dlq re); COMP_CWORD=2; _oncegate_completion oncegate; echo $COMPREPLY"
        )
        environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["bash", "--norc", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.stdout == "redrive\n", done.stderr

    def test_it_is_quick(self) -> None:
        """Completion imports the commands that it offers, and no other command. It imports no library of AWS or HTTP,
        which would take most of a second."""
        code = (
            "import sys\nfrom oncegate.cli.main import run\ntry:\n    run([])\n"
            "except SystemExit:\n    print(*sys.modules, file=sys.stderr)"
        )
        environment = {"_ONCEGATE_COMPLETE": "bash_complete", "COMP_WORDS": "oncegate s", "COMP_CWORD": "1"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=True)
        assert done.stdout.split() == ["plain,seed", "plain,serve", "plain,simulate"]
        imported = set(done.stderr.split())
        assert not {"boto3", "botocore", "httpx", "httpx2", "redis", "psycopg", "uvloop"} & imported
        assert not {"asyncio", "oncegate.cli.analyze", "oncegate.cli.dlq", "oncegate.cli.work"} & imported
