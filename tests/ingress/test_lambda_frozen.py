"""A Lambda function whose process is frozen, as Lambda does between invocations."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate import Gate
from tests.ingress.invocations import envelope, nothing

FUNCTION = """
import json, sys, threading
from oncegate import Gate
from oncegate.errors import NotTaken

class Context:
    aws_request_id = "req-1"
    def get_remaining_time_in_millis(self):
        return 800

def handle(event):
    if event.body.get("wait"):
        print("running", flush=True)
        sys.stdin.readline()

handler = Gate("sqlite:///frozen.db").lambda_handler(handle)
for line in sys.stdin:
    try:
        answer = handler(json.loads(line), Context())
        print("answer", json.loads(answer["body"])["status"], flush=True)
    except NotTaken as error:
        print("again", error, flush=True)
"""
# A lease is 800 ms, rounded up, and two seconds.
LEASE_IS_OVER = 3.3


class Function:
    """A function in a process of its own, which can be frozen."""

    def __init__(self, folder: Path) -> None:
        (folder / "function.py").write_text(FUNCTION)
        self.process = subprocess.Popen(
            [sys.executable, "function.py"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, event: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(event) + "\n")
        self.process.stdin.flush()

    def output(self) -> str:
        """The next line that is not a log line."""
        assert self.process.stdout is not None
        return next(line.strip() for line in self.process.stdout if not line.startswith("{"))

    def freeze(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def function(tmp_path: Path) -> Iterator[Function]:
    function = Function(tmp_path)
    yield function
    function.end()


class TestFrozen:
    def test_between_invocations(self, function: Function) -> None:
        """A process that is resumed long after its leases have ended continues normally."""
        function.send(envelope(1))
        assert function.output() == "answer processed"
        function.freeze(LEASE_IS_OVER)
        function.thaw()
        for number, status in ((1, "duplicate"), (2, "processed")):
            function.send(envelope(number))
            assert function.output() == f"answer {status}"

    def test_in_the_middle_of_a_handler(self, function: Function, tmp_path: Path) -> None:
        """A process that is frozen past its lease finds that another worker has run the event, and does not acknowledge
        it."""
        function.send(envelope(1, wait=True))
        assert function.output() == "running"
        function.freeze(LEASE_IS_OVER)
        gate = Gate(f"sqlite:///{tmp_path / 'frozen.db'}")
        assert gate.run(envelope(1, wait=True), nothing).status == "processed"
        gate.close()
        function.thaw()
        function.send({})
        assert function.output().startswith("again Failed at attempt 1: its claim was lost")
