"""How a command starts and ends: Ctrl-C during imports, and a closed or full stdout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncegate import Gate
from oncegate.cli import exit_codes

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


@pytest.mark.parametrize("command", ["dlq list", "keys show 00", "serve --port 0"])
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
