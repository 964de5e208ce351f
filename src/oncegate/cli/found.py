"""Files of events: what is read from them, one document at a time, and where each event was found."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import click
from msgspec import Struct

from oncegate.cli.documents import documents, items
from oncegate.cli.files import opened
from oncegate.cli.output import Progress
from oncegate.events import Event
from oncegate.sources import NO_HINTS, Hints, read


class Found(Struct, frozen=True):
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


def events_of(files: Sequence[str], hints: Hints = NO_HINTS) -> Iterator[Found]:
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
                        yield Found(number, name, document.line, index, alone, event)


def _within(raw: bytes, hints: Hints) -> tuple[bool, Iterable[Event]]:
    """Whether a document holds one event only, and what it holds. The items of an array are read one by one, since all
    of them at once would take many times its size."""
    cut = items(raw)
    if cut is not None:
        return False, chain.from_iterable(read(b"[%b]" % item, hints=hints) for item in cut)
    events = read(raw, hints=hints)
    return len(events) == 1, events
