"""Prepare stdout and stderr for a command, and flush them after it."""

import os
import signal
import sys
from collections.abc import Callable
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

from oncegate.cli import exit_codes


class StdoutError(OSError):
    """A write to stdout failed, for example on a full disk. A closed pipe is a BrokenPipeError instead."""


class _Stdout(FileIO):
    """Raises StdoutError, so that a failure of stdout is not confused with a failure of another file. Completes a write
    that a signal has interrupted."""

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        whole = len(left)
        try:
            while left:
                left = left[super().write(left) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StdoutError(error.errno, error.strerror) from None
        return whole


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
    return None


def unbuffer() -> None:
    """Remove the buffer of stdout, for a command that logs from threads. A thread that writes to a full pipe holds the
    lock of the buffer. Python acquires this lock at exit, so it would wait for the thread."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout = _with_own_errors(sys.stdout, buffered=False)


def _with_own_errors(stream: TextIOWrapper, *, buffered: bool = True) -> TextIOWrapper:
    stream.flush()
    buffered = buffered and not stream.write_through  # PYTHONUNBUFFERED: a line must not wait in a buffer
    raw = _Stdout(stream.fileno(), "w", closefd=False)
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
    except BrokenPipeError:  # the reader of the pipe has closed it, as head does
        _discard_output()
    except StdoutError as error:
        if code == exit_codes.OK:
            sys.stderr.write(f"Error: cannot write to stdout: {error.strerror}\n")
        _discard_output()
        code = exit_codes.FAILED
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _discard_output() -> None:
    """Redirect stdout to /dev/null: Python flushes the rest of the buffer at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
