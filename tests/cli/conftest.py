"""Run commands in a fresh folder, with a gate on their store."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from oncegate import Gate
from oncegate.cli.main import run

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def oncegate(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in a fresh folder; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate on the default store of commands in that folder."""
    gate = Gate(f"sqlite:///{tmp_path}/oncegate.db", max_attempts=1, remember=None)
    yield gate
    gate.close()


def on_terminal(arguments: Sequence[str], folder: Path, **environment: str) -> str:
    """The output of a command whose stdout and stderr are a terminal."""
    main, worker = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env = plain | {"TERM": "xterm-256color", "COLUMNS": "80"} | environment
    command = [sys.executable, "-m", "oncegate", *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=worker, stderr=worker, cwd=folder, env=env):
        os.close(worker)
        shown = b""
        try:
            while chunk := os.read(main, 65536):
                shown += chunk
        except OSError:
            pass  # Linux says so when the other end has closed
    os.close(main)
    return shown.decode()
