"""Webhooks through a message bus into Postgres: every part is killed, and each event takes effect once."""

import re
import subprocess
import sys

import pytest

from tests.faults.pipelines import BUSES, EXAMPLE, through


@pytest.mark.parametrize("bus", BUSES)
def test_exactly_once(bus: str, capfd: pytest.CaptureFixture[str]) -> None:
    """2000 events with every kind of duplicate take effect once, although each part is killed."""
    verdict = through(bus, events=2_000, kills=1, seed=1)
    printed = capfd.readouterr().out
    assert (verdict.verified, verdict.effects) == (0, 2_000), printed
    killed = re.findall(r"killed and started again: (\w+)", printed)
    assert {"serve", "work", "postgres"} <= set(killed)
    assert re.search(r"^Exactly once: 2000 events, 2000 effects; ", printed, re.MULTILINE)


def test_the_command() -> None:
    """Without kills, the events of each entity take effect in order."""
    command = [sys.executable, str(EXAMPLE / "pipeline.py"), "nats", "--kills", "0", "--events", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"Exactly once: 200 events, 200 effects; in order for each of \d+ entities\.", last)
