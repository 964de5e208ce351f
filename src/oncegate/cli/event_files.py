"""Documents: the JSON texts in a file, which may hold one, an array, one on each line, or several one after the other.

Lines are read one at a time, so a file of them may be of any size. A document that spans lines is read whole, as text.
"""

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import click
import msgspec
from msgspec import Raw, Struct

from oncegate.cli import exit_codes
from oncegate.cli.output import Progress, say_error
from oncegate.events import Event
from oncegate.sources import NO_HINTS, Hints, read

_MARK = b"\xef\xbb\xbf"
# What a line of a document that goes on in the next one ends with, and a line that is a document by itself cannot.
_OPEN = (b"[", b"{", b",", b":")
_BLANK = re.compile(r"[ \t\r\n]*")


class JsonDocument(Struct, frozen=True):
    """`line` is where it starts, None if it is all that the file holds."""

    raw: bytes
    line: int | None = None


def documents(stream: BinaryIO) -> Iterator[JsonDocument]:
    """The documents of a stream, in order. What cannot be read is one too, so that its place can be told."""
    lines = _lines(stream)
    head = [document for _, document in zip(range(2), lines, strict=False)]
    if len(head) < 2:
        return _whole(head[0].raw) if head else iter(())
    if _has_lines(head[0].raw, head[1].raw):
        return chain(head, lines)
    blank = b"\n" * ((head[0].line or 1) - 1)  # so that lines are counted from the beginning
    gap = b"\n" * ((head[1].line or 2) - (head[0].line or 1))
    return _whole(blank + head[0].raw + gap + head[1].raw + b"\n" + stream.read())


def items(raw: bytes) -> list[Raw] | None:
    """The texts of an array's items, which are cut out without making values of them; None for what is no array."""
    if not raw.lstrip().startswith(b"["):
        return None
    try:
        return msgspec.json.decode(raw, type=list[Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None


def _lines(stream: Iterable[bytes]) -> Iterator[JsonDocument]:
    for number, line in enumerate(stream, 1):
        if text := line.strip():
            yield JsonDocument(text, number)


def _has_lines(first: bytes, second: bytes) -> bool:
    """Whether each line is a document. The first may be broken if the second is whole and does not go on with it."""
    return _is_whole(first) or (not first.endswith(_OPEN) and _is_whole(second, b"{"))


def _is_whole(raw: bytes, start: bytes = b"") -> bool:
    """Whether it is one JSON text, without making values of it. A byte order mark is for whoever reads it to refuse."""
    try:
        msgspec.json.decode(raw.removeprefix(_MARK), type=Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return raw.startswith(start)


def _whole(raw: bytes) -> Iterator[JsonDocument]:
    """A document over many lines; else several of them; else lines of which the first is broken."""
    if _is_whole(raw):
        return iter([JsonDocument(raw)])
    lines = list(_lines(io.BytesIO(raw)))
    if len(lines) > 1 and _is_whole(lines[1].raw, b"{"):
        return iter(lines)
    return _one_after_the_other(raw)


def _one_after_the_other(raw: bytes) -> Iterator[JsonDocument]:
    """Documents with nothing but white space between them, as tools that print JSON leave them behind."""
    starts = _starts(raw)
    if len(starts) < 2:
        yield JsonDocument(raw)
        return
    for start, end in zip(starts, [*starts[1:], len(raw)], strict=True):
        yield JsonDocument(raw[start:end].strip(), 1 + raw.count(b"\n", 0, start))


def _starts(raw: bytes) -> list[int]:
    """Where documents start; what comes after the last that can be read is one more."""
    text, at = raw.decode("latin-1"), 0  # a character for each byte: only brackets and quotes matter here
    starts: list[int] = []
    scan = json.JSONDecoder(strict=False).raw_decode
    while True:
        at = _BLANK.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if at == len(text):
            return starts
        starts.append(at)
        try:
            _, at = scan(text, at)
        except (ValueError, RecursionError):
            return starts


# Files that a command reads: by name, or what comes on stdin.


_STDIN = "-"


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """The file, to be read; one that cannot be ends the command with a sentence."""
    try:
        if file == _STDIN:
            yield sys.stdin.buffer
            return
        with open(file, "rb") as stream:
            yield stream
    except OSError as error:
        say_error(f"cannot read {click.format_filename(file)}: {error.strerror or error}")
        raise click.exceptions.Exit(exit_codes.FAILED) from error


# Files of events: what is read from them, one document at a time, and where each event was found.


class FoundEvent(Struct, frozen=True):
    """An event where it was found: the file, the line its document starts at unless that is the whole file, and which
    of the events in the document it is."""

    number: int
    file: str
    line: int | None
    index: int
    alone: bool
    event: Event

    @property
    def place(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file}{line}" if self.alone else f"{self.file}{line}#{self.index}"


def refuse_unreadable(files: Sequence[str]) -> None:
    """Say what cannot be read before anything is shown. A pipe can be opened only once, so it is left alone."""
    for file in files:
        if not Path(file).is_fifo():
            with opened(file):
                pass


def events_of(files: Sequence[str], hints: Hints = NO_HINTS) -> Iterator[FoundEvent]:
    """The events of the files, one document at a time."""
    number = 0
    with Progress("events") as progress:
        for file in files:
            name = click.format_filename(file)
            with opened(file) as stream:
                for document in documents(stream):
                    alone, events = _within(document.raw, hints)
                    for index, event in enumerate(events, 1):
                        number += 1
                        progress.at(number)
                        yield FoundEvent(number, name, document.line, index, alone, event)


def _within(raw: bytes, hints: Hints) -> tuple[bool, Iterable[Event]]:
    """Whether a document holds one event only, and what it holds. The items of an array are read one by one, since all
    of them at once would take many times its size."""
    cut = items(raw)
    if cut is not None:
        return False, chain.from_iterable(read(b"[%b]" % item, hints=hints) for item in cut)
    events = read(raw, hints=hints)
    return len(events) == 1, events
