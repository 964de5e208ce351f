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


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--events", "0"], "argument --events: must be at least 1"),
        (["--kills", "-1"], "argument --kills: '-1' must be a whole number, 0 or more"),
        (["--mode", "wrong"], "argument --mode: invalid choice: 'wrong'"),
        (["amqp://127.0.0.1"], "'amqp://127.0.0.1' must be nats, kafka or a URL such as amqp://127.0.0.1/events"),
        (["amqp://ann:s3cret@127.0.0.1:1/events"], "RabbitMQ at 127.0.0.1:1 cannot be used for the queue events: "),
    ],
)
def test_invalid_options(options: list[str], problem: str) -> None:
    """An invalid option and a server that does not answer end the example with one sentence, without the password."""
    command = [sys.executable, str(EXAMPLE / "pipeline.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert problem in done.stderr.splitlines()[-1]
    assert "s3cret" not in done.stderr
    assert "Traceback" not in done.stderr
