"""Read the events that earlier code has processed, and record them as completed in a store."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final, Literal, Protocol, TypeAlias

import click
import msgspec
from msgspec import Struct

from oncegate import keys
from oncegate.claims import EventSummary, Granted, seed
from oncegate.cli.event_files import documents, open_input
from oncegate.clocks import since_boot, wall
from oncegate.errors import MissingKey, StoreUnavailable
from oncegate.events import Event, Key
from oncegate.gate.engine import Engine
from oncegate.gate.job import Job, summary_of
from oncegate.gate.observers import Observers
from oncegate.gate.options import GateConfig
from oncegate.instances import owners
from oncegate.previous.base import BadRow, OldRow, expiry_column, item_columns, pages, row_of
from oncegate.previous.row_keys import RowKeys
from oncegate.sources import Hints, read
from oncegate.stores.base import Store

LineFormat: TypeAlias = Literal["auto", "rows", "events"]
_PEEK: Final = 100  # readable rows that are read before anything is written
_MOST_PEEKED: Final = 100_000
_BATCH: Final = 500
_SHOWN_PROBLEMS: Final = 10


class RecordedEvent(Struct, frozen=True):
    """An event that was read from a whole payload."""

    position: str
    event: Event


Item: TypeAlias = OldRow | BadRow | RecordedEvent


class Candidate(Struct, frozen=True):
    """An event to record as completed. `expires_at` is in microseconds since 1970; None means the gate's retention."""

    position: str
    key: Key
    about: EventSummary
    expires_at: int | None
    event: Event | None = None


class Counts(Struct):
    """What became of the rows. `same_key` counts the rows with the key of another row, and `invalid_expiry` the rows
    whose expiry is not a time. `last_expiry` is the latest expiry found; `unending` counts the rows without one."""

    read: int = 0
    seeded: int = 0
    already_there: int = 0
    expired: int = 0
    unreadable: int = 0
    same_key: int = 0
    invalid_expiry: int = 0
    problems: list[BadRow] = msgspec.field(default_factory=list)
    last_expiry: int = 0
    unending: int = 0

    def add_problem(self, position: str, problem: str) -> None:
        self.unreadable += 1
        if len(self.problems) < _SHOWN_PROBLEMS:
            self.problems.append(BadRow(position, problem))

    def add_expiry(self, item: Item) -> None:
        if isinstance(item, OldRow) and item.expires_at is not None:
            self.last_expiry = max(self.last_expiry, item.expires_at)
        elif isinstance(item, OldRow):
            self.unending += 1
            self.invalid_expiry += item.has_invalid_expiry

    @property
    def until(self) -> int | None:
        """The time at which the last row expires; None if a row does not expire or if there is no row."""
        return self.last_expiry if self.last_expiry and not self.unending else None


class Sink(Protocol):
    """Takes the events to record. `finish` is called after the last event."""

    def add(self, candidates: Sequence[Candidate], counts: Counts) -> None: ...

    def add_expired(self, candidate: Candidate) -> None: ...

    def finish(self, counts: Counts) -> None: ...


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────


def lines_of(file: str, line_format: LineFormat, expires: str | None, hints: Hints) -> Iterator[Item]:
    """The rows and events of a file with one JSON document per line. An object without inner objects or lists is a row,
    and any other document is the payload of events."""
    name = click.format_filename(file)
    with open_input(file) as stream:
        for document in documents(stream):
            place = name if document.line is None else f"{name}:{document.line}"
            columns = _columns(document.raw, line_format)
            if columns is not None:
                column = expiry_column(columns, expires)
                yield row_of(place, columns, None if column is None else columns.get(column))
            elif line_format == "rows":
                yield BadRow(place, "the line is not a JSON object")
            else:
                yield from (RecordedEvent(place, event) for event in read(document.raw, hints=hints))


