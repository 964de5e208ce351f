"""The question before a command deletes something."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oncegate import Gate

QUESTION = b"Delete this record, so that the next delivery runs? [y/N]: "
PATIENCE = 20.0


def read_until(file: int, end: bytes) -> bytes:
    """What the file holds up to this end. Fails if the end does not come."""
    shown, deadline = b"", time.monotonic() + PATIENCE
    while not shown.endswith(end):
        readable, _, _ = select.select([file], [], [], max(0.0, deadline - time.monotonic()))
        assert readable, f"{end!r} did not follow {shown!r}"
        shown += os.read(file, 65536)
    return shown


def available(file: int) -> bytes:
    """What can be read from the file now."""
    shown = b""
    while select.select([file], [], [], 0)[0]:
        shown += os.read(file, 65536)
    return shown


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("redirected", ["nothing", "stdout", "stderr"])
def test_a_question_follows_its_text(gate: Gate, tmp_path: Path, redirected: str, unbuffered: str) -> None:
    """The text about the record is printed before the question, and the question is on the terminal, if stdout and
    stderr are terminals, and if one of them is a pipe."""
    key = str(gate.run({"id": "evt-1"}, lambda event: None).key)
    terminal, end = pty.openpty()
    reading, writing = os.pipe()
    command = subprocess.Popen(
        [sys.executable, "-m", "oncegate", "keys", "reset", key],
        stdin=end,
        stdout=writing if redirected == "stdout" else end,
        stderr=writing if redirected == "stderr" else end,
        cwd=tmp_path,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered, "NO_COLOR": "1", "TERM": "dumb"},
    )
    os.close(end)
    os.close(writing)
    try:
        shown = read_until(terminal, QUESTION)
        text = available(reading) if redirected == "stdout" else shown
        os.write(terminal, b"n\n")
        assert command.wait(PATIENCE) == 1
    finally:
        command.kill()
        command.wait()
        os.close(terminal)
        os.close(reading)
    assert text.startswith(b"Processed ")


def test_an_open_pipe_without_an_answer(gate: Gate, tmp_path: Path) -> None:
    """A command whose stdin is a pipe that nobody writes to does not wait for ever: it asks for --yes."""
    key = str(gate.run({"id": "evt-1"}, lambda event: None).key)
    command = [sys.executable, "-m", "oncegate", "keys", "reset", key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as asking:
        try:
            assert asking.wait(PATIENCE) == 2
            assert asking.stderr is not None
            assert b"add --yes to confirm" in asking.stderr.read()
        finally:
            asking.kill()
