"""Prepare stdout and stderr for a command, and flush them after it."""

import os
import signal
import sys
from collections.abc import Callable
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, Final

from oncegate.cli import exit_codes

_STDOUT: Final = 1


class StdoutError(OSError):
    """A write to stdout failed, for example on a full disk. A pipe whose reader has gone gives no error."""


class _Output(FileIO):
    """Stdout or stderr. Completes a write that a signal has interrupted.

    If the reader of a pipe has closed it, as `head` does, the rest of the output is discarded: the command completes
    its work and ends with the exit code of the work. Another failure of stdout is a StdoutError, so that it is not
    confused with a failure of another file. Another failure of stderr is ignored, because it cannot be reported."""

    reader_has_gone = False

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        whole = len(left)
        try:
            while left:
                left = left[super().write(left) :]
        except OSError as error:
            if not isinstance(error, BrokenPipeError) and self.fileno() == _STDOUT:
                raise StdoutError(error.errno, error.strerror) from None
            self.reader_has_gone = True
            _discard_output(self.fileno())
        return whole


def reader_has_gone() -> bool:
    """Whether nobody reads stdout any more. Only a command whose output has no end needs this."""
    buffer = getattr(sys.stdout, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # without a buffer, the text is written to the raw stream
    return isinstance(raw, _Output) and raw.reader_has_gone


def prepare() -> str | None:
    """Make stdout and stderr accept any text. Returns an error message if stdout is closed."""
    if sys.stderr is None:  # closed by the parent process; the next file that is opened would get its descriptor
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # stays open until the process ends
    if sys.stdout is None:
        return "Error: stdout is closed; redirect it to /dev/null to discard the output"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # print the escape of a character that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout = _with_own_errors(sys.stdout)
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = _with_own_errors(sys.stderr)
    return None


def unbuffer() -> None:
    """Remove the buffer of stdout, for a command that logs from threads. A thread that writes to a full pipe holds the
    lock of the buffer. Python acquires this lock at exit, so it would wait for the thread."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout = _with_own_errors(sys.stdout, buffered=False)


def _with_own_errors(stream: TextIOWrapper, *, buffered: bool = True) -> TextIOWrapper:
    stream.flush()
    buffered = buffered and not stream.write_through  # PYTHONUNBUFFERED: a line must not wait in a buffer
    raw = _Output(stream.fileno(), "w", closefd=False)
    return TextIOWrapper(
        BufferedWriter(raw) if buffered else raw,
        stream.encoding,
        "backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=not buffered,
    )


def flush_after(run: Callable[[], int]) -> int:
    """Run a command, flush stdout, and return the exit code. After this call, Ctrl-C ends the process at once."""
    code = exit_codes.OK
    try:
        code = run()
        sys.stdout.flush()
    except StdoutError as error:
        if code == exit_codes.OK:
            sys.stderr.write(f"Error: cannot write to stdout: {error.strerror}\n")
        _discard_output(sys.stdout.fileno())
        code = exit_codes.FAILED
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _discard_output(descriptor: int) -> None:
    """Redirect the descriptor to /dev/null: Python flushes the rest of the buffer at exit, which would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
