"""The service's log: one line per event on a terminal, and log handlers that never block the event loop.

`oncegate work` uses this module without the `serve` extra, so the module must not import uvicorn or prometheus_client.
"""

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import click
import msgspec
from rich.console import Console
from rich.text import Text

from oncegate.background import Background
from oncegate.gate import Notice
from oncegate.gate.observers import ascii_only, outcome_of, spelt
from oncegate.gate.outcome import STATUSES, Outcome
from oncegate.text import clean, on_one_line

_MAX_QUEUED_LINES: Final = 1_000
_LINES_PER_WRITE: Final = 100
_FLUSH_TIMEOUT: Final = 0.1  # seconds
_QUIET: Final = ("aiormq", "aio_pika")  # they log each failed attempt to connect; the worker logs an outage once


def console_for(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    """The console of stdout or stderr. If NO_COLOR is set, the console prints no colours and no bold or dim text. Rich
    alone would turn off only the colours."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=soft_wrap)
    if not console.no_color:
        return console
    return Console(stderr=stderr, highlight=False, soft_wrap=soft_wrap, color_system=None)


def pretty_line(notice: Notice) -> None:
    """Print one coloured line for the outcome of an event. The line may include the text of a handler's exception, and
    the path of the URL of a forward, because only the person who started the service sees the terminal. Do not use this
    function if stdout is a file or a pipe: use JsonLog, which writes neither."""
    outcome = outcome_of(notice)
    if outcome is None:
        return
    time = datetime.fromtimestamp(notice.at / 1_000_000, UTC).strftime("%H:%M:%S")
    status = (outcome.status.ljust(9), STATUSES[outcome.status].colour)
    text = f"  {on_one_line(outcome.event.id or '-')}  {clean(outcome.reason)}"
    line = Text.assemble((time, "dim"), "  ", status, text)
    console_for().print(line, *stack_lines(outcome), sep="\n")


pretty_line.logs_outcomes = True  # type: ignore[attr-defined]  # see `log_outcomes`


def stack_lines(outcome: Outcome) -> list[Text]:
    """The lines of the stack, to print below the line of an outcome."""
    return [Text(f"  {clean(line)}", "dim") for line in (outcome.stack or "").splitlines()]


class RateLimitedWarning:
    """A warning that clients can trigger at any rate. Writes at most `most` lines in an interval of `every` seconds. At
    the end of the interval, writes one line with the number of omitted warnings, if there are any."""

    def __init__(self, logger: logging.Logger, most: int = 5, every: float = 60.0) -> None:
        self._logger = logger
        self._most = most
        self._every = every
        self._written = 0
        self._omitted = 0
        self._last_message = ""

    def __call__(self, message: str, *arguments: Any) -> None:
        """Write or omit a warning. Must be called in the event loop: a timer of the loop ends the interval."""
        if not self._written:
            import asyncio

            asyncio.get_running_loop().call_later(self._every, self._write_omitted)
        if self._written < self._most:
            self._written += 1
            self._logger.warning(message, *arguments)
        else:
            self._omitted += 1
            self._last_message = message % arguments

    def _write_omitted(self) -> None:
        omitted, self._omitted, self._written = self._omitted, 0, 0
        if omitted:
            self._logger.warning("%s (%d more like it within %g s)", self._last_message, omitted, self._every)


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON. Text in the record cannot start a new line."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        fields = {
            "time": spelt(int(record.created * 1_000_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        return ascii_only(msgspec.json.encode(fields).decode())


class PlainLines(logging.Formatter):
    """Formats a log record for a terminal. Control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(clean(line) for line in super().format(record).split("\n"))


class NonBlockingHandler(logging.Handler):
    """Writes lines in a thread, so that a full pipe blocks neither the event loop nor the exit of the process. As long
    as another process reads the pipe, each line is written before `emit` returns. When the pipe is full, up to 1,000
    lines are queued. Further lines are dropped and counted.

    The thread writes to the file descriptor, not to the stream. A write to the stream would hold the lock of the stream
    while the pipe is full. Python acquires this lock at exit, so the process could not exit."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._writer: Background[bytes] = Background("oncegate-log", self._write, most=_LINES_PER_WRITE)
        self._is_blocked = False
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._writer) >= _MAX_QUEUED_LINES:
            self._dropped += 1
            return
        self._writer.put(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        if not self._is_blocked:
            self._is_blocked = not self._writer.flush(_FLUSH_TIMEOUT)

    def flush(self) -> None:
        """Write the queued lines. `logging` calls this method when the process exits."""
        self._writer.flush(0.0 if self._is_blocked else _FLUSH_TIMEOUT)

    def _write(self, lines: list[bytes]) -> None:
        try:
            for line in lines:
                _write_all(self._file, line)
            self._is_blocked = False
            if dropped := self._dropped:
                self._dropped = 0
                _write_all(self._file, self.format(_dropped_record(dropped)).encode() + b"\n")
        except OSError:
            """The reader has closed the pipe, or the disk is full. There is no other place to report the error."""


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _dropped_record(count: int) -> logging.LogRecord:
    message = "the log was not read: lines were dropped (%d)"
    return logging.LogRecord("oncegate.service", logging.WARNING, __file__, 0, message, (count,), None)


def announce(logger: str, facts: str, hint: str) -> None:
    """Write the start message to stderr: the facts and the hint as text on a terminal, otherwise the facts as one line
    of JSON. The line has the level `info`."""
    if sys.stderr.isatty():
        click.echo(f"{facts}\n{hint}", err=True)
    else:
        record = logging.LogRecord(logger, logging.INFO, __file__, 0, "%s", (facts,), None)
        click.echo(JsonLines().format(record), err=True)


def handler_for(stream: TextIO, handler: logging.Handler | None = None) -> logging.Handler:
    """Return a log handler for this stream. It writes plain lines to a terminal, and JSON lines to anything else.
    `handler` is what writes the lines, if another part of the program writes to the stream, too."""
    try:
        handler = handler or NonBlockingHandler(stream.fileno())
    except OSError:  # the stream has no file descriptor (it is in memory), so a write cannot block
        handler = logging.StreamHandler(stream)
    handler.addFilter(lambda record: record.name.partition(".")[0] not in _QUIET)
    plain = PlainLines("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(plain if stream.isatty() else JsonLines())
    return handler
