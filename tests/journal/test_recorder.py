"""The recorder: it writes what gates decide, and never delays or fails an event."""

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from oncegate import Event, Gate, Outcome
from oncegate.clocks import wall
from oncegate.errors import StoreReadOnly, StoreUnavailable
from oncegate.gate.observers import Notice
from oncegate.journal import open_journal, open_recorder
from oncegate.journal import recorder as module
from oncegate.journal.base import LEAST_SIZE, Journal, JournalBounds, NewRows, RowFilter, differing_paths
from oncegate.journal.budget import CpuBudget
from oncegate.journal.recorder import Recorder
from oncegate.journal.rows import Row
from oncegate.journal.sqlite import SqliteJournal
from oncegate.stores.memory import MemoryStore
from tests.journal.contract import HOSTILE
from tests.stores.forking import run

HOUR = 3_600_000_000
ALL_TIMES = (0, 2**62)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/x.journal.db"


@pytest.fixture
def recorder(url: str) -> Iterator[Recorder]:
    recorder = open_recorder(url)
    yield recorder
    recorder.close()


def succeed(event: Event) -> None: ...


def fail(event: Event) -> None:
    raise ValueError("a secret of the payload")


def read(url: str, read_from: Callable[[Journal], Any] = lambda journal: journal.rows(limit=10_000)) -> Any:
    with closing(open_journal(url, create=False)) as journal:
        return read_from(journal)


def rows_of(recorder: Recorder, url: str) -> list[Row]:
    """All rows, oldest first."""
    assert recorder.flush(10)
    found: list[Row] = read(url)
    return found[::-1]


def count_of(url: str) -> dict[str, int]:
    totals = read(url, lambda journal: journal.totals(RowFilter(), *ALL_TIMES))
    return {each.status: sum(other.count for other in totals if other.status == each.status) for each in totals}


# ── what is recorded ──────────────────────────────────────────────────────────────────────────────────────


def test_a_row_for_each_decision_and_attempt(recorder: Recorder, url: str) -> None:
    """Each outcome becomes a row with its place, event, key, attempt, durations and worker."""
    gate = Gate("memory://", namespace="crm", observers=[recorder.of("calls")])
    event = {"id": "evt-1", "type": "call.ended", "conversationId": "c-1", "time": "2026-02-03T10:00:00Z"}

    def slow(event: Event) -> None:
        time.sleep(0.02)

    outcome = gate.run(event, slow)
    gate.run(event, slow)
    gate.run({"id": "evt-2"}, fail)
    gate.run({"id": "evt-2"}, succeed)
    processed, duplicate, failed, again = rows_of(recorder, url)
    assert (processed.place, processed.namespace, processed.source, processed.type) == (
        "calls",
        "crm",
        "plain",
        "call.ended",
    )
    assert (processed.event_id, processed.entity, processed.key_text) == ("evt-1", "c-1", str(outcome.key))
    assert (processed.status, processed.kind, processed.attempt) == ("processed", None, 1)
    assert processed.strategy == "event_id"
    assert processed.took is not None
    assert 20_000 <= processed.took < 5_000_000
    assert processed.lag is not None
    assert processed.lag > 0
    assert abs(processed.at - time.time() * 1e6) < 60e6
    assert processed.worker == f"{os.uname().nodename}:{os.getpid()}"
    assert (duplicate.status, duplicate.kind, duplicate.original, duplicate.took) == (
        "duplicate",
        "redelivery",
        "evt-1",
        None,
    )
    assert duplicate.original_at is not None
    assert (failed.status, failed.attempt, again.attempt) == ("failed", 1, 2)
    assert failed.reason == "Failed at attempt 1: ValueError; deliver it again."
    assert again.reason == "Processed at attempt 2."
    assert (recorder.written, recorder.dropped) == (4, 0)


