"""Read events from files of JSON: one document, an array, one document per line, or several documents in a row.

A file with one document per line is read line by line, so its size does not matter. A document that spans lines is
read as a whole.
"""

import io
import json
import os
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
from oncegate.cli.output import Progress, print_error
from oncegate.events import Event
from oncegate.files import open_file
from oncegate.sources import NO_HINTS, Hints, read

_STDIN = "-"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A line that ends with one of these characters continues in the next line: no complete document ends with them.
_CONTINUES = (b"[", b"{", b",", b":")
_BLANK = re.compile(r"[ \t\r\n]*")


@contextmanager
def open_input(file: str) -> Iterator[BinaryIO]:
    """Open a file for reading, or stdin for `-`. Exits with a message if the file cannot be read."""
    try:
        if file == _STDIN:
            yield sys.stdin.buffer
            return
        with open_file(file) as stream:
            yield stream
    except OSError as error:
        print_error(f"cannot read {file}: {error.strerror or error}")
        raise click.exceptions.Exit(exit_codes.USAGE) from error


# ── documents ─────────────────────────────────────────────────────────────────────────────────────────────


class JsonDocument(Struct, frozen=True):
    """`line` is the number of the first line of the document; None if the file has no other document."""

    raw: bytes
    line: int | None = None


def documents(stream: BinaryIO) -> Iterator[JsonDocument]:
    """The documents of a stream, in order. Unreadable documents are included, so that their places can be reported."""
    read_lines: list[bytes] = []  # unchanged, because a document that spans lines must keep its white space
    head: list[JsonDocument] = []
    for line in stream:
        read_lines.append(line)
        if text := line.strip():
            head.append(JsonDocument(text, len(read_lines)))
        if len(head) == 2:
            break
    if len(head) < 2:
        return _split(head[0].raw) if head else iter(())
    if _is_line_format(head[0].raw, head[1].raw):
        return chain(head, _lines(stream, len(read_lines) + 1))
    return _split(b"".join(read_lines) + stream.read())


def raw_documents(stream: BinaryIO) -> Iterator[tuple[bytes, str | None]]:
    """The bytes of each document of a stream, and its place, such as `line 3`. Each item of an array counts as a
    document. The place is None if the file has one document."""
    for document in documents(stream):
        line = None if document.line is None else f"line {document.line}"
        items = array_items(document.raw)
        if items is None:
            yield document.raw, line
            continue
        for number, item in enumerate(items, 1):
            yield bytes(item), ", ".join(filter(None, (line, f"item {number}")))


def array_items(raw: bytes) -> list[Raw] | None:
    """The raw texts of the items of an array, without decoding them; None if the document is not an array."""
    if not raw.lstrip().startswith(b"["):
        return None
    try:
        return msgspec.json.decode(raw, type=list[Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None


def _lines(stream: Iterable[bytes], first: int = 1) -> Iterator[JsonDocument]:
    for number, line in enumerate(stream, first):
        if text := line.strip():
            yield JsonDocument(text, number)


def _is_line_format(first: bytes, second: bytes) -> bool:
    """Whether each line is a document. The first line may be broken if the second line is a complete document and does
    not continue the first line."""
    return _is_complete(first) or (not first.endswith(_CONTINUES) and _is_complete(second, b"{"))


def _is_complete(raw: bytes, start: bytes = b"") -> bool:
    """Whether the bytes are one JSON document that begins with `start`. A byte order mark is allowed here, because the
    code that reads the document refuses it later with a clear message."""
    try:
        msgspec.json.decode(raw.removeprefix(_BYTE_ORDER_MARK), type=Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return raw.startswith(start)


def _split(raw: bytes) -> Iterator[JsonDocument]:
    """Split the bytes into documents. The bytes are one document that spans lines; otherwise one document per line, the
    first of them broken; otherwise several documents in a row."""
    if _is_complete(raw):
        return iter([JsonDocument(raw)])
    lines = list(_lines(io.BytesIO(raw)))
    if len(lines) > 1 and _is_complete(lines[1].raw, b"{"):
        return iter(lines)
    return _documents_in_a_row(raw)


def _documents_in_a_row(raw: bytes) -> Iterator[JsonDocument]:
    """Documents with only white space between them, such as the output of tools that print JSON."""
    starts = _starts(raw)
    if len(starts) < 2:
        yield JsonDocument(raw)
        return
    for start, end in zip(starts, [*starts[1:], len(raw)], strict=True):
        yield JsonDocument(raw[start:end].strip(), 1 + raw.count(b"\n", 0, start))


def _starts(raw: bytes) -> list[int]:
    """The offsets at which documents start. The text after the last readable document counts as one more document."""
    text, at = raw.decode("latin-1"), 0  # one character per byte: only brackets and quotes matter here
    starts: list[int] = []
    scan = json.JSONDecoder(strict=False).raw_decode
    while True:
        at = _BLANK.match(text, at).end()  # type: ignore[union-attr]  # it always matches, also the empty text
        if at == len(text):
            return starts
        starts.append(at)
        try:
            _, at = scan(text, at)
        except (ValueError, RecursionError):
            return starts


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────


class FoundEvent(Struct, frozen=True):
    """An event and its place: the file, the first line of its document (None if the document is the whole file), and
    its index within the document. `alone` means that the document holds no other event."""

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


def check_readable(files: Sequence[str]) -> None:
    """Exit before anything is printed if a file cannot be read. Named pipes are skipped, because a named pipe can be
    opened only once."""
    for file in files:
        if not Path(file).is_fifo():
            with open_input(file):
                pass


def events_of(files: Sequence[str], hints: Hints = NO_HINTS) -> Iterator[FoundEvent]:
    """The events of the files, one document at a time."""
    number = 0
    with Progress("events") as progress:
        for file in files:
            name = os.fsencode(file).decode("utf-8", "backslashreplace")  # as JSON needs it
            with open_input(file) as stream:
                for document in documents(stream):
                    alone, events = _within(document.raw, hints)
                    for index, event in enumerate(events, 1):
                        number += 1
                        progress.update(number)
                        yield FoundEvent(number, name, document.line, index, alone, event)


def _within(raw: bytes, hints: Hints) -> tuple[bool, Iterable[Event]]:
    """Whether a document is exactly one event (an array never is), and the events of the document. The items of an
    array are read one by one: decoding all of them at once would need many times the size of the array."""
    items = array_items(raw)
    if items is not None:
        return False, chain.from_iterable(read(b"[%b]" % item, hints=hints) for item in items)
    events = read(raw, hints=hints)
    return len(events) == 1, events
