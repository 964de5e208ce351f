"""The DuckDB database of an analysis, in a temporary folder. Beyond a fixed amount of memory, DuckDB uses the disk."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from oncegate.errors import MissingExtra, TargetError
from oncegate.events import StateChange
from oncegate.stores.sql_file import read_sql, sections
from oncegate.timelines import Timeline, place

if TYPE_CHECKING:
    import duckdb

MEMORY: Final = "160MB"  # for DuckDB; the process itself needs about 100 MB more
ECHO_WINDOW: Final = 5_000_000  # microseconds: two emissions of one state that are further apart are different changes
_STATEMENTS: Final = sections(read_sql("oncegate.analysis", "recording.sql"))
_FETCHED: Final = 10_000  # rows at a time


class DeliveryPlace(Struct, frozen=True, order=True):
    """Where a delivery is: the number of the file, the offset and the size of its document, and which event of the
    document it is."""

    file: int
    offset: int
    size: int
    item: int


class RecordingDatabase:
    """The deliveries of one recording, and the events that they belong to. A small recording is held in memory: files
    and threads would take longer than the work."""

    def __init__(self, folder: Path, threads: int | None = None, *, is_small: bool = False) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise MissingExtra("the analysis of a recording", "analyze") from error
        self._folder = folder
        self._error = duckdb.Error
        self._connection = duckdb.connect(":memory:" if is_small else str(folder / "recording.duckdb"))
        self._connection.execute(f"set memory_limit = '{MEMORY}'")
        self._connection.execute(f"set temp_directory = {quoted(str(folder / 'spilled'))}")
        self._connection.execute(f"set threads = {1 if is_small else threads or len(os.sched_getaffinity(0))}")
        self._connection.execute("set preserve_insertion_order = false")

    def close(self) -> None:
        self._connection.close()

    def run(self, name: str, **parts: object) -> list[tuple[Any, ...]]:
        """Run a statement of recording.sql, with the names in braces replaced. Returns the rows of its answer. Raises
        TargetError, for example if the disk is full; `doing` is the start of its text."""
        return self._execute(name, parts).fetchall()

    def rows(self, name: str, **parts: object) -> Iterator[tuple[Any, ...]]:
        """The same, a few rows at a time."""
        answer = self._execute(name, parts)
        while rows := answer.fetchmany(_FETCHED):
            yield from rows

    def _execute(self, name: str, parts: Mapping[str, object]) -> "duckdb.DuckDBPyConnection":
        text = _STATEMENTS[name]
        for part, value in parts.items():
            text = text.replace(f"{{{part}}}", str(value))
        try:
            return self._connection.execute(text)
        except self._error as error:
            reason = str(error).partition("\n")[0]
            raise TargetError(f"{parts.get('doing', 'cannot analyze the recording')}: {reason}") from error

    def load(self, columns: Mapping[str, str]) -> None:
        """Load the rows that the workers have written to the folder, and remove their files."""
        files = sorted(self._folder.glob("rows-*.csv"))
        names = f"[{', '.join(quoted(str(file)) for file in files)}]"
        types = f"{{{', '.join(f'{quoted(name)}: {quoted(kind)}' for name, kind in columns.items())}}}"
        self.run("load", files=names, columns=types)
        for file in files:
            file.unlink()

    def group(self) -> None:
        """Find out which deliveries are one event."""
        self.run("groups")
        self.run("emissions")
        # The same body without an event time may be the same event or another, so it makes no chain of echoes.
        other = "(is_own or body <> lag(body) over parts or sent_at = lag(sent_at) over parts)"
        by_skeleton = "timeline, state, skeleton"
        self.run("echoes", table="echoes", by=by_skeleton, condition=other, window=ECHO_WINDOW)
        self.run("echoes", table="near_echoes", by="timeline, state", condition="true", window=ECHO_WINDOW)
        self.run("labels")
        self._widen("subjects", "likely", "same_id")
        self._widen("similar", "same_id", "possible")
        self.run("copies")

    def _widen(self, bridges: str, before: str, label: str) -> None:
        """Add a label: groups that have a bridge in common get the same label."""
        self.run(bridges)
        self.run("multiple")
        while self.run("remaining") != [(0,)]:
            self.run("spread")
        self.run("widen", before=before, label=label)

    # ── state changes ─────────────────────────────────────────────────────────────────────────────────────

    def join_changes(self, table: str, window: int, columns: Mapping[str, str]) -> None:
        """Make a table of the emissions that join an earlier emission, as a gate with this window joins them. `columns`
        names the columns of the key and of its timeline, state and rank."""
        file = self._folder / f"{table}.csv"
        with file.open("w", encoding="ascii") as stream:
            for emission, anchor in _joined(self.rows("near_changes", window=window, **columns), window):
                stream.write(f"{emission},{anchor}\n")
        self.run("joins", table=table, file=quoted(str(file)))
        file.unlink()

    def make_view(self, joined: Mapping[str, tuple[str, str]]) -> None:
        """Make the view `keyed`: all deliveries, with a column for each strategy with a timeline. `joined` maps the
        name of such a column to the column of the emission and the table of its joins."""
        columns = [f", coalesce({table}.anchor, d.{key}) as {name}" for name, (key, table) in joined.items()]
        joins = [f"left join {table} on {table}.emission = d.{key}" for key, table in joined.values()]
        self.run("keyed", joined="".join(columns), joins=" ".join(joins))

    def window_of(self, column: str) -> int | None:
        """The window of the state changes under a strategy of the user; None if the strategy has no timeline."""
        found: int | None = self.run("window", column=f"{column}_window")[0][0]
        return found

    # ── questions ─────────────────────────────────────────────────────────────────────────────────────────

    def places(self, positions: Iterable[int]) -> dict[int, "DeliveryPlace"]:
        """The places of deliveries in their files."""
        wanted = sorted(set(positions))
        if not wanted:
            return {}
        found = self.run("places", positions=", ".join(map(str, wanted)))
        return {position: DeliveryPlace(*place) for position, *place in found}

    def export(self, file: Path, columns: Sequence[str]) -> None:
        """Write one row for each delivery to a Parquet or CSV file."""
        form = "format parquet, compression zstd" if file.suffix == ".parquet" else "format csv, header true"
        doing = f"cannot write {file}"
        self.run("export", columns=", ".join(columns), file=quoted(str(file)), format=form, doing=doing)


def quoted(text: str) -> str:
    """The text as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _joined(rows: Iterable[tuple[Any, ...]], window: int) -> Iterator[tuple[int, int]]:
    """The emissions that join an earlier emission, and that emission. The rows are in the order of timelines."""
    current, timeline = None, Timeline()
    for name, state, at, emission, rank in rows:
        if name != current:
            current, timeline = name, Timeline()
        change = StateChange(b"", str(state), at, rank, window)
        placed = place(timeline, change, emission.to_bytes(8, "big"))
        timeline = placed.timeline
        if (anchor := int.from_bytes(placed.key, "big")) != emission:
            yield emission, anchor
