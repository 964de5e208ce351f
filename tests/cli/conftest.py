"""Commands run in a fresh folder, and a gate on the store that they use there."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncegate import Gate
from oncegate.cli.main import run

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def oncegate(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in a fresh folder: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate on the store that commands use by default in that folder."""
    gate = Gate(f"sqlite:///{tmp_path}/oncegate.db", max_attempts=1, remember=None)
    yield gate
    gate.close()
