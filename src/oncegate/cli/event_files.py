"""Read events from files of JSON: one document, an array, one document per line, or several documents in a row.

Files may be compressed with gzip or zstd. A file with one document per line is read line by line, and a large file of
another form piece by piece, so the size of a file does not matter.
"""

import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import click
import msgspec
from msgspec import Raw, Struct

from oncegate.analysis.log_lines import is_log_line
from oncegate.cli import exit_codes
from oncegate.cli.output import Progress, print_error
from oncegate.errors import MissingExtra
from oncegate.events import Event
from oncegate.files import open_file
from oncegate.sources import NO_HINTS, Hints, read

_STDIN = "-"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A line that ends with one of these characters continues in the next line: no complete document ends with them.
_CONTINUES = (b"[", b"{", b",", b":")
DAMAGED = (OSError, EOFError, zlib.error)  # what a stream raises if it cannot be read or decompressed
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# A file that is not one document per line is read as a whole up to this size, and piece by piece beyond it.
_MOST_WHOLE = 32 * 1024 * 1024
_CHUNK = 1024 * 1024
# Where one document may end and the next begin: in a row, and in an array. The same bytes can also be in a string.
_IN_A_ROW = re.compile(rb"[}\]]\s*+(?=[{\[])")
_IN_ARRAY = re.compile(rb"[}\]]\s*+,\s*+(?=[{\[])")
# The longest document that is searched for its end beyond such bytes, and how often its end is searched.
_LONGEST_PIECE = 4 * 1024 * 1024
_MOST_ENDS = 256


@contextmanager
def open_input(file: str) -> Iterator[BinaryIO]:
    """Open a file for reading, or stdin for `-`, and decompress it. Exits with a message if the file cannot be read."""
    try:
        if file == _STDIN:
            yield decompressed(sys.stdin.buffer)
            return
        with open_file(file) as stream:
            yield decompressed(stream)
    except DAMAGED as error:
        print_error(f"cannot read {file}: {reason_of(error)}")
        raise click.exceptions.Exit(exit_codes.USAGE) from error


def reason_of(error: BaseException) -> str:
    """Why a file cannot be read."""
    return getattr(error, "strerror", None) or str(error)


def decompressed(stream: Any) -> BinaryIO:
    """The stream without its compression. The first bytes show the compression, because names of exports vary."""
    start = stream.peek(4)[:4] if hasattr(stream, "peek") else b""
    if start.startswith(_GZIP):
        return cast("BinaryIO", gzip.open(stream))
    return _without_zstd(stream) if start == _ZSTD else stream


def _without_zstd(stream: BinaryIO) -> BinaryIO:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise MissingExtra("a file that is compressed with zstd", "analyze") from error
    return cast("BinaryIO", io.BufferedReader(_ZstdReader(zstd.open(stream), zstd.ZstdError), _CHUNK))


class _ZstdReader(io.RawIOBase):
    """A decompressed stream that raises OSError for damaged data, as gzip does."""

    def __init__(self, stream: Any, error: type[Exception]) -> None:
        self._stream, self._error = stream, error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._stream.read(len(buffer))
        except self._error as error:
            raise OSError(str(error)) from error
        buffer[: len(found)] = found
        return len(found)


# ── documents ─────────────────────────────────────────────────────────────────────────────────────────────


class JsonDocument(Struct, frozen=True, gc=False):
    """`line` is the number of the first line of the document; None if the file has no other document. `offset` is the
    position of its first byte in the file, after decompression."""

    raw: bytes
    line: int | None = None
    offset: int = 0


def documents(stream: BinaryIO) -> Iterator[JsonDocument]:
    """The documents of a stream, in order. Unreadable documents are included, so that their places can be reported."""
    read_lines: list[bytes] = []  # unchanged, because a document that spans lines must keep its white space
    head: list[JsonDocument] = []
    offset = 0
    for line in _first_lines(stream):
        read_lines.append(line)
        if text := line.strip():
            head.append(JsonDocument(text, len(read_lines), offset + line.index(text[:1])))
        offset += len(line)
        if len(head) == 2 or offset >= _MOST_WHOLE:
            break
    if len(head) == 2 and _is_line_format(head[0].raw, head[1].raw):
        return chain(head, _lines(stream, len(read_lines) + 1, offset))
    start = b"".join(read_lines)
    rest = stream.read(_MOST_WHOLE - len(start)) if len(start) < _MOST_WHOLE else b""
    whole = start + rest
    if len(whole) < _MOST_WHOLE:
        return _split(whole) if head else iter(())
    if not _begins_with_pieces(whole):
        return _split(whole + stream.read())
    return _pieces(chain([whole], iter(lambda: stream.read(_CHUNK), b"")))


