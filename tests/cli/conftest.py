"""Run commands in a fresh folder, with a gate on their store."""

import json
import os
import pty
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir, closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from oncegate import Event, Gate, Outcome
from oncegate.cli.main import run
from oncegate.journal import open_recorder

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


class RecordedGate:
    """A gate with a journal. By default, the store and the journal are the default ones of commands in the folder. Rows
    are written when `run` returns."""

    def __init__(self, folder: Path, *, url: str | None = None, payloads: bool = True) -> None:
        age = 86_400_000_000 if payloads else None
        self.recorder = open_recorder(url or f"sqlite:///{folder}/oncegate.journal.db", payload_age=age)
        observers = [self.recorder.of("calls")]
        self.gate = Gate(url or f"sqlite:///{folder}/oncegate.db", observers=observers, remember=None)

    def run(self, payload: Any, handler: Callable[[Event], object] = lambda _event: None) -> Outcome:
        """Run one event, and return its outcome."""
        (outcome,) = self.gate.run_batch([payload], handler)
        assert self.recorder.flush(10)
        return outcome

    def close(self) -> None:
        self.gate.close()
        self.recorder.close()


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[RecordedGate]:
    """A gate with a journal that holds payloads."""
    with closing(RecordedGate(tmp_path)) as gate:
        yield gate


def sqs_message(id_: str, body: Any) -> dict[str, Any]:
    """An SQS message as a Lambda function gets it."""
    record = {"messageId": id_, "receiptHandle": "r", "body": json.dumps(body), "eventSource": "aws:sqs"}
    return {"Records": [record | {"attributes": {}}]}


def on_terminal(arguments: Sequence[str], folder: Path, **environment: str) -> str:
    """The output of a command whose stdout and stderr are a terminal. It runs in this process."""
    main, worker = pty.openpty()
    with ExitStack() as stack:
        stack.callback(os.close, main)
        shown = stack.enter_context(ThreadPoolExecutor(1)).submit(_read_all, main)
        stack.enter_context(chdir(folder))
        stack.enter_context(patch.dict(os.environ, {"TERM": "xterm-256color", "COLUMNS": "80"} | environment))
        if "NO_COLOR" not in environment:
            os.environ.pop("NO_COLOR", None)
        stack.enter_context(patch.object(sys, "stdin", stack.enter_context(open(os.devnull))))
        with open(worker, "w") as terminal, redirect_stdout(terminal), redirect_stderr(terminal):
            run(list(arguments))
        return shown.result()


def _read_all(main: int) -> str:
    """What is written to a terminal until its last writer closes it."""
    shown = b""
    with suppress(OSError):  # Linux says so when the other end has closed
        while chunk := os.read(main, 65536):
            shown += chunk
    return shown.decode()
