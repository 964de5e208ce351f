"""How a command starts and ends: Ctrl-C during imports, and a closed or full stdout."""

import os
import subprocess
import sys
from contextlib import closing
from itertools import cycle
from pathlib import Path

import click
import pytest

from oncegate import Gate
from oncegate.cli import exit_codes
from tests.cli.conftest import RecordedGate, Run
from tests.cli.test_commands import COMMANDS

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def shell(folder: Path, command: str, **environment: str) -> tuple[int, str]:
    """The exit code and stderr of a command in a shell."""
    line = f"{sys.executable} -m oncegate {command}"
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, env=BUFFERED | environment)  # noqa: S607
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["msgspec", "click", "rich"])
def test_interrupted_while_it_is_imported(tmp_path: Path, module: str) -> None:
    """Ctrl-C during the imports gives an exit code and no traceback."""
    (tmp_path / f"{module}.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    assert shell(tmp_path, "dlq list") == (exit_codes.INTERRUPTED, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["dlq list", "dlq list --output json", "--help", "config show"])
def test_a_full_disk(tmp_path: Path, gate: Gate, command: str, unbuffered: str) -> None:
    """A failed write to stdout is an error of one sentence."""
    if not Path("/dev/full").exists():
        pytest.skip("this machine has no /dev/full")
    said = (exit_codes.FAILED, "Error: cannot write to stdout: No space left on device\n")
    assert shell(tmp_path, f"{command} >/dev/full", PYTHONUNBUFFERED=unbuffered) == said


@pytest.mark.parametrize("command", ["console --port 0", "dlq list", "keys show 00", "serve --port 0"])
def test_no_stdout(tmp_path: Path, gate: Gate, command: str) -> None:
    """With stdout closed the command does nothing, because the next opened file would get its descriptor."""
    code, said = shell(tmp_path, f"{command} >&-")
    assert (code, said) == (
        exit_codes.FAILED,
        "Error: stdout is closed; redirect it to /dev/null to discard the output\n",
    )


def test_no_stderr(tmp_path: Path, gate: Gate) -> None:
    """With stderr closed the command works; only the exit code reports an error."""
    assert shell(tmp_path, "dlq list 2>&-") == (exit_codes.OK, "")
    assert shell(tmp_path, f"keys show {'0' * 32} 2>&-") == (exit_codes.NOT_FOUND, "")
    assert shell(tmp_path, "dlq list >&- 2>&-") == (exit_codes.FAILED, "")


# ── a reader that has gone ────────────────────────────────────────────────────────────────────────────────

KEY = "0" * 32
PRINTING = {
    "--help": exit_codes.OK,
    "dlq redrive --help": exit_codes.OK,
    "--no-such-option": exit_codes.USAGE,
    "dlq list": exit_codes.OK,
    "dlq list --output json": exit_codes.OK,
    "config show": exit_codes.OK,
    "config check": exit_codes.OK,
    f"keys show {KEY}": exit_codes.NOT_FOUND,
    f"dlq show {KEY}": exit_codes.NOT_FOUND,
    "explain evt-1": exit_codes.OK,
    "explain no-such": exit_codes.NOT_FOUND,
    "explain no-such --output json": exit_codes.NOT_FOUND,
    "explain --file events.jsonl": exit_codes.OK,
    "explain --file other.jsonl": exit_codes.NOT_FOUND,
    "explain --file other.jsonl --output json": exit_codes.NOT_FOUND,
    "events list": exit_codes.OK,
    "events list --output json": exit_codes.OK,
    "events show evt-5": exit_codes.OK,
    "events show no-such": exit_codes.NOT_FOUND,
    "events export -": exit_codes.OK,
    "events tail": exit_codes.OK,
    "events tail --output json": exit_codes.OK,
    "read events.jsonl": exit_codes.OK,
    "read events.jsonl --output json": exit_codes.OK,
    "read /dev/null": exit_codes.FAILED,
    "analyze events.jsonl": exit_codes.OK,
    "analyze events.jsonl --output json": exit_codes.OK,
    "doctor --store memory://": exit_codes.WARNINGS_FOUND,
    "doctor --store memory:// --output json": exit_codes.WARNINGS_FOUND,
    "infra template --name crm": exit_codes.OK,
    "keys list": exit_codes.OK,
    "forget --entity conversation-1 --dry-run": exit_codes.OK,
    "forget --entity conversation-1 --dry-run --output json": exit_codes.OK,
    "seed events.jsonl --dry-run --lines events": exit_codes.OK,
    "seed events.jsonl --dry-run --lines rows": exit_codes.USAGE,
    "simulate --to file://t.jsonl --events 3": exit_codes.OK,
    "simulate --to - --events 300 --rate 100000": exit_codes.OK,
    "simulate --to http://127.0.0.1:9/ --events 3": exit_codes.FAILED,
    "verify --truth truth.jsonl --effects /dev/null": exit_codes.NOT_ONCE,
    "verify --truth truth.jsonl --effects /dev/null --output json": exit_codes.NOT_ONCE,
}


def without_reader(folder: Path, command: str, *, also_stderr: bool, **environment: str) -> tuple[int, bytes | None]:
    """The exit code and stderr of a command that writes to a pipe which nobody reads."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "oncegate", *command.split()],
        cwd=folder,
        stdout=write,
        stderr=write if also_stderr else subprocess.PIPE,
        env=BUFFERED | environment,
        timeout=60,
    )
    os.close(write)
    return done.returncode, done.stderr


@pytest.fixture
def prepared(tmp_path: Path, gate: Gate, oncegate: Run) -> Path:
    """A folder with a dead letter, a journal, event files and a truth file."""
    gate.run({"id": "evt-1"}, lambda _event: 1 / 0)
    with closing(RecordedGate(tmp_path)) as recorded:
        recorded.run({"id": "evt-5"})
    (tmp_path / "oncegate.toml").write_text('journal_payloads = "24h"\n')
    (tmp_path / "events.jsonl").write_text('{"id": "evt-1"}\n')
    (tmp_path / "other.jsonl").write_text('{"id": "other"}\n')
    (tmp_path / "app.py").write_text(
        "def fail(event): raise ValueError\ndef good(event): open('ran', 'a').write('x')\n"
    )
    code, _, _ = oncegate(
        "simulate", *["--to", "file://t.jsonl", "--truth", "truth.jsonl", "--events", "3", "--seed", "1"]
    )
    assert code == exit_codes.OK
    return tmp_path


@pytest.mark.parametrize(("command", "unbuffered"), list(zip(PRINTING, cycle(["", "1"]), strict=False)))
def test_the_exit_code_is_that_of_the_work(prepared: Path, command: str, unbuffered: str) -> None:
    """If the reader of the pipe has gone, as with `head`, the exit code is that of the work, and nothing is printed
    about the pipe. Every second command writes without a buffer, to a stderr without a reader too."""
    code, err = without_reader(prepared, command, also_stderr=bool(unbuffered), PYTHONUNBUFFERED=unbuffered)
    assert code == PRINTING[command]
    assert b"roken pipe" not in (err or b"")
    assert b"Traceback" not in (err or b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_work_is_completed(prepared: Path, gate: Gate, unbuffered: str) -> None:
    """A command that changes the store completes its work without a reader."""

    def run(command: str) -> int:
        return without_reader(prepared, command, also_stderr=True, PYTHONUNBUFFERED=unbuffered)[0]

    gate.run_batch([{"id": f"more-{number}"} for number in range(5)], lambda _event: 1 / 0)
    assert run("dlq redrive --all --handler app:fail") == exit_codes.FAILED
    assert run("dlq redrive --all --handler app:good") == exit_codes.OK
    assert (prepared / "ran").read_text() == "x" * 6
    gate.run_batch([{"id": f"last-{number}"} for number in range(5)], lambda _event: 1 / 0)
    assert run("dlq drop --all --yes") == exit_codes.OK
    assert gate.run({"id": "last-1"}, lambda _event: None).status == "processed"
    key = gate.run({"id": "evt-2"}, lambda _event: None).key
    assert run(f"keys reset {key} --yes") == exit_codes.OK
    assert gate.run({"id": "evt-2"}, lambda _event: None).status == "processed"
    key = gate.run({"id": "evt-3", "conversationId": "conversation-1"}, lambda _event: None).key
    assert run("forget --entity conversation-1 --yes") == exit_codes.OK
    assert gate.store.browse(key=bytes.fromhex(str(key)))[0].record.about.entity is None


def test_every_command_is_here() -> None:
    """Every command that ends by itself and needs no account at AWS or Genesys Cloud is tested above."""
    tested = [*PRINTING, "dlq redrive", "dlq drop", "keys reset"]
    others = {("console",), ("serve",), ("work",), ("infra", "up"), ("infra", "down"), ("infra", "show")}
    for path, command in COMMANDS.items():
        if not isinstance(command, click.Group) and path not in others and path[0] != "genesys":
            assert any(line.startswith(" ".join(path)) for line in tested), f"add {' '.join(path)} to PRINTING"


def test_output_without_an_end(tmp_path: Path) -> None:
    """A billion simulated events end when the reader has gone."""
    command = f"{sys.executable} -m oncegate simulate --to - --events 1000000000 | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=60)  # noqa: S607
    assert done.returncode == exit_codes.OK
    assert done.stdout.count(b"\n") == 1
    assert b"Error" not in done.stderr
