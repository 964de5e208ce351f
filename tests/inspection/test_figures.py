"""Figures of a range: what counts as a delivery on routes that store events first and on routes that run them at once,
the most duplicates, and latencies."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.clocks import wall
from oncegate.inspection.figures import (
    KINDS,
    Latencies,
    RangeTotals,
    TopEntry,
    by_status_and_kind,
    count,
    handler_time_of,
    lag_of,
    latencies,
    read_totals,
    top_duplicates,
    top_entities,
)
from oncegate.journal import Journal, Recorder, RowFilter, Total, open_journal, open_recorder
from oncegate.journal.base import MINUTE
from oncegate.settings import Settings, load
from tests.console.pages.journals import SECOND, row, write
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer

START = 1_790_000_040 * SECOND  # a whole minute
HOUR = 60 * MINUTE


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db")) as journal:
        yield journal


def settings(**flags: object) -> Settings:
    return load(environ={}, flags=flags)


def succeed(_event: Event) -> None: ...


def fail(_event: Event) -> None:
    raise RuntimeError("no")


def statuses(totals: RangeTotals) -> tuple[dict[str, int], dict[str, int]]:
    """The number of deliveries and of attempts, by status."""
    deliveries, attempts = by_status_and_kind(totals.deliveries), by_status_and_kind(totals.attempts)
    return (
        {status: count(deliveries, status) for status, _ in deliveries},
        {status: count(attempts, status) for status, _ in attempts},
    )


def now_totals(journal: Journal, given: Settings | None = None) -> RangeTotals:
    now = wall()
    return read_totals(journal, given or settings(), now - HOUR, now + MINUTE, 2 * HOUR)


class TestDeliveriesAndAttempts:
    """Gates write the rows, as in the service and in workers."""

    @pytest.fixture
    def recorder(self, tmp_path: Path) -> Iterator[Recorder]:
        with closing(open_recorder(f"sqlite:///{tmp_path}/oncegate.journal.db")) as recorder:
            yield recorder

    @pytest.fixture
    def gate(self, tmp_path: Path, recorder: Recorder) -> Iterator[Gate]:
        url = f"sqlite:///{tmp_path}/oncegate.db"
        with closing(
            Gate(url, observers=[recorder.of("crm")], backoff="1ms", backoff_limit="1ms", max_attempts=2)
        ) as gate:
            yield gate

    def test_a_stored_event_is_received_once(self, gate: Gate, recorder: Recorder, journal: Journal) -> None:
        """The mode inbox: five deliveries of three events, and their three attempts."""
        gate.admit([{"id": "evt-1"}, {"id": "evt-2"}, {"id": "evt-3"}])
        gate.run_waiting(succeed)
        gate.admit([{"id": "evt-1"}])
        gate.admit([{"id": "evt-1", "other": "content"}])
        assert recorder.flush(10)

        assert statuses(now_totals(journal)) == (
            {"accepted": 3, "duplicate": 1, "conflict": 1},
            {"processed": 3},
        )

    def test_each_attempt_of_a_stored_event_is_an_attempt(
        self, gate: Gate, recorder: Recorder, journal: Journal
    ) -> None:
        gate.admit([{"id": "evt-1"}])
        gate.run_waiting(fail)
        time.sleep(0.05)
        gate.run_waiting(fail)
        assert recorder.flush(10)

        assert statuses(now_totals(journal)) == ({"accepted": 1}, {"failed": 1, "buried": 1})

    def test_an_event_that_runs_at_once_is_received_with_its_outcome(
        self, gate: Gate, recorder: Recorder, journal: Journal
    ) -> None:
        """The mode inline, and a worker of a queue."""
        gate.run({"id": "evt-1"}, succeed)
        gate.run({"id": "evt-1"}, succeed)
        gate.run({"id": "evt-2"}, fail)
        assert recorder.flush(10)

        assert statuses(now_totals(journal)) == ({"processed": 1, "duplicate": 1, "failed": 1}, {})

    def test_places_are_judged_one_by_one(self, gate: Gate, recorder: Recorder, journal: Journal) -> None:
        """A service that stores events, and a worker of a queue, write to one journal."""
        with closing(Gate("memory://", observers=[recorder.of("sqs://queue")])) as worker:
            worker.run({"id": "evt-9"}, succeed)
        gate.admit([{"id": "evt-1"}])
        gate.run_waiting(succeed)
        assert recorder.flush(10)
        totals = now_totals(journal)

        assert statuses(totals.of_place("sqs://queue")) == ({"processed": 1}, {})
        assert statuses(totals.of_place("crm")) == ({"accepted": 1}, {"processed": 1})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, ({"processed": 2}, {})),
        ({"serve.mode": "inbox", "serve.port": 9000}, ({}, {"processed": 2})),
        ({"serve.mode": "inline", "serve.port": 9000}, ({"processed": 2}, {})),
    ],
)
def test_a_range_with_only_attempts_of_earlier_events(
    journal: Journal, flags: dict[str, object], expected: tuple[dict[str, int], dict[str, int]]
) -> None:
    """The rows do not say whether the events were accepted earlier. The settings of the service do."""
    write(journal, [row(number, START) for number in range(2)])

    assert statuses(read_totals(journal, settings(**flags), START, START + MINUTE, MINUTE)) == expected


def test_what_operators_did_is_no_delivery(journal: Journal) -> None:
    write(journal, [row(1, START), row(2, START, "operator", "redrive")])

    assert statuses(read_totals(journal, settings(), START, START + MINUTE, MINUTE)) == ({"processed": 1}, {})


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def each_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    url = f"sqlite:///{tmp_path}/oncegate.journal.db"
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        with server.connect() as db:
            db.execute(b"DROP SCHEMA IF EXISTS figures_journal CASCADE")
        url = f"{server.url()}?oncegate_schema=figures"
    elif request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        redis.client.flushall()
        url = redis.url
    with closing(open_journal(url)) as journal:
        yield journal


def test_every_journal_has_the_same_figures(each_journal: Journal) -> None:
    start = wall() // HOUR * HOUR - 6 * HOUR
    rows = [row(number, start + number * 5 * MINUTE, "accepted") for number in range(12)]
    rows += [row(number, start + number * 5 * MINUTE + SECOND) for number in range(12)]
    rows += [row(50, start + 3 * HOUR, "duplicate", "replay", count=1_000, named="call.held")]
    write(each_journal, rows)
    totals = read_totals(each_journal, settings(), start, start + 6 * HOUR, 30 * MINUTE)
    deliveries = by_status_and_kind(totals.deliveries)

    assert deliveries == {
        ("accepted", None): {start: 6, start + 30 * MINUTE: 6},
        ("duplicate", "replay"): {start + 3 * HOUR: 1_000},
    }
    assert by_status_and_kind(totals.attempts) == {("processed", None): {start: 6, start + 30 * MINUTE: 6}}
    assert top_duplicates(totals.deliveries, lambda each: each.type, 10) == [TopEntry("call.held", 1_000, 1_000)]
    assert top_entities(each_journal.rows(RowFilter(status="duplicate")), 10) == [TopEntry("conversation-0", 1_000)]


def total(status: str, kind: str | None = None, number: int = 1, named: str | None = "call.ended") -> Total:
    return Total(START, "crm", "crm", "plain", named, status, kind, number)


def test_counts_are_in_the_order_of_the_statuses_and_kinds() -> None:
    totals = [total("failed"), *(total("duplicate", kind) for kind in reversed(KINDS)), total("duplicate")]
    totals += [total("duplicate", "unheard-of"), total("processed")]

    assert list(by_status_and_kind(totals)) == [
        ("processed", None),
        ("duplicate", None),
        *(("duplicate", kind) for kind in KINDS),
        ("duplicate", "unheard-of"),
        ("failed", None),
    ]


def test_the_most_duplicates_come_first() -> None:
    totals = [total("duplicate", number=3), total("processed", number=9), total("duplicate", number=5, named=None)]
    totals.append(total("processed", number=9, named="never.twice"))

    assert top_duplicates(totals, lambda each: each.type, 2) == [
        TopEntry(None, 5, 5),
        TopEntry("call.ended", 3, 12),
    ]


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([], Latencies(0)),
        ([7], Latencies(1, 7, 7)),
        ([2, 1], Latencies(2, 1, 2)),
        (list(range(100, 0, -1)), Latencies(100, 50, 95)),
        ([-5, 5, 10**15], Latencies(3, 5, 10**15)),
    ],
)
def test_latencies(durations: list[int], expected: Latencies) -> None:
    assert latencies(durations) == expected


def test_lag_and_handler_time_of_rows(journal: Journal) -> None:
    """A duplicate and an attempt of a stored event have no part in the lag."""
    write(
        journal,
        [
            row(1, START, "accepted", place="crm", lag=10),
            row(1, START, "processed", place="crm", lag=5_000, took=30),
            row(2, START, "duplicate", "replay", place="crm", lag=10**12),
            row(3, START, "processed", place="queue", lag=20, took=50),
            row(4, START, "invalid", place="queue"),
        ],
    )
    totals = read_totals(journal, settings(), START, START + MINUTE, MINUTE)
    rows = journal.rows()

    assert lag_of(rows, totals) == Latencies(2, 10, 20)
    assert handler_time_of(rows) == Latencies(2, 30, 50)