def _columns(raw: bytes, line_format: LineFormat) -> dict[str, Any] | None:
    """The columns of a row; None if the document is not a row."""
    if line_format == "events":
        return None
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict) or not decoded:
        return None
    if decoded.keys() == {"Item"} and isinstance(decoded["Item"], dict):  # an export of a DynamoDB table to S3
        with suppress(ValueError):
            return item_columns(decoded["Item"])
    is_flat = not any(isinstance(value, dict | list) for value in decoded.values())
    return decoded if is_flat or line_format == "rows" else None


class Seeding:
    """Makes candidates from items, and passes them to a sink in batches. `seen` is called with the number of items read
    so far."""

    def __init__(self, row_keys: RowKeys, strategy: keys.Strategy, sink: Sink, seen: Callable[[int], None]) -> None:
        self._row_keys = row_keys
        self._strategy = strategy
        self._sink = sink
        self._seen = seen
        self.counts = Counts()

    def run(self, items: Iterable[Item]) -> Counts:
        for page in pages(self._candidates(items), _BATCH):
            self._sink.add(page, self.counts)
        self._sink.finish(self.counts)
        return self.counts

    def _candidates(self, items: Iterable[Item]) -> Iterator[Candidate]:
        counts = self.counts
        for item in items:
            counts.read += 1
            counts.add_expiry(item)
            self._seen(counts.read)
            try:
                candidate = self._candidate(item)
            except ValueError as error:
                counts.add_problem(item.position, str(error))
                continue
            if candidate.expires_at is not None and candidate.expires_at <= wall():
                counts.expired += 1
                self._sink.add_expired(candidate)
            else:
                yield candidate

    def _candidate(self, item: Item) -> Candidate:
        if isinstance(item, BadRow):
            raise ValueError(item.problem)
        if isinstance(item, OldRow):
            key, about = self._row_keys.key(item)
            return Candidate(item.position, key, about, item.expires_at)
        event = item.event
        return Candidate(item.position, key_of(event, self._strategy), summary_of(event), None, event)


def key_of(event: Event, strategy: keys.Strategy) -> Key:
    """The key of a recorded event. Raises ValueError if it has none."""
    if event.problem is not None or event.frame is not None:
        raise ValueError(event.problem or f"not an event: {event.frame}")
    try:
        return strategy(event)
    except MissingKey as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        raise ValueError(f"its key function raised {type(error).__name__}: {error}") from error


def peeked(items: Iterator[Item]) -> tuple[list[Item], Iterator[Item]]:
    """The first items, and an iterator over all items. Items that cannot be read do not count, so that a cluster of
    them does not hide the columns of the others."""
    first: list[Item] = []
    readable = 0
    for item in items:
        first.append(item)
        readable += isinstance(item, OldRow) or (isinstance(item, RecordedEvent) and item.event.problem is None)
        if readable == _PEEK or len(first) == _MOST_PEEKED:
            break
    return first, chain(first, items)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────


class MergedEvent(Struct, frozen=True):
    """An event to record. `expires_at` is the latest expiry of the rows with this key; 0 if no row expires. `unending`:
    a row does not expire."""

    key: bytes
    expires_at: int
    unending: bool
    about: EventSummary