def test_batches_transactions_and_modes(recorder: Recorder, url: str, tmp_path: Path) -> None:
    """Every way through a gate is recorded, with the time of the handler where one ran."""
    with closing(Gate(f"sqlite:///{tmp_path}/store.db", observers=[recorder.of("a")])) as gate:
        gate.run_batch([{"id": "1"}, {"id": "2"}, {"id": "1"}, {"noId": []}, b"not json"], succeed)
        gate.transaction({"id": "3"}, lambda event, connection: None)
        gate.admit([{"id": "4"}])
        gate.run_waiting(succeed)
    with closing(Gate("memory://", mode="mark_first", observers=[recorder.of("b")])) as gate:
        gate.run_batch([{"id": "5"}], succeed)
        gate.run_batch([{"id": "6"}], fail)
    found = [(row.place, row.event_id, row.status, row.took is not None) for row in rows_of(recorder, url)]
    assert found == [
        ("a", "1", "processed", True),
        ("a", "2", "processed", True),
        ("a", "1", "duplicate", False),
        ("a", None, "processed", True),
        ("a", None, "invalid", False),
        ("a", "3", "processed", True),
        ("a", "4", "accepted", False),
        ("a", "4", "processed", True),
        ("b", "5", "processed", True),
        ("b", "6", "buried", True),
    ]


async def _run_async(gate: Gate) -> None:
    async def handler(event: Event) -> None: ...

    await gate.arun({"id": "1"}, handler)
    await gate.arun({"id": "2"}, fail)
    await gate.arun({"noId": []}, handler)


def test_coroutines(recorder: Recorder, url: str) -> None:
    """Events of `arun` are recorded with the time of their handler, async or plain, guarded or not."""
    with closing(
        Gate("memory://", key=lambda event: event.id, on_missing_key="unguarded", observers=[recorder.of("a")])
    ) as gate:
        asyncio.run(_run_async(gate))
    found = [(row.event_id, row.status, row.took is not None) for row in rows_of(recorder, url)]
    assert found == [("1", "processed", True), ("2", "failed", True), (None, "unguarded", True)]


def test_as_a_plain_observer(recorder: Recorder, url: str) -> None:
    """The observer of a place also takes notices: it records outcomes and ignores everything else."""
    outcome, at = Outcome("processed", Event(source="plain", body={}, id="evt-1")), wall()
    observer = recorder.of("calls")
    observer(Notice("event.processed", at, "crm", outcome.event, None, outcome))
    observer(Notice("claim.granted", at, "crm", outcome.event))
    (row,) = rows_of(recorder, url)
    assert (row.event_id, row.namespace, row.at) == ("evt-1", "crm", at)


def test_the_exception_text_is_not_recorded(recorder: Recorder, url: str, tmp_path: Path) -> None:
    """Neither the exception nor the payload stands in the file."""
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run({"id": "evt-1", "name": "a-name-in-the-payload"}, fail)
    recorder.close()
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert b"evt-1" in stored
    assert b"a secret of the payload" not in stored
    assert b"a-name-in-the-payload" not in stored


def test_hostile_events(recorder: Recorder, url: str) -> None:
    """Text of senders in every field, deep, wide, huge and changed bodies: each event has its row."""
    deep: Any = "x"
    for _ in range(60):
        deep = {"x": deep}
    bodies = [
        {"id": HOSTILE.replace("\ud800", ""), "type": HOSTILE.replace("\ud800", ""), "conversationId": "\0" * 400},
        {"id": "deep", "body": deep},
        {"id": "wide", **{f"{number}" * 50: number for number in range(500)}},
        {"id": "huge", "text": "x" * 1_000_000},
        {"id": "names", "\0": 1, "": {"": 2}, "a.b": {"\u2028": [1, {"x": None}]}},
    ]
    gate = Gate("memory://", observers=[recorder.of(HOSTILE)])
    for body in bodies:
        gate.run(body, succeed)
    event = Event(source=HOSTILE, body=[object()], id=HOSTILE, type=HOSTILE, state=HOSTILE, part=HOSTILE)
    gate._observers.outcomes([Outcome("failed", event, error=HOSTILE)])

    def change(event: Event) -> None:
        event.body.clear()
        event.body[1] = object()

    gate.run({"id": "changed", "x": 1}, change)
    rows = rows_of(recorder, url)
    assert len(rows) == len(bodies) + 2
    assert recorder.dropped == 0
    assert [row.event_id for row in rows[1:5]] == ["deep", "wide", "huge", "names"]
    assert all(len(row.leaves) <= 4 * 65 for row in rows)
    assert {row.event_id for row in rows if row.shape} >= {"deep", "wide", "names"}
    assert [bool(row.shape) for row in rows[-2:]] == [False, True]