def _begins_with_pieces(start: bytes) -> bool:
    """Whether the start of a large file is an array, or a complete document with another document after it. Otherwise
    the file is one large document, which must be read as a whole."""
    if start.lstrip()[:1] == b"[":
        return True
    return any(
        _is_complete(start[: each.start() + 1].strip()) for each in islice(_IN_A_ROW.finditer(start), _MOST_ENDS)
    )


def _first_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream. A line that is too long is cut."""
    return iter(lambda: stream.readline(_MOST_WHOLE), b"")


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


def _lines(stream: Iterable[bytes], first: int = 1, offset: int = 0) -> Iterator[JsonDocument]:
    for number, line in enumerate(stream, first):
        if text := line.strip():
            yield JsonDocument(text, number, offset if line.startswith(text) else offset + line.index(text))
        offset += len(line)


def _is_line_format(first: bytes, second: bytes) -> bool:
    """Whether each line is a document. The first line may be broken if the second line is a complete document and does
    not continue the first line. A line of a log is a time and a document."""
    if _is_complete(first) or is_log_line(first) or is_log_line(second):
        return True
    return not first.endswith(_CONTINUES) and _is_complete(second, b"{")


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
    text = raw.strip()
    if _is_complete(text):
        return iter([JsonDocument(text, offset=raw.index(text[:1]))])
    lines = list(_lines(io.BytesIO(raw)))
    if len(lines) > 1 and _is_complete(lines[1].raw, b"{"):
        return iter(lines)
    found = list(_pieces(iter([raw])))
    return iter(found if len(found) > 1 else [JsonDocument(text, offset=raw.index(text[:1]))])


def _pieces(chunks: Iterator[bytes]) -> Iterator[JsonDocument]:
    """The documents of a large array, or documents with only white space between them, such as the objects that
    Firehose writes. A document that cannot be read ends where the next document may begin."""
    held, at, offset, line = next(chunks, b""), 0, 0, 1  # `at` is the position in `held` of the next document
    boundary = _IN_A_ROW
    if held.lstrip()[:1] == b"[" and not _is_complete(held[: _first_end(held)].strip()):
        boundary, held = _IN_ARRAY, held.replace(b"[", b" ", 1)
    is_last = False
    while True:
        end, following = _end_of_piece(held, at, boundary, is_last=is_last)
        if end is None:
            chunk = next(chunks, b"")
            held, offset, at, is_last = held[at:] + chunk, offset + at, 0, not chunk
            if is_last and boundary is _IN_ARRAY:
                held = held.rstrip().removesuffix(b"]")
            continue
        raw = held[at:end]
        if not (text := raw.strip()):
            return
        blank = raw.index(text[:1])
        line += raw.count(b"\n", 0, blank)
        yield JsonDocument(text, line, offset + at + blank)
        line += held.count(b"\n", at + blank, following)
        at = following


def _first_end(held: bytes) -> int:
    found = _IN_A_ROW.search(held)
    return len(held) if found is None else found.start() + 1


def _end_of_piece(held: bytes, at: int, boundary: re.Pattern[bytes], *, is_last: bool) -> tuple[int | None, int]:
    """The end of the document that begins at `at`, and the start of the next document. The end is None if more bytes
    are needed."""
    first: re.Match[bytes] | None = None
    for count, found in enumerate(boundary.finditer(held, at)):
        end = found.start() + 1
        if _is_complete(held[at:end].strip()):
            return end, found.end()
        first = first or found
        if count == _MOST_ENDS or end - at > _LONGEST_PIECE:
            return first.start() + 1, first.end()
    if not is_last and len(held) - at <= 2 * _LONGEST_PIECE:
        return None, 0
    if first is None or _is_complete(held[at:].strip()):
        return len(held), len(held)
    return first.start() + 1, first.end()


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
