"""Real servers for tests: each on a free loopback port, in its own folder, stopped by its process id."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

_PATIENCE = 20.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def missing(what: str, command: str) -> NoReturn:
    """Skip the test because a server is not installed; fail it in CI, where all tests must run."""
    reason = f"{what} is not installed: {command}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def until(ready: Callable[[], bool], what: str, patience: float = _PATIENCE) -> None:
    """Wait until `ready` returns True. Fails after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < deadline, f"waited {patience:.0f} s for {what}"
        time.sleep(0.02)


class ServerProcess:
    """A server that this process has started. Its output goes to a file in its folder."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._command = command
        self._environment = os.environ | (environment or {})
        self.start()

    def start(self) -> None:
        with (self.folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=self.folder, stdout=output, stderr=output, env=self._environment
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End the server as a crash would."""
        self._process.kill()
        self._process.wait(_PATIENCE)

    def stop(self) -> None:
        stop(self._process)


def stop(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    """Stop a server that this process has started, by its process id. Kill it if it does not stop in time."""
    process.send_signal(how)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