def test_which_paths_differ(recorder: Recorder, url: str) -> None:
    """Without payloads, the journal shows where two deliveries of one event differ."""
    gate = Gate("memory://", key=lambda event: event.id, observers=[recorder.of("calls")])
    gate.run({"id": "evt-1", "data": {"status": "open", "queue": "a"}}, succeed)
    gate.run({"id": "evt-1", "data": {"status": "closed", "queue": "a"}, "new": True}, succeed)
    gate.run({"id": "evt-1", "data": {"status": "open", "queue": "a"}}, succeed)
    first, conflict, copy = rows_of(recorder, url)
    assert conflict.status == "conflict"
    assert len(conflict.kept) == 16
    assert read(url, lambda journal: differing_paths(journal, first, conflict)) == ["data.status", "new"]
    assert read(url, lambda journal: differing_paths(journal, first, copy)) == []
    assert first.digests[8:16] == conflict.digests[8:16]
    assert first.digests[16:] != conflict.digests[16:]


def test_a_handler_that_changes_the_body(recorder: Recorder, url: str) -> None:
    """The hashes and digests of a row are those of the document, whatever the handler did with the body."""
    gate = Gate("memory://", key=lambda event: event.id, observers=[recorder.of("calls")])
    event = {"id": "evt-1", "data": {"status": "open"}}

    def change(event: Event) -> None:
        event.body["data"]["status"] = "closed"
        event.body["new"] = True

    gate.run(event, change)
    assert recorder.flush(10)  # the window ends, so the copy has details of its own
    gate.run(event, change)
    first, copy = rows_of(recorder, url)
    assert (first.status, copy.status, copy.same) == ("processed", "duplicate", False)
    assert read(url, lambda journal: differing_paths(journal, first, copy)) == []
    assert first.digests == copy.digests


def test_payloads(url: str) -> None:
    """With payloads on, the document of an event is stored once for all its copies."""
    recorder = open_recorder(url, payload_age=HOUR)
    gate = Gate("memory://", observers=[recorder.of("calls")])
    for _ in range(3):
        gate.run(b'{"id": "evt-1"}', succeed)
    rows = rows_of(recorder, url)
    payloads = read(url, lambda journal: [journal.payload(row.id) for row in rows])
    assert payloads == [b'{"id": "evt-1"}', None, None]
    assert [row.same for row in rows] == [False, True, True]
    recorder.close()


# ── storms and bounds ─────────────────────────────────────────────────────────────────────────────────────


def test_a_storm(recorder: Recorder, url: str) -> None:
    """The 999 copies of one event become 6 rows, one of them with the count of the rest; totals count all."""
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run({"id": "evt-before"}, succeed)
    for _ in range(1_000):
        gate.run({"id": "evt-1"}, succeed)
    gate.run({"id": "evt-after"}, succeed)
    rows = [row for row in rows_of(recorder, url) if row.event_id == "evt-1"]
    assert [row.count for row in rows] == [1, 1, 1, 1, 1, 1, 994]
    assert rows[-1].since is not None
    assert rows[5].at <= rows[-1].since <= rows[-1].at
    assert count_of(url) == {"processed": 3, "duplicate": 999}


