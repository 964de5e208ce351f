"""The path of an event: how many of our frames and files lie between `gate.run` and the store."""

import re
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import oncegate
from oncegate import Event, Gate, keys
from tests.stores.redis_server import RedisServer

ROOT = Path(oncegate.__file__).parent
CLAIM_WRITE = re.compile(r"\s*(INSERT|UPDATE)\b.*\bclaims\b", re.IGNORECASE | re.DOTALL)

Stack = list[tuple[str, str]]  # file and function, from the outermost call to the innermost


class Recorder:
    """Records the stack at each call of a C function that `counts`, in the thread of the event only."""

    def __init__(self, counts: Callable[[Any], bool]) -> None:
        self._counts = counts
        self.stacks: list[Stack] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and self._counts(argument):
            self.stacks.append(own_frames(frame))

    @contextmanager
    def recording(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)


def own_frames(frame: FrameType | None) -> Stack:
    stack = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            stack.append((str(path.relative_to(ROOT)), frame.f_code.co_name))
        frame = frame.f_back
    return stack[::-1]


def succeed(event: Event) -> None: ...


def check(stack: Stack, *, most_frames: int, most_files: int) -> None:
    files = {file for file, _ in stack}
    listed = "\n".join(f"    {file} {name}" for file, name in stack)
    found = f"{len(stack)} frames in {len(files)} files:\n{listed}"
    assert stack[0] == ("gate/gate.py", "run"), found
    assert (len(stack) <= most_frames, len(files) <= most_files) == (True, True), found


def test_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gate.run` reaches the statement that writes the claim in at most 9 frames of ours, in at most 5 files."""
    recorder = Recorder(lambda function: getattr(function, "__name__", "") in ("execute", "executemany"))
    at_claim: list[Stack] = []

    def trace(statement: str) -> None:
        if CLAIM_WRITE.match(statement) and recorder.stacks:
            at_claim.append(recorder.stacks[-1])

    connect = sqlite3.connect

    def traced(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)
        connection.set_trace_callback(trace)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    with closing(Gate(f"sqlite:///{tmp_path}/a.db", key=keys.event_id)) as gate:
        gate.run({"id": "warm"}, succeed)
        with recorder.recording():
            assert gate.run({"id": "measured"}, succeed).status == "processed"
    check(at_claim[0], most_frames=9, most_files=5)


def test_redis(tmp_path: Path) -> None:
    """`gate.run` reaches the socket's send in at most 8 frames of ours, in at most 5 files."""

    def is_send(function: Any) -> bool:
        return function.__name__ in ("send", "sendall", "sendmsg") and isinstance(function.__self__, socket.SocketType)

    recorder = Recorder(is_send)
    server = RedisServer(tmp_path)
    try:
        with closing(Gate(server.url, key=keys.event_id)) as gate:
            gate.run({"id": "warm"}, succeed)
            with recorder.recording():
                assert gate.run({"id": "measured"}, succeed).status == "processed"
    finally:
        server.stop()
    check(recorder.stacks[0], most_frames=8, most_files=5)
