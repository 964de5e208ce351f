"""Webhooks through a message bus into Postgres: every part is killed, and each event takes effect once."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.readme import EXAMPLES

PIPELINE = EXAMPLES / "bus" / "pipeline.py"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
PARTS = {"nats": ["serve", "work", "nats", "postgres"]}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files that other users may enter: root runs Postgres as `nobody`."""
    with tempfile.TemporaryDirectory(prefix="oncegate-example-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_exactly_once(folder: Path) -> None:
    """2000 events with every kind of duplicate take effect once, although each part is killed. No file is left."""
    check(run(folder, "nats", "--kills", "1", "--rate", "400"), PARTS["nats"])
    assert list(folder.iterdir()) == []


def test_in_order(folder: Path) -> None:
    """Without kills, the events of each entity take effect in order."""
    done = run(folder, "nats", "--kills", "0", "--events", "300")
    assert re.search(r"^Exactly once: 300 events, 300 effects; in order for each of \d+ ent", done.stdout, re.MULTILINE)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PIPELINE), *arguments]
    return subprocess.run(command, env={**ENVIRONMENT, "TMPDIR": str(folder)}, capture_output=True, text=True)


def check(done: subprocess.CompletedProcess[str], parts: list[str]) -> None:
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    killed = re.findall(r"killed and started again: (\w+)", done.stdout)
    assert sorted(killed) == sorted(parts)
    assert re.search(r"^Exactly once: 2000 events, 2000 effects; ", done.stdout, re.MULTILINE)
