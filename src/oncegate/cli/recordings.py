"""Recordings on the command line: files, folders, stdin and S3 prefixes, read in batches of documents."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import click
from msgspec import Struct

from oncegate.analysis.database import DeliveryPlace
from oncegate.analysis.recording import DocumentBatch
from oncegate.cli import exit_codes
from oncegate.cli.event_files import DAMAGED, JsonDocument, decompressed, documents, open_input, reason_of
from oncegate.cli.output import print_error, print_note
from oncegate.errors import MissingExtra
from oncegate.files import open_file

_STDIN: Final = "-"
_S3: Final = "s3://"
_COMPRESSED: Final = (".gz", ".zst", ".zstd")
_BATCH: Final = 1024 * 1024  # bytes of documents
_SAMPLE: Final = 2 * 1024 * 1024  # bytes of documents at each place of the sample
_MOST_PLACES: Final = 8  # places of the sample


class RecordingFile(Protocol):
    """A file of a recording. `size` is its size as it is stored."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    def open(self) -> Any:
        """Open the stored bytes, as a context manager."""


class LocalFile(Struct, frozen=True):
    """A file on this machine. `name` is what the user has called it."""

    name: str
    path: Path
    size: int

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        with open_file(self.path) as stream:
            yield stream


def find_recordings(names: Sequence[str], folder: Path) -> list[RecordingFile]:
    """The files that the arguments name. stdin and named pipes are copied into the folder, because they can be read
    only once. Exits with a message if a file cannot be read, or if there is no file."""
    found: list[RecordingFile] = []
    for name in dict.fromkeys(names):
        found += _of_s3(name) if name.startswith(_S3) else _local(name, folder)
    if not found:
        print_error(f"there is no file in {', '.join(names)}")
        raise click.exceptions.Exit(exit_codes.USAGE)
    return found


def text_size(files: Sequence[RecordingFile]) -> int:
    """About how many bytes of text the files hold. JSON is compressed to about a tenth."""
    return sum(each.size * 10 if each.name.endswith(_COMPRESSED) else each.size for each in files)


def _of_s3(name: str) -> Sequence[RecordingFile]:
    try:
        from oncegate.aws.objects import list_objects, read_place
    except ImportError as error:
        raise MissingExtra("a recording in S3", "aws") from error
    return list_objects(read_place(name))


def _local(name: str, folder: Path) -> list[RecordingFile]:
    path = Path(name)
    if name == _STDIN or path.is_fifo():
        return [_copied(name, folder)]
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file() and not _is_hidden(each.relative_to(path)))
        return [LocalFile(str(each), each, each.stat().st_size) for each in files if each.stat().st_size]
    with open_input(name):  # exits if the file cannot be read
        return [LocalFile(name, path, path.stat().st_size)]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _copied(name: str, folder: Path) -> RecordingFile:
    copy = folder / f"input-{len(list(folder.iterdir()))}"
    with copy.open("wb") as target:
        if name == _STDIN:
            shutil.copyfileobj(sys.stdin.buffer, target, _BATCH)
        else:
            with open_file(name) as stream:
                shutil.copyfileobj(stream, target, _BATCH)
    return LocalFile("stdin" if name == _STDIN else name, copy, copy.stat().st_size)


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────


def batches(files: Sequence[RecordingFile]) -> Iterator[DocumentBatch]:
    """All documents of the files, in order."""
    number = 0
    for index, file in enumerate(files):
        with _reading(file) as (stored, stream):
            before = 0
            for held in _held(_undamaged(stream, file.name)):
                position = stored.tell() if stored.seekable() else before + sum(len(raw) for _, raw in held)
                yield DocumentBatch(index, number, held, max(position - before, 0))
                number, before = number + len(held), position


def _undamaged(stream: BinaryIO, name: str) -> Iterator[JsonDocument]:
    """The documents of a stream. A file that is damaged, such as a compressed file without its end, is read up to the
    damage."""
    try:
        yield from documents(stream)
    except DAMAGED as error:
        print_note(f"{name} is damaged and was read only up to the damage: {reason_of(error)}")


@contextmanager
def _reading(file: RecordingFile) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The stored bytes of a file, and the same bytes without their compression."""
    try:
        with file.open() as stored:
            yield stored, decompressed(stored)
    except DAMAGED as error:
        print_error(f"cannot read {file.name}: {reason_of(error)}")
        raise click.exceptions.Exit(exit_codes.USAGE) from error


def _held(found: Iterable[JsonDocument]) -> Iterator[list[tuple[int, bytes]]]:
    held: list[tuple[int, bytes]] = []
    size = 0
    for document in found:
        held.append((document.offset, document.raw))
        size += len(document.raw)
        if size >= _BATCH:
            yield held
            held, size = [], 0
    if held:
        yield held


def sample(files: Sequence[RecordingFile]) -> Iterator[DocumentBatch]:
    """Documents from several places of the recording: the beginnings of some files, and places within a large file
    that has one document per line."""
    step = max(1, len(files) // _MOST_PLACES)
    for index, file in enumerate(files[::step]):
        with _reading(file) as (stored, stream):
            yield DocumentBatch(index, 0, _first_documents(stream))
            if stream is stored and stored.seekable() and len(files) < _MOST_PLACES:
                for place in range(1, _MOST_PLACES):
                    offset = file.size * place // _MOST_PLACES
                    if offset > stored.tell():
                        stored.seek(offset)
                        stored.readline()
                        yield DocumentBatch(index, 0, _first_documents(stored))


def _first_documents(stream: BinaryIO) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    size = 0
    with suppress(*DAMAGED):
        for document in documents(stream):
            found.append((document.offset, document.raw))
            size += len(document.raw)
            if size >= _SAMPLE:
                break
    return found


def fetch(files: Sequence[RecordingFile], places: Iterable[DeliveryPlace]) -> Mapping[DeliveryPlace, bytes]:
    """The documents at these places. A compressed file is read from its start, once."""
    found: dict[DeliveryPlace, bytes] = {}
    by_file: dict[int, list[DeliveryPlace]] = {}
    for place in sorted(places):
        by_file.setdefault(place.file, []).append(place)
    for index, wanted in by_file.items():
        with _reading(files[index]) as (_, stream):
            position, last = 0, b""
            for place in wanted:
                if place.offset < position:  # another event of the same document
                    found[place] = last
                    continue
                _skip(stream, place.offset - position)
                found[place] = last = stream.read(place.size)
                position = place.offset + place.size
    return found


def _skip(stream: BinaryIO, count: int) -> None:
    if count and stream.seekable():
        stream.seek(count, 1)
        return
    while count > 0 and (skipped := len(stream.read(min(count, _BATCH)))):
        count -= skipped
