"""Analyze a recording: read it, group its deliveries into events, judge the candidates, and choose.

The steps are in the order of `analyze`. `Analysis` has all results; sentences, reports and JSON are made from it.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from oncegate.analysis.candidates import STATE_CHANGE, KeyCandidate, candidates
from oncegate.analysis.combinations import MOST_EVENTS, sampled_combinations
from oncegate.analysis.database import DeliveryPlace, RecordingDatabase
from oncegate.analysis.delivery_rows import MOST_FIELDS, Rows
from oncegate.analysis.judgement import CandidateColumn, KeyJudgement, Traffic, best, judge, read_traffic, total
from oncegate.analysis.recording import (
    ITEMS,
    SMALL,
    BatchResult,
    DocumentBatch,
    RowOptions,
    recorded_events,
    write_rows,
)
from oncegate.analysis.timing import Choice, Timing, choose_retention, choose_window, measure
from oncegate.durations import microseconds
from oncegate.errors import OncegateError
from oncegate.events import Event
from oncegate.sources import NO_HINTS, Hints

_MOST_TYPES_SAMPLED: Final = 60


class CopyCount(Struct, frozen=True):
    """Copies of one kind. `is_inferred` means that they are probably copies, but not certainly."""

    kind: str
    is_inferred: bool
    count: int


class TypeAnalysis(Struct, frozen=True):
    """The traffic of one type of events, and the judgements of all candidates for it, the best first."""

    number: int
    source: str
    type: str | None
    traffic: Traffic
    copies: list[CopyCount]
    judgements: list[KeyJudgement]

    @property
    def name(self) -> str:
        return self.type or f"{self.source} events without a type"

    @property
    def best(self) -> KeyJudgement:
        return best(self.judgements)


class Analysis(Struct, frozen=True):
    """The results for a recording. `current` is the strategy of the settings, `own` the strategies that the user asked
    about. `recommended` is the best strategy for all types together."""

    read: BatchResult
    types: list[TypeAnalysis]
    totals: list[KeyJudgement]
    recommended: KeyJudgement
    window: Choice
    retention: Choice
    timing: Timing
    current: str
    current_retention: str
    own: tuple[str, ...]
    places: dict[int, DeliveryPlace] = msgspec.field(default_factory=dict)

    def of(self, name: str) -> KeyJudgement:
        """The judgement of a strategy for all types."""
        return next(each for each in self.totals if each.name == name)

    @property
    def traffic(self) -> Traffic:
        parts = [each.traffic for each in self.types]
        names = ("deliveries", "duplicates", "inferred", "possible", "conflicts")
        return Traffic(*(sum(getattr(part, name) for part in parts) for name in names))

    @property
    def would_lose(self) -> int:
        """The events that the current settings would lose: events with the key of another event, and events without a
        key."""
        found = self.of(self.current)
        return found.wrong + found.keyless


class AnalysisOptions(Struct, frozen=True):
    """What to judge besides the candidates: the key and the retention of the settings, and further keys."""

    current: str = "auto"
    retention: str = "7d"
    own: tuple[str, ...] = ()
    hints: Hints = NO_HINTS
    workers: int | None = None


def analyze(
    sample: Iterable[DocumentBatch],
    batches: Iterable[DocumentBatch],
    folder: Path,
    options: AnalysisOptions,
    *,
    size: int | None = None,
    on_batch: Callable[[int], object] = lambda _size: None,
    on_step: Callable[[str], object] = lambda _text: None,
    export: Path | None = None,
) -> Analysis:
    """Analyze the batches of a recording. `sample` has some of the same documents. `folder` is for temporary files.
    `on_batch` and `on_step` report the progress."""
    is_small = size is not None and size < SMALL
    # The database is opened first: without its extra, the recording would be read in vain.
    with closing(RecordingDatabase(folder, options.workers, is_small=is_small)) as database:
        found = sampled_combinations(_sampled(sample, options.hints), MOST_FIELDS)
        own = tuple(dict.fromkeys((options.current, *options.own)))
        row_options = RowOptions(found, own, options.hints)
        read = write_rows(batches, row_options, folder, size=size, workers=options.workers, on_batch=on_batch)
        if not read.deliveries:
            first = f" (the first: {read.shown[0].problem})" if read.shown else ""
            raise OncegateError(
                f"there is no event in the recording; unreadable documents: {read.unreadable:,}{first}; `oncegate"
                " analyze --help` lists what a recording can be"
            )
        on_step("grouping deliveries")
        database.load(row_options.rows().columns)
        database.group()
        columns = candidates(found, own)
        result = _judged(database, read, columns, options, on_step)
        if export is not None:
            on_step("writing the rows")
            database.export(export, _exported(columns))
        return result


def _sampled(batches: Iterable[DocumentBatch], hints: Hints) -> dict[int, list[Event]]:
    """Some events of each type."""
    rows, found = Rows(), dict[int, list[Event]]()
    for batch in batches:
        for recorded in recorded_events(batch, hints):
            event = recorded.event
            if event.problem is not None or event.frame is not None:
                continue
            kind = rows.kind(event)
            if kind not in found and len(found) == _MOST_TYPES_SAMPLED:
                continue
            events = found.setdefault(kind, [])
            if len(events) < 2 * MOST_EVENTS:
                events.append(event)
    return found


def _judged(
    database: RecordingDatabase,
    read: BatchResult,
    found: Sequence[KeyCandidate],
    options: AnalysisOptions,
    on_step: Callable[[str], object],
) -> Analysis:
    traffic = read_traffic(database)
    timing = measure(database)
    window = choose_window(timing.echoes, timing.window_curve)
    columns = _columns(database, found, window.duration)
    half = read.documents // 2 * ITEMS
    judged: dict[int, list[KeyJudgement]] = {kind: [] for kind in traffic}
    for place, column in enumerate(columns, 1):
        on_step(f"judging {place} of {len(columns)} keys")
        for kind, judgement in judge(database, column, traffic, half).items():
            judged[kind].append(judgement)
    types = _types(database, read, traffic, judged)
    totals = _totals(types)
    examples = [each for one in types for judgement in one.judgements for each in _positions(judgement)]
    return Analysis(
        read=read,
        types=types,
        totals=totals,
        recommended=best(totals),
        window=window,
        retention=choose_retention(timing, {each.source for each in types}),
        timing=timing,
        current=options.current,
        current_retention=options.retention,
        own=options.own,
        places=database.places(examples),
    )


def _columns(database: RecordingDatabase, found: Sequence[KeyCandidate], window: str) -> list[CandidateColumn]:
    """The candidates with the expressions of their keys. Strategies with a timeline get the keys of their anchors."""
    main = {"key": "emission", "timeline": "timeline", "state": "state", "rank": "rank"}
    database.join_changes("joins_s", microseconds(window), main)
    joined = {"s_key": ("emission", "joins_s")}
    # A combination of fields is for events of one type, so it never merges events of different types.
    by_type = "case when {0} is not null then hash({0}, kind) end"
    columns = [CandidateColumn(each, by_type.format(each.column) if each.names else each.column) for each in found]
    change = f'{STATE_CHANGE}("{window}")'
    names = {each.name for each in found}
    for name, key in ((change, "s_key"), (f"first({change}, auto)", "coalesce(s_key, k_0)")):
        if name not in names:
            columns.insert(3, CandidateColumn(KeyCandidate(name, "s_key", "oncegate"), key))
    for place, column in enumerate(columns):
        own = column.candidate.column
        if column.candidate.origin == "yours" and (width := database.window_of(own)) is not None:
            parts = {"key": own, **{part: f"{own}_{part}" for part in ("timeline", "state", "rank")}}
            database.join_changes(f"joins_{own}", width, parts)
            joined[f"{own}_key"] = (own, f"joins_{own}")
            columns[place] = CandidateColumn(column.candidate, f"{own}_key")
    database.make_view(joined)
    return columns


def _types(
    database: RecordingDatabase,
    read: BatchResult,
    traffic: dict[int, Traffic],
    judged: dict[int, list[KeyJudgement]],
) -> list[TypeAnalysis]:
    copies: dict[int, list[CopyCount]] = {}
    for kind, copy, is_inferred, count in database.run("copy_kinds"):
        copies.setdefault(kind, []).append(CopyCount(copy, is_inferred, count))
    made = [
        TypeAnalysis(kind, *read.kinds[kind], traffic[kind], copies.get(kind, []), sorted(found, key=lambda j: j.rank))
        for kind, found in judged.items()
    ]
    return sorted(made, key=lambda each: (-each.traffic.deliveries, each.name))


def _totals(types: Sequence[TypeAnalysis]) -> list[KeyJudgement]:
    """The judgements of the candidates that are judged for all types, the best first."""
    by_name: dict[str, list[KeyJudgement]] = {}
    for one in types:
        for judgement in one.judgements:
            by_name.setdefault(judgement.name, []).append(judgement)
    made = [total(found) for found in by_name.values() if len(found) == len(types)]
    return sorted(made, key=lambda each: each.rank)


def _positions(judgement: KeyJudgement) -> list[int]:
    examples = [each for each in (judgement.lost_example, judgement.missed_example) if each is not None]
    return [position for each in examples for position in (each.first, each.second)]


def _exported(found: Sequence[KeyCandidate]) -> list[str]:
    """The columns of an export: the place and the times of each delivery, the digests that group deliveries, and its
    key under each candidate. A digest is text, because not every tool reads whole numbers of 64 bits without a sign."""
    plain = ["position", "file", "place", "item", "occurred_at", "sent_at", "arrived_at", "is_own", "is_replay"]
    digests = {name: f"d.{name}" for name in ("kind", "body", "content", "certain")}
    digests |= {name: name for name in ("likely", "same_id", "possible")}
    digests |= {STATE_CHANGE: "s_key"} | {each.exported_name: each.column for each in found}
    return [f"d.{name}" for name in plain] + [
        f"lpad(lower(to_hex({column})), 16, '0') as {name}" for name, column in digests.items()
    ]
