"""Show the progress on stderr: on a terminal one line that is overwritten, elsewhere a line for each stage."""

import shutil
from types import TracebackType
from typing import TextIO

_CLEAR = "\r\x1b[2K"


class Progress:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._stage = ""

    def stage(self, name: str) -> None:
        self._stage = name
        self._write(f"{name} …" if self._live else f"{name} …\n")

    def step(self, text: str) -> None:
        if self._live:
            self._write(f"{self._stage}: {text}")

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._write("")

    def _write(self, text: str) -> None:
        if self._live:
            # A line longer than the terminal would wrap, and only its last part would be overwritten.
            text = _CLEAR + text[: shutil.get_terminal_size().columns - 1]
        self._stream.write(text)
        self._stream.flush()
