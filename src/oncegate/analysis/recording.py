"""Read a recording in batches of documents, on all processors, and write one CSV row for each delivery.

The caller splits files into documents, because only the start of a document shows where the next begins. Each worker
process reads the events of its batches and appends their rows to a file of its own.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import msgspec
from msgspec import Struct

from oncegate.analysis.delivery_rows import RecordedDelivery, Rows
from oncegate.analysis.log_lines import logged_documents
from oncegate.sources import NO_HINTS, Hints, read

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

ITEMS: Final = 1 << 20  # positions for each document: a position is the number of the document * ITEMS + item
MOST_SHOWN: Final = 100  # unreadable documents that are listed; all are counted
_MOST_WAITING: Final = 2  # batches for each worker
SMALL: Final = 8 * 1024 * 1024  # bytes; a smaller recording is read in this process, because processes start slowly


class DocumentBatch(Struct, frozen=True):
    """Documents of one file, each with its offset. `first` is the number of the first of them in the recording. `read`
    is the number of bytes that were read from the file for this batch, for the progress."""

    file: int
    first: int
    documents: list[tuple[int, bytes]]
    read: int = 0


class UnreadableDocument(Struct, frozen=True):
    """A document, or an event in a document, that cannot be read."""

    file: int
    place: int
    problem: str


class BatchResult(Struct, frozen=True):
    """What was found in batches. `kinds` maps the number of a type to its source and name. `frames` are messages of a
    transport, which are no events."""

    documents: int = 0
    deliveries: int = 0
    frames: int = 0
    unreadable: int = 0
    shown: tuple[UnreadableDocument, ...] = ()
    kinds: Mapping[int, tuple[str, str | None]] = msgspec.field(default_factory=dict)

    def plus(self, other: "BatchResult") -> "BatchResult":
        return BatchResult(
            self.documents + other.documents,
            self.deliveries + other.deliveries,
            self.frames + other.frames,
            self.unreadable + other.unreadable,
            (self.shown + other.shown)[:MOST_SHOWN],
            {**self.kinds, **other.kinds},
        )


class RowOptions(Struct, frozen=True):
    """How rows are made: the combinations of fields for each type, the strategies of the user, and the hints of the
    settings."""

    found: Mapping[int, Sequence[str]] = msgspec.field(default_factory=dict)
    own: tuple[str, ...] = ()
    hints: Hints = NO_HINTS

    def rows(self) -> Rows:
        return Rows(self.found, self.own)


def recorded_events(batch: DocumentBatch, hints: Hints) -> Iterator[RecordedDelivery]:
    """The events of a batch, also those that cannot be read."""
    for number, (place, raw) in enumerate(batch.documents, batch.first):
        item = 0
        for logged in logged_documents(raw):
            for event in read(logged.raw, hints=hints):
                yield RecordedDelivery(
                    number * ITEMS + item, batch.file, place, len(raw), item, event, logged.logged_at
                )
                item += 1


class RowWriter:
    """Writes the rows of batches to a stream."""

    def __init__(self, options: RowOptions, stream: TextIO) -> None:
        self._rows = options.rows()
        self._hints = options.hints
        self._stream = stream

    def write(self, batch: DocumentBatch) -> BatchResult:
        lines: list[str] = []
        shown: list[UnreadableDocument] = []
        frames = unreadable = 0
        for recorded in recorded_events(batch, self._hints):
            event = recorded.event
            if event.problem is not None:
                unreadable += 1
                if len(shown) < MOST_SHOWN:
                    shown.append(UnreadableDocument(batch.file, recorded.place, event.problem))
            elif event.frame is not None:
                frames += 1
            else:
                lines.append(self._rows.line(recorded))
        if lines:
            self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()
        kinds = dict(self._rows.kinds)
        return BatchResult(len(batch.documents), len(lines), frames, unreadable, tuple(shown), kinds)


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────


_writer: RowWriter  # of this worker process


def _start_worker(options: RowOptions, folder: str) -> None:
    global _writer  # noqa: PLW0603  # a process pool offers no other place for the state of a worker
    _writer = RowWriter(options, (Path(folder) / f"rows-{os.getpid()}.csv").open("w", encoding="ascii"))


def _write_in_worker(batch: DocumentBatch) -> BatchResult:
    return _writer.write(batch)


def write_rows(
    batches: Iterable[DocumentBatch],
    options: RowOptions,
    folder: Path,
    *,
    size: int | None,
    workers: int | None = None,
    on_batch: Callable[[int], object] = lambda _size: None,
) -> BatchResult:
    """Write the rows of all batches to CSV files in the folder. `size` is the number of bytes to read, if it is known.
    `on_batch` is called with the number of bytes of each batch that was read."""
    count = min(workers or len(os.sched_getaffinity(0)), 16)
    if count == 1 or (size is not None and size < SMALL):
        with (folder / "rows-0.csv").open("w", encoding="ascii") as stream:
            writer, total = RowWriter(options, stream), BatchResult()
            for batch in batches:
                total = total.plus(writer.write(batch))
                on_batch(batch.read)
            return total
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # spawn, because the process may have threads, such as the thread of the progress bar
    context = get_context("spawn")
    with ProcessPoolExecutor(count, context, _start_worker, (options, str(folder))) as pool:
        return _collected(pool, batches, count * _MOST_WAITING, on_batch)


def _collected(
    pool: "ProcessPoolExecutor",
    batches: Iterable[DocumentBatch],
    most_waiting: int,
    on_batch: Callable[[int], object],
) -> BatchResult:
    total = BatchResult()
    waiting: deque[tuple[Future[BatchResult], int]] = deque()

    def collect() -> None:
        nonlocal total
        future, size = waiting.popleft()
        total = total.plus(future.result())
        on_batch(size)

    for batch in batches:
        waiting.append((pool.submit(_write_in_worker, batch), batch.read))
        while len(waiting) > most_waiting:
            collect()
    while waiting:
        collect()
    return total
