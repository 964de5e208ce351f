"""Stdout and stderr as they are found, and as they are left."""

import os
import signal
import sys
from collections.abc import Callable
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

from oncegate.cli import exit_codes


class Unwritten(OSError):
    """Stdout did not take what was printed: a full disk, and not a reader that has gone."""


class _Stdout(FileIO):
    """Tells its own failures from those of other files, and writes all that it is given: a signal may cut a write."""

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        whole = len(left)
        try:
            while left:
                left = left[super().write(left) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Unwritten(error.errno, error.strerror) from None
        return whole


def ready() -> str | None:
    """Make the streams fit for any text. What is wrong with stdout, if it cannot be printed to."""
    if sys.stderr is None:  # closed by whoever started this; what is opened next would else take its place
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # it stays open to the end
    if sys.stdout is None:
        return "Error: stdout is closed; to have nothing printed, write >/dev/null"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that cannot show a character gets its escape
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout = _told_apart(sys.stdout)
    return None


def unbuffer() -> None:
    """Remove the buffer of stdout, for a command that logs from threads. A thread that writes to a full pipe holds the
    buffer's lock, and Python acquires that lock at exit."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout = _told_apart(sys.stdout, buffered=False)


def _told_apart(stream: TextIOWrapper, *, buffered: bool = True) -> TextIOWrapper:
    stream.flush()
    raw = _Stdout(stream.fileno(), "w", closefd=False)
    return TextIOWrapper(
        BufferedWriter(raw) if buffered else raw,
        stream.encoding,
        "backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through or not buffered,
    )


def printing(run: Callable[[], int]) -> int:
    """What a command comes to, once all that it printed is written. From then on Ctrl-C ends the process as it is."""
    code = exit_codes.OK
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as head does
        _drop_the_rest()
    except Unwritten as error:
        if code == exit_codes.OK:
            sys.stderr.write(f"Error: cannot write to stdout: {error.strerror}\n")
        _drop_the_rest()
        code = exit_codes.FAILED
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _drop_the_rest() -> None:
    """Or Python would try to write it once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