class MergedEvents:
    """The events to record, one for each key. Of the rows with one key, the longest expiry counts.

    A record cannot be extended after it was written, so all rows are read before the first record is written. The
    events are in a temporary file, because memory would limit the number of rows. SQLite deletes the file."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)  # an empty name is a temporary file
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE merged (key BLOB PRIMARY KEY, expires, unending, about) WITHOUT ROWID")

    def add(self, candidates: Sequence[Candidate], digests: Sequence[bytes]) -> None:
        encode = msgspec.msgpack.encode
        rows = [
            (digest, each.expires_at or 0, each.expires_at is None, encode(each.about))
            for each, digest in zip(candidates, digests, strict=True)
        ]
        with _temporary_file():
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT INTO merged VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET expires = max(expires, excluded.expires), unending = max(unending, excluded.unending)",
                rows,
            )
            self._db.execute("COMMIT")

    def count(self) -> int:
        with _temporary_file():
            return int(self._db.execute("SELECT count(*) FROM merged").fetchone()[0])

    def __iter__(self) -> Iterator[MergedEvent]:
        decoder = msgspec.msgpack.Decoder(EventSummary)
        with _temporary_file():
            for key, expires_at, unending, about in self._db.execute("SELECT * FROM merged"):
                yield MergedEvent(key, expires_at, bool(unending), decoder.decode(about))

    def close(self) -> None:
        self._db.close()


@contextmanager
def _temporary_file() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreUnavailable(
            f"cannot write the temporary file of this command: {error}; set TMPDIR to a folder with free space"
        ) from error


class CountingSink:
    """Only counts the events that would be recorded."""

    def __init__(self, merged: MergedEvents) -> None:
        self._merged = merged

    def add(self, candidates: Sequence[Candidate], counts: Counts) -> None:
        self._merged.add(candidates, [each.key.digest for each in candidates])
        counts.same_key += len(candidates)

    def add_expired(self, candidate: Candidate) -> None: ...

    def finish(self, counts: Counts) -> None:
        counts.seeded = self._merged.count()
        counts.same_key -= counts.seeded


class StoreSink:
    """Records events as completed. An event that the store knows stays as it is."""

    def __init__(self, store: Store, config: GateConfig, hints: Hints, merged: MergedEvents) -> None:
        self._store = store
        self._config = config
        self._engine = Engine(store, config, since_boot, Observers((), config.namespace, wall), hints)
        self._merged = merged

    def add(self, candidates: Sequence[Candidate], counts: Counts) -> None:
        jobs = [Job(each.event, each.key, b"") if each.event is not None else None for each in candidates]
        # The emissions of a state change have the key of the first emission, which the timeline of the entity knows.
        self._engine.state_changes.place([job for job in jobs if job is not None and job.key.change is not None])
        placed, digests = [], []
        for each, job in zip(candidates, jobs, strict=True):
            if job is not None and job.answered and job.outcome.status == "in_flight":
                counts.add_problem(each.position, f"{job.outcome.error}; repeat the command")
            else:
                placed.append(each)
                digests.append(each.key.digest if job is None else job.key.digest)
        self._merged.add(placed, digests)
        counts.same_key += len(placed)

    def add_expired(self, candidate: Candidate) -> None: ...

    def finish(self, counts: Counts) -> None:
        counts.same_key -= self._merged.count()
        for page in pages(self._merged, _BATCH):
            self._write(page, counts)

    def _write(self, events: Sequence[MergedEvent], counts: Counts) -> None:
        now = wall()
        unexpired = [(each, left) for each in events if (left := self._left(each, now)) > 0]
        seeds = [
            seed(self._config.namespace, each.key, owner=owner, retention=left, about=each.about)
            for (each, left), owner in zip(unexpired, owners(len(unexpired)), strict=True)
        ]
        granted = sum(isinstance(verdict, Granted) for verdict in self._store.claim(seeds)) if seeds else 0
        counts.seeded += granted
        counts.already_there += len(seeds) - granted
        counts.expired += len(events) - len(seeds)

    def _left(self, event: MergedEvent, now: int) -> int:
        """The time for which the event is remembered: the rest of its longest row. A row that does not expire counts
        as long as the retention."""
        left = event.expires_at - now
        return max(left, self._config.retention) if event.unending else left


# ── a sample of recent events ─────────────────────────────────────────────────────────────────────────────

_MOST_COMPARED: Final = 20


class SampleEvent(Struct, frozen=True):
    """An event of the sample: its place, its key, or why it has no key."""

    place: str
    event: Event
    key: Key | None = None
    problem: str | None = None

    @property
    def source(self) -> str:
        return self.event.source


def sample_event(place: str, event: Event, strategy: keys.Strategy) -> SampleEvent:
    try:
        return SampleEvent(place, event, key_of(event, strategy))
    except ValueError as error:
        return SampleEvent(place, event, problem=str(error))


class _NearestRow(Struct, frozen=True):
    parts: Mapping[str, Any]
    source: str
    equal: int


class SampleSink(CountingSink):
    """Looks up the events of a sample among the events that would be recorded. Nothing is written."""

    def __init__(self, events: Sequence[SampleEvent], merged: MergedEvents) -> None:
        super().__init__(merged)
        self._events = events
        self._by_key: dict[bytes, list[int]] = {}
        self._by_part: dict[tuple[str, str], list[int]] = {}
        self._nearest: dict[int, _NearestRow] = {}
        self._expired: set[int] = set()
        self._recognised: set[int] = set()
        for index, event in enumerate(events):
            if event.key is None:
                continue
            self._by_key.setdefault(event.key.digest, []).append(index)
            for name, value in named_parts(event.key).items():
                listed = self._by_part.setdefault((name, str(value)), [])
                if len(listed) < _MOST_COMPARED:
                    listed.append(index)

    def add(self, candidates: Sequence[Candidate], counts: Counts) -> None:
        super().add(candidates, counts)
        for candidate in candidates:
            found = self._by_key.get(candidate.key.digest)
            if found is not None:
                self._recognised.update(found)
            else:
                self._compare(candidate)

    def add_expired(self, candidate: Candidate) -> None:
        self._expired.update(self._by_key.get(candidate.key.digest, ()))

    def _compare(self, candidate: Candidate) -> None:
        parts = named_parts(candidate.key)
        for index in {index for name, value in parts.items() for index in self._by_part.get((name, str(value)), ())}:
            key = self._events[index].key
            own = {} if key is None else named_parts(key)
            equal = sum(str(own.get(name)) == str(value) for name, value in parts.items())
            if index not in self._nearest or equal > self._nearest[index].equal:
                self._nearest[index] = _NearestRow(parts, candidate.about.source, equal)

    @property
    def count(self) -> int:
        return len(self._events)

    @property
    def recognised(self) -> int:
        return len(self._recognised)

    def unrecognised(self) -> Iterator[tuple[SampleEvent, str]]:
        """The events that would run, each with the reason."""
        for index, event in enumerate(self._events):
            if index not in self._recognised:
                yield event, self._reason(index, event)

    def _reason(self, index: int, event: SampleEvent) -> str:
        if event.key is None:
            return event.problem or "it has no key"
        if index in self._expired:
            return "its row has expired"
        own, nearest = named_parts(event.key), self._nearest.get(index)
        if nearest is None:
            return f"no row has its {' or '.join(own)}"
        differing = [_difference(name, value, nearest.parts.get(name)) for name, value in own.items()]
        if differs := [each for each in differing if each]:
            return "; ".join(differs)
        return (
            f"the source is {event.source} in the event and {nearest.source} for the rows; use --source {event.source}"
        )


def named_parts(key: Key) -> dict[str, Any]:
    """The parts of a key by their paths."""
    if key.strategy in ("fields", "once_per"):
        paths = next(part for part in key.parts if isinstance(part, list))
        return dict(zip(paths, key.parts[len(key.parts) - len(paths) :], strict=True))
    if key.strategy == "event_id":
        return {"id": key.parts[-1]}
    return {"key": str(key)}


def _difference(name: str, value: Any, in_row: Any) -> str | None:
    if value == in_row and type(value) is type(in_row):
        return None
    if str(value) != str(in_row):
        return f"{name} is {value!r} in the event and {in_row!r} in the nearest row"
    here, there, wanted = ("text", "number", "text") if isinstance(value, str) else ("number", "text", "int")
    return f"{name} is the {here} {value} in the event and a {there} in the row; use --map {name}=COLUMN:{wanted}"