def test_many_types_and_shapes(recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender with ever new types and shapes cannot fill the journal with labels and shapes; rows keep their type."""
    monkeypatch.setattr(module, "_MOST_TYPES", 10)
    monkeypatch.setattr(module, "_MOST_SHAPES", 10)
    gate = Gate("memory://", observers=[recorder.of("calls")])
    for number in range(50):
        gate.run({"id": f"evt-{number}", "type": f"type-{number}", f"x{number}": 1}, succeed)
    rows = rows_of(recorder, url)
    assert [row.type for row in rows] == [f"type-{number}" for number in range(50)]
    assert sum(bool(row.shape) for row in rows) == 10
    assert len(read(url, lambda journal: journal.totals(RowFilter(), *ALL_TIMES))) == 11
    assert len(read(url, lambda journal: journal.rows(RowFilter(type="(other)")))) == 40


def test_old_rows_are_deleted(url: str) -> None:
    """The recorder deletes rows that are too old, also if no event arrives."""
    now = 1_790_000_000_000_000
    recorder = open_recorder(url, max_age=HOUR)
    recorder._clock = recorder._writer._clock = lambda: now
    observer = recorder.of("calls")
    outcome = Outcome("processed", Event(source="plain", body={}, id="old"))
    observer.record([outcome], now - 2 * HOUR, "crm")
    recorder.close()
    assert read(url) == []
    later = open_recorder(url, max_age=HOUR)
    later.start()
    later.close()


# ── a journal that is slow or broken ──────────────────────────────────────────────────────────────────────


def _run_all(gate: Gate, number: int) -> float:
    """Run events one by one and in a batch. Returns the longest time of a call, in seconds."""
    longest = 0.0
    for _ in range(number):
        began = time.perf_counter()
        assert gate.run({"id": uuid4().hex}, succeed).status == "processed"
        longest = max(longest, time.perf_counter() - began)
    began = time.perf_counter()
    outcomes = gate.run_batch([{"id": uuid4().hex} for _ in range(number)], succeed)
    assert {outcome.status for outcome in outcomes} == {"processed"}
    return max(longest, time.perf_counter() - began)


def test_a_locked_journal_delays_nothing(recorder: Recorder, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """While another process holds the file, events run at once, rows are dropped and counted, and a warning is logged.
    Afterwards rows are written again, and the totals are complete."""
    path = url.removeprefix("sqlite:///")
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run({"id": "before"}, succeed)
    assert recorder.flush(10)
    with closing(sqlite3.connect(path, isolation_level=None)) as blocker, caplog.at_level(logging.WARNING):
        blocker.execute("BEGIN IMMEDIATE")
        assert _run_all(gate, 200) < 1.0
        assert not recorder.flush(0.5)
        assert recorder.flush(10)
        blocker.execute("ROLLBACK")
    assert recorder.dropped == 400
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert warnings[0].startswith("the journal drops rows; events are not affected: another process held")
    deadline = time.monotonic() + 20
    while recorder.written < 2 and time.monotonic() < deadline:
        gate.run({"id": f"after-{time.monotonic_ns()}"}, succeed)
        time.sleep(0.2)
    assert recorder.flush(10)
    assert len(read(url)) == recorder.written >= 2
    assert count_of(url)["processed"] == recorder.written + recorder.dropped


def test_a_journal_that_cannot_be_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a folder for the file, events run, one warning is logged, and the journal starts when the folder exists.
    When the journal writes again, a second warning has the number of dropped rows."""
    recorder = open_recorder(f"sqlite:///{tmp_path}/none/x.db")
    gate = Gate("memory://", observers=[recorder.of("calls")])
    with caplog.at_level(logging.WARNING):
        assert _run_all(gate, 50) < 1.0
        assert recorder.flush(10)
        assert _run_all(gate, 50) < 1.0
        assert recorder.flush(10)
        assert (recorder.written, recorder.dropped) == (0, 200)
        assert len(caplog.records) == 1
        (tmp_path / "none").mkdir()
        deadline = time.monotonic() + 20
        while not recorder.written and time.monotonic() < deadline:
            gate.run({"id": f"after-{time.monotonic_ns()}"}, succeed)
            time.sleep(0.2)
        assert recorder.written
        recorder._health._last_at -= 100
        gate.run({"id": "last"}, succeed)
        assert recorder.close()
    assert "the journal writes all rows again; it dropped" in caplog.records[-1].getMessage()


class _Stuck:
    """A journal whose server does not answer."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def secret(self) -> bytes:
        self.entered.set()
        self.released.wait(30)
        return b"x" * 32

    def close(self) -> None: ...


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal does not answer, the queue holds a limited number of rows and bytes, and close() ends in
    time."""
    monkeypatch.setattr(module, "_MOST_QUEUED", 100)
    monkeypatch.setattr(module, "_MOST_BYTES", 1_000_000)
    stuck = _Stuck()
    recorder = Recorder(lambda: stuck)  # type: ignore[arg-type,return-value]
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run({"id": "first"}, succeed)
    assert stuck.entered.wait(10)
    assert _run_all(gate, 200) < 1.0
    assert recorder.dropped >= 300
    gate.run({"id": "large", "text": "x" * 500_000}, succeed)
    assert recorder._queue.count <= 100
    assert recorder._queue._bytes <= 1_000_000
    began = time.monotonic()
    assert not recorder.close(0.2)
    assert time.monotonic() - began < 5
    stuck.released.set()


def test_a_thread_that_cannot_start(recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system allows no new thread, events run and their rows wait. The next event starts the thread."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "oncegate-journal":
            raise RuntimeError("can't start new thread")
        start(thread)

    gate = Gate("memory://", observers=[recorder.of("calls")])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        recorder.start()
        assert gate.run({"id": "evt-1"}, succeed).status == "processed"
        assert gate.counts.get("observer.failed", 0) == 0
        began = time.monotonic()
        assert not recorder.flush(10)
        assert time.monotonic() - began < 5
    gate.run({"id": "evt-2"}, succeed)
    assert [row.event_id for row in rows_of(recorder, url)] == ["evt-1", "evt-2"]
    assert recorder.dropped == 0


@pytest.mark.parametrize("changes", [{"state": 5}, {"type": ["x"]}, {"entity": b"x"}, {"occurred_at": "now"}])
def test_an_outcome_without_a_row(
    recorder: Recorder, url: str, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    """An event whose fields have wrong types costs only its own row. It is counted as dropped, and the error is logged
    once."""
    observer = recorder.of("calls")
    events = [Event(source="plain", body={}, id=str(number)) for number in range(4)]
    events[1] = events[2] = Event(**{"source": "plain", "body": {}, "id": "bad", **changes})
    with caplog.at_level(logging.WARNING):
        observer.record([Outcome("processed", event) for event in events], wall(), "crm")
        assert [row.event_id for row in rows_of(recorder, url)] == ["0", "3"]
    assert (recorder.written, recorder.dropped) == (2, 2)
    (record,) = caplog.records
    assert record.getMessage() == "the journal cannot make the row of an event, and drops the row"
    assert record.exc_info


def test_an_unexpected_error_costs_one_batch(
    recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody expected drops a batch, is logged, and the thread goes on."""
    gate = Gate("memory://", observers=[recorder.of("calls")])
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(module._RowMaker, "end_storms", lambda *_, **__: 1 / 0)
        gate.run({"id": "evt-1"}, succeed)
        assert recorder.flush(10)
    assert "ZeroDivisionError" in caplog.text
    assert recorder.dropped == 1
    gate.run({"id": "evt-2"}, succeed)
    assert [row.event_id for row in rows_of(recorder, url)] == ["evt-2"]


@pytest.mark.parametrize("error", [ZeroDivisionError, StoreUnavailable, OSError])
def test_a_batch_that_cannot_be_written(
    recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Whatever error the journal raises, the rows of the batch are counted as dropped, and the totals count its
    events."""
    gate = Gate("memory://", observers=[recorder.of("calls")])

    def refuse(*_: object) -> bool:
        raise error("x")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteJournal, "append", refuse)
        gate.run({"id": "evt-1"}, succeed)
        assert recorder.flush(10)
    assert (recorder.written, recorder.dropped) == (0, 1)
    time.sleep(0.6)
    gate.run({"id": "evt-2"}, succeed)
    assert [row.event_id for row in rows_of(recorder, url)] == ["evt-2"]
    assert count_of(url) == {"processed": 2}


def test_a_batch_that_never_can_be_written(recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the counts of a batch cause an unexpected error again, they are lost, and later batches are written."""
    gate = Gate("memory://", observers=[recorder.of("calls")])
    append = SqliteJournal.append

    def refuse(journal: SqliteJournal, batch: NewRows) -> bool:
        if any(label[3] == "bad" for _, label in batch.counts):
            raise ZeroDivisionError
        return append(journal, batch)

    monkeypatch.setattr(SqliteJournal, "append", refuse)
    gate.run({"id": "evt-1", "type": "bad"}, succeed)
    assert recorder.flush(10)
    deadline = time.monotonic() + 20
    while not recorder.written and time.monotonic() < deadline:
        gate.run({"id": f"evt-{time.monotonic_ns()}"}, succeed)
        time.sleep(0.2)
    assert recorder.flush(10)
    assert recorder.written


def test_the_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal cannot be opened, the recorder holds a limited number of counts. Known counts still rise."""
    monkeypatch.setattr(module, "_MOST_COUNTS", 3)
    now = wall()

    def refuse() -> Journal:
        raise StoreUnavailable("away")

    recorder = Recorder(refuse)
    observer = recorder.of("calls")
    for minute in (0, 1, 2, 3, 4, 0):
        observer.record([Outcome("processed", Event(source="plain", body={}))], now + minute * 60_000_000, "crm")
    assert recorder.flush(10)
    assert sorted(recorder._maker.counts.values()) == [1, 1, 2]
    assert recorder.dropped == 6
    recorder.close()


def test_the_secret_is_read_before_rows_are_written(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the secret cannot be read, the journal is not used. It is opened again later."""
    recorder = open_recorder(url)
    gate = Gate("memory://", observers=[recorder.of("calls")])

    def refuse(_: SqliteJournal) -> bytes:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteJournal, "secret", refuse)
        gate.run({"id": "evt-1"}, succeed)
        assert recorder.flush(10)
        assert (recorder.written, recorder.dropped) == (0, 1)
    time.sleep(0.6)
    gate.run({"id": "evt-2"}, succeed)
    assert [row.event_id for row in rows_of(recorder, url)] == ["evt-2"]
    assert recorder._writer.secret == read(url, lambda journal: journal.secret())
    recorder.close()


def test_a_copy_of_a_dropped_row_has_the_details(recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the row with the details of a body was dropped, the next row of this body has the details."""
    gate = Gate("memory://", key=lambda event: event.id, observers=[recorder.of("calls")])
    gate.run({"id": "evt-1", "x": 1}, succeed)
    assert recorder.flush(10)

    def refuse(*_: object) -> bool:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteJournal, "append", refuse)
        gate.run({"id": "evt-1", "x": 2}, succeed)
        deadline = time.monotonic() + 10
        while not recorder.dropped and time.monotonic() < deadline:  # a flush would end the window
            time.sleep(0.01)
    time.sleep(0.6)
    gate.run({"id": "evt-1", "x": 2}, succeed)
    first, conflict = rows_of(recorder, url)
    assert (conflict.status, conflict.same) == ("conflict", False)
    assert read(url, lambda journal: differing_paths(journal, first, conflict)) == ["x"]


def test_known_shapes_are_renewed(recorder: Recorder, url: str) -> None:
    """A shape that is in use is written again every day, so it is not deleted."""
    gate = Gate("memory://", key=lambda event: event.id, observers=[recorder.of("calls")])
    gate.run({"id": "evt-1", "x": 1}, succeed)
    assert recorder.flush(10)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as db:
        db.execute("UPDATE shapes SET seen = seen - 20 * 86400")
    recorder._maker._shapes_since -= 20 * 86_400
    recorder._writer._prune_at = 0.0
    gate.run({"id": "evt-1", "x": 2}, succeed)
    first, conflict = rows_of(recorder, url)
    assert read(url, lambda journal: differing_paths(journal, first, conflict)) == ["x"]


def test_a_removed_journal(recorder: Recorder, url: str, tmp_path: Path) -> None:
    """If the file is removed, the differences of the next rows are known."""
    gate = Gate("memory://", key=lambda event: event.id, observers=[recorder.of("calls")])
    gate.run({"id": "before", "x": 1}, succeed)
    assert recorder.flush(10)
    for each in tmp_path.iterdir():
        each.unlink()
    for number in range(2):
        gate.run({"id": "evt-1", "x": number}, succeed)
    first, conflict = rows_of(recorder, url)
    assert read(url, lambda journal: differing_paths(journal, first, conflict)) == ["x"]


def test_a_failed_prune_stops_no_rows(
    recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If old rows cannot be deleted, new rows are written, and one warning is logged."""

    def refuse(*_: object) -> bool:
        raise StoreUnavailable("away")

    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run({"id": "first"}, succeed)
    assert recorder.flush(10)
    monkeypatch.setattr(recorder._writer._journal, "prune", refuse)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            recorder._writer._prune_at = 0.0
            gate.run({"id": f"evt-{number}"}, succeed)
            assert recorder.flush(10)
    assert (recorder.written, recorder.dropped) == (4, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "the journal cannot delete old rows, and tries again every 10 seconds: away"
    ]


def test_a_full_journal_makes_room(recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a journal is full, old rows are deleted before the next batch is written."""
    gate, append, prune = Gate("memory://", observers=[recorder.of("calls")]), SqliteJournal.append, SqliteJournal.prune
    pruned: list[bool] = []

    def refuse(journal: SqliteJournal, batch: NewRows) -> bool:
        if not pruned:
            raise StoreReadOnly("full")
        return append(journal, batch)

    def note(journal: SqliteJournal, bounds: JournalBounds, now: int) -> bool:
        pruned.append(True)
        return prune(journal, bounds, now)

    monkeypatch.setattr(SqliteJournal, "append", refuse)
    monkeypatch.setattr(SqliteJournal, "prune", note)
    gate.run({"id": "evt-1"}, succeed)
    assert recorder.flush(10)
    time.sleep(0.6)
    gate.run({"id": "evt-2"}, succeed)
    assert [row.event_id for row in rows_of(recorder, url)] == ["evt-2"]
    assert count_of(url) == {"processed": 2}


def test_large_payloads_in_a_small_journal(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal at its largest size deletes old rows in time: it drops no new row, and logs nothing."""
    monkeypatch.setattr(CpuBudget, "allows_details", False)
    recorder = open_recorder(url, max_size=LEAST_SIZE, payload_age=HOUR)
    gate = Gate("memory://", observers=[recorder.of("calls")])
    with caplog.at_level(logging.WARNING):
        for start in range(0, 300, 50):
            gate.run_batch([{"id": start + each, "x": os.urandom(60_000).hex()} for each in range(50)], succeed)
            assert recorder.flush(30)
        assert (recorder.written, recorder.dropped) == (300, 0)
        assert recorder.close(30)
    assert caplog.records == []
    assert (tmp_path / "x.journal.db").stat().st_size <= LEAST_SIZE
    assert read(url)[0].event_id == "299"


def test_too_little_processor_time(recorder: Recorder, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without processor time to spare, details are left out first, unless there are few rows. If the queue fills up,
    rows are dropped, and the totals still count every event."""
    monkeypatch.setattr(CpuBudget, "allows_details", False)
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run(b'{"id": "alone"}', succeed)
    (row,) = rows_of(recorder, url)
    assert (row.event_id, bool(row.shape), bool(row.digests)) == ("alone", True, True)
    gate.run_batch([b'{"id": "many-%d"}' % number for number in range(21)], succeed)
    row = rows_of(recorder, url)[-1]
    assert (row.event_id, row.shape, row.digests) == ("many-20", b"", b"")
    monkeypatch.setattr(CpuBudget, "allows_rows", False)
    monkeypatch.setattr(module, "_CROWDED", 10)
    gate.run_batch([{"id": f"evt-{number}"} for number in range(50)], succeed)
    deadline = time.monotonic() + 10
    while not recorder.dropped and time.monotonic() < deadline:
        time.sleep(0.01)
    assert recorder.flush(10)
    assert (recorder.dropped, recorder.written) == (50, 22)
    assert count_of(url) == {"processed": 72}


def test_close_writes_what_is_queued(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a shutdown all queued rows are written, even if the processor time is used up."""
    monkeypatch.setattr(CpuBudget, "allows_rows", False)
    recorder = open_recorder(url)
    gate = Gate("memory://", observers=[recorder.of("calls")])
    for start in range(0, 4_000, 1_000):
        gate.run_batch([{"id": start + number} for number in range(1_000)], succeed)
    assert recorder.close(60)
    assert (recorder.written, recorder.dropped) == (4_000, 0)
    assert len(read(url, lambda journal: journal.rows(limit=20_000))) == 4_000


@pytest.mark.parametrize("queued", [0, 7])
def test_close_counts_what_it_cannot_write(url: str, caplog: pytest.LogCaptureFixture, queued: int) -> None:
    """If the journal does not answer, close() counts the queued rows and those in the thread as dropped. One warning
    has their number. The thread does not count them again."""
    stuck, before = _Stuck(), threading.enumerate()
    recorder = Recorder(lambda: stuck)  # type: ignore[arg-type,return-value]
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run_batch([{"id": f"first-{number}"} for number in range(3)], succeed)
    assert stuck.entered.wait(10)
    if queued:
        gate.run_batch([{"id": number} for number in range(queued)], succeed)
    own = [each for each in threading.enumerate() if each.name == "oncegate-journal" and each not in before]
    with caplog.at_level(logging.WARNING):
        assert not recorder.close(0.1)
        assert recorder.dropped == 3 + queued
        stuck.released.set()
        for thread in own:
            thread.join(10)
        recorder.close(0.1)
    assert (recorder.written, recorder.dropped) == (0, 3 + queued)
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert messages == [f"the journal was closed before it could write all rows; it dropped {3 + queued} rows"]


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────


def test_history_outlives_a_restart(url: str) -> None:
    """A second recorder adds to the rows of the first."""
    for name in ("one", "two"):
        recorder = open_recorder(url)
        Gate("memory://", observers=[recorder.of(name)]).run({"id": name}, succeed)
        assert recorder.close()
    assert [row.place for row in read(url)] == ["two", "one"]


def test_a_fork(recorder: Recorder, url: str) -> None:
    """A forked child records under its own name, and neither process disturbs the other."""
    gate = Gate(MemoryStore(), observers=[recorder.of("calls")])
    gate.run({"id": "before"}, succeed)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            gate.run({"id": "child"}, succeed)
            code = 0 if recorder.close(10) else 2
        finally:
            os._exit(code)
    gate.run({"id": "parent"}, succeed)
    assert os.waitpid(child, 0)[1] == 0
    rows = {row.event_id: row.worker for row in rows_of(recorder, url)}
    assert rows.keys() == {"before", "child", "parent"}
    assert rows["before"] == rows["parent"] != rows["child"]


def test_forks_while_the_journal_is_locked(tmp_path: Path) -> None:
    """A fork in a handler does not wait for a journal that another process has locked. `oncegate` is imported before
    `logging`, as in most programs: the lock of `logging` is then acquired before those of Oncegate."""
    done = run(
        f"""
        import os, sqlite3, time, warnings
        from oncegate import Gate
        from oncegate.journal import open_recorder
        import faulthandler
        faulthandler.dump_traceback_later(30, exit=True)
        warnings.filterwarnings("ignore", "This process .* is multi-threaded")
        recorder = open_recorder("sqlite:///{tmp_path}/x.db")
        gate = Gate("memory://", observers=[recorder.of("calls")])
        gate.run({{"id": "first"}}, lambda event: None)
        recorder.flush(10)
        blocker = sqlite3.connect("{tmp_path}/x.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        longest = 0.0
        def fork(event):
            global longest
            began = time.monotonic()
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            longest = max(longest, time.monotonic() - began)
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            gate.run({{"id": str(time.monotonic_ns())}}, fork)
            time.sleep(0.02)
        print(recorder.dropped > 0, longest < 1)
        """
    )
    assert done.stdout.split() == ["True", "True"], done


def test_rows_after_close_are_dropped(recorder: Recorder, url: str) -> None:
    """A late outcome after close() is counted as dropped and raises nothing."""
    gate = Gate("memory://", observers=[recorder.of("calls")])
    recorder.close()
    gate.run({"id": "late"}, succeed)
    assert recorder.dropped == 1
    assert recorder.flush(1)
    assert recorder.close()


def test_close_leaves_nothing_open(url: str) -> None:
    """After close() the thread ends, and it does not open the journal again."""
    for _ in range(20):
        recorder, others = open_recorder(url), threading.enumerate()
        Gate("memory://", observers=[recorder.of("calls")]).run({"id": "evt"}, succeed)
        assert recorder.close(10)
        for thread in threading.enumerate():
            if thread.name == "oncegate-journal" and thread not in others:
                thread.join(10)
                assert not thread.is_alive()
        assert recorder._writer._journal is None


_KILLED = """
import sys, time
from oncegate import Gate
from oncegate.journal import open_recorder
recorder = open_recorder(sys.argv[1])
gate = Gate("memory://", observers=[recorder.of("calls")])
number = 0
while True:
    gate.run({"id": f"evt-{number}"}, lambda event: None)
    print(number, time.monotonic(), flush=True)
    number += 1
    time.sleep(0.002)
"""


def test_a_killed_process_loses_the_last_batch_only(url: str) -> None:
    """After kill -9, the journal has all rows but those of the last moment, and a new process goes on."""
    with subprocess.Popen([sys.executable, "-c", _KILLED, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or float(lines[-1].split()[1]) - float(lines[0].split()[1]) < 5:
            lines.append(process.stdout.readline())
        process.kill()
    killed_at = float(lines[-1].split()[1])
    settled = [int(line.split()[0]) for line in lines if float(line.split()[1]) < killed_at - 3]
    assert len(settled) > 10
    found = {row.event_id for row in read(url)}
    assert {f"evt-{number}" for number in settled} <= found
    recorder = open_recorder(url)
    Gate("memory://", observers=[recorder.of("calls")]).run({"id": "next"}, succeed)
    assert recorder.close(10)
    assert read(url)[0].event_id == "next"
