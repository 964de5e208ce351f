"""Real servers for tests: what to do when one is missing, and how it is stopped."""

import os
import signal
import socket
import subprocess
from typing import NoReturn

import pytest


def missing(server: str, install: str) -> NoReturn:
    """Skip on a laptop, with the command that would help; fail where the tests have to be complete."""
    reason = f"{server} is not installed here; install it with: {install}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    """End a server that this process has started, by its id; one that does not heed is killed."""
    process.send_signal(how)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
