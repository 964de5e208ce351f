"""The log: one line for each event for people on a terminal, and what the service says of itself."""

import asyncio
import logging
import os
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec
from rich.console import Console
from rich.text import Text

from oncegate.background import Background
from oncegate.cli.output import clean
from oncegate.gate import Notice
from oncegate.gate.observers import ascii_only, outcome_of, spelt
from oncegate.gate.outcome import STATUSES

_MOST_LINES: Final = 1_000
_AT_A_TIME: Final = 100
_PATIENCE: Final = 0.1


def pretty_line(notice: Notice) -> None:
    """An observer. What an exception said is part of the line: whoever started the service is looking at it."""
    outcome = outcome_of(notice)
    if outcome is None:
        return
    time = datetime.fromtimestamp(notice.at / 1_000_000, UTC).strftime("%H:%M:%S")
    status = (outcome.status.ljust(9), STATUSES[outcome.status].colour)
    line = Text.assemble((time, "dim"), "  ", status, "  ", clean(outcome.event.id or "-"), "  ", clean(outcome.reason))
    Console(highlight=False, soft_wrap=True).print(line)


class RepeatedWarning:
    """A warning that clients can cause at any rate: writes a few lines a minute, then one line with the count of those
    that were left out."""

    def __init__(self, logger: logging.Logger, most: int = 5, every: float = 60.0) -> None:
        self._logger = logger
        self._most = most
        self._every = every
        self._written = 0
        self._omitted = 0
        self._message = ""

    def __call__(self, message: str, *arguments: Any) -> None:
        """From within the event loop, which also writes the count when the minute is over."""
        if not self._written:
            asyncio.get_running_loop().call_later(self._every, self._sum_up)
        if self._written < self._most:
            self._written += 1
            self._logger.warning(message, *arguments)
        else:
            self._omitted += 1
            self._message = message % arguments

    def _sum_up(self) -> None:
        omitted, self._omitted, self._written = self._omitted, 0, 0
        if omitted:
            self._logger.warning("%s (%d more like it within %g s)", self._message, omitted, self._every)


class JsonLines(logging.Formatter):
    """What the service says of itself, in lines of JSON: no text in it can make a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        if record.exc_info:
            said += "\n" + self.formatException(record.exc_info)
        fields = {
            "time": spelt(int(record.created * 1_000_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": said,
        }
        return ascii_only(msgspec.json.encode(fields).decode())


class PlainLines(logging.Formatter):
    """The same for a person at a terminal, which no text of it can steer."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(clean(line) for line in super().format(record).split("\n"))


class PatientHandler(logging.Handler):
    """Writes lines from a thread, so that a full pipe blocks neither the event loop nor the end of the process. While
    the pipe is read, a line is written when `emit` returns; otherwise lines are queued up to a bound, then dropped and
    counted.

    The thread writes to the file descriptor. Through the stream it would hold the stream's lock while the pipe is full,
    and Python acquires that lock at exit."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._writer: Background[bytes] = Background("oncegate-log", self._write, most=_AT_A_TIME)
        self._stuck = False
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._writer) >= _MOST_LINES:
            self._dropped += 1
            return
        self._writer.put(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        if not self._stuck:
            self._stuck = not self._writer.flush(_PATIENCE)

    def flush(self) -> None:
        """What is called at the end of the process."""
        self._writer.flush(0.0 if self._stuck else _PATIENCE)

    def _write(self, lines: list[bytes]) -> None:
        try:
            for line in lines:
                _write_all(self._file, line)
            self._stuck = False
            if dropped := self._dropped:
                self._dropped = 0
                _write_all(self._file, self.format(_of_dropped(dropped)).encode() + b"\n")
        except OSError:
            """Nobody reads it any more, or the disk is full."""


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _of_dropped(count: int) -> logging.LogRecord:
    said = "the log was not read: lines were dropped (%d)"
    return logging.LogRecord("oncegate.service", logging.WARNING, __file__, 0, said, (count,), None)


def handler_for(stream: TextIO) -> logging.Handler:
    try:
        handler: logging.Handler = PatientHandler(stream.fileno())
    except OSError:  # it is none of the system's, and does not block
        handler = logging.StreamHandler(stream)
    plain = PlainLines("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(plain if stream.isatty() else JsonLines())
    return handler
