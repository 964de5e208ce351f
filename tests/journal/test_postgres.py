"""The journal in a Postgres database."""

import os
import time
from array import array
from collections.abc import Iterator
from contextlib import closing
from zlib import crc32

import pytest

from oncegate import Event, Gate
from oncegate.errors import NoStore, StoreRefused, StoreUnavailable
from oncegate.journal import RowErasure, open_journal, open_recorder
from oncegate.journal.base import LEAST_SIZE, MAX_AGE, MINUTE, BatchId, JournalBounds, NewRows, RowFilter
from oncegate.journal.postgres import PostgresJournal
from oncegate.stores.postgres.settings import read_url
from tests.journal.contract import START, JournalContract, batch, ids, label, new_row
from tests.stores.postgres_server import PostgresServer

SCHEMA = "journals"
DAY = 86_400_000_000


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    with postgres.connect() as db:
        db.execute(f"DROP SCHEMA IF EXISTS {SCHEMA}_journal CASCADE".encode())
    return f"{postgres.url()}?oncegate_schema={SCHEMA}"


class TestPostgresJournal(JournalContract):
    @pytest.fixture(autouse=True)
    def _url(self, url: str) -> None:
        self.url = url

    def open(self) -> PostgresJournal:
        return PostgresJournal(read_url(self.url))


@pytest.fixture
def journal(url: str) -> Iterator[PostgresJournal]:
    with closing(PostgresJournal(read_url(url))) as journal:
        yield journal


def partitions(journal: PostgresJournal) -> list[tuple[int, int]]:
    with journal._connections.borrow() as db:
        return list(db.execute(journal._sql["partitions"]))


def succeed(event: Event) -> None: ...


def test_beside_the_store(postgres: PostgresServer, url: str) -> None:
    """A gate and its journal share a database; the journal has a schema of its own."""
    recorder = open_recorder(url)
    with closing(Gate(url, observers=[recorder.of("calls")])) as gate:
        gate.run_batch([{"id": f"evt-{time.monotonic_ns()}-{number}"} for number in range(50)], succeed)
        assert recorder.close(10)
    with closing(open_journal(url, create=False)) as journal:
        assert len(journal.rows(limit=1_000)) == 50
    assert postgres.count(f"{SCHEMA}_journal.rows") == 50


def test_partitions_by_day(journal: PostgresJournal) -> None:
    """Each day has a partition, and a day that is too old is dropped as a whole."""
    for day in range(4):
        journal.append(batch(new_row(day, at=START + day * DAY)))
    journal.append(batch(new_row(4, at=START + 10), new_row(5, at=START + 3 * DAY + 5)))
    before = partitions(journal)
    assert len(before) == 4
    assert all(after - first == DAY << 11 for first, after in before)
    journal.prune(JournalBounds(max_age=DAY), START + 3 * DAY + DAY // 2)
    assert partitions(journal) == before[-1:]
    assert ids(journal.rows()) == ["evt-5", "evt-4", "evt-3"]


def test_a_clock_that_jumps(journal: PostgresJournal) -> None:
    """Only days with rows get a partition."""
    journal.append(batch(new_row(1, at=START), new_row(2, at=START + 400 * DAY)))
    assert len(partitions(journal)) == 2
    assert ids(journal.rows()) == ["evt-2", "evt-1"]


def test_a_batch_is_counted_once(journal: PostgresJournal) -> None:
    """A batch that is appended again, also after a later batch, changes nothing."""
    minute = START // MINUTE
    for number in (1, 1, 2, 1):
        journal.append(NewRows([], {(minute, label()): 10}, {}, BatchId(b"writer-1", number)))
    journal.append(NewRows([], {(minute, label()): 1}, {}, BatchId(b"writer-2", 1)))
    assert [each.count for each in journal.totals(RowFilter(), 0, 2**62)] == [21]


def test_a_schema_that_is_made_again(postgres: PostgresServer, url: str) -> None:
    """If another process makes a dropped journal again, its labels have other numbers. No event gets a wrong label."""
    recorder, other = open_recorder(url), open_recorder(url)
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run({"id": "before"}, succeed)
    assert recorder.flush(10)
    with postgres.connect() as db:
        db.execute(f"DROP SCHEMA {SCHEMA}_journal CASCADE".encode())
    Gate("memory://", observers=[other.of("others")]).run({"id": "other"}, succeed)
    assert other.close(10)
    gate.run({"id": "dropped"}, succeed)
    assert recorder.flush(10)
    assert (recorder.written, recorder.dropped) == (1, 1)
    time.sleep(0.6)
    gate.run({"id": "after"}, succeed)
    assert recorder.close(10)
    with closing(open_journal(url, create=False)) as journal:
        assert [(row.event_id, row.place) for row in journal.rows()] == [("after", "calls"), ("other", "others")]
        totals = {each.place: each.count for each in journal.totals(RowFilter(), 0, 2**62)}
    assert totals == {"calls": 2, "others": 1}


def test_the_size_is_bounded(journal: PostgresJournal) -> None:
    """Beyond the bound the oldest rows go, also within one day, and the newest stay."""
    bounds = JournalBounds(max_size=LEAST_SIZE, payload_age=MAX_AGE)
    for start in range(0, 40_000, 2_000):
        rows = (new_row(n, payload=os.urandom(400), at=START + n) for n in range(start, start + 2_000))
        journal.append(batch(*rows))
        while journal.prune(bounds, START):
            """Delete the next part."""
        assert journal.size() <= LEAST_SIZE
    assert journal.rows()[0].event_id == "evt-39999"
    assert 5_000 < len(journal.rows(limit=40_000)) < 39_000
    assert journal.rows(RowFilter(term="evt-1")) == []
    assert ids(journal.rows(RowFilter(term="evt-39000"))) == ["evt-39000"]


def test_reading_creates_nothing(postgres: PostgresServer, url: str) -> None:
    """A reader of a journal that does not exist gets an error, and no schema is made."""
    with pytest.raises(NoStore, match="there is no journal in the schema journals_journal"):
        PostgresJournal(read_url(url), create=False)
    with postgres.connect() as db:
        assert db.execute(f"SELECT to_regnamespace('{SCHEMA}_journal')".encode()).fetchone() == (None,)


def test_a_schema_of_another_program(postgres: PostgresServer, url: str) -> None:
    """A schema with tables of another program is refused."""
    with postgres.connect() as db:
        db.execute(f"CREATE SCHEMA {SCHEMA}_journal CREATE TABLE theirs (x integer)".encode())
    with pytest.raises(StoreRefused, match="belongs to another program"):
        PostgresJournal(read_url(url))


def test_a_locked_journal_delays_nothing(postgres: PostgresServer, url: str) -> None:
    """While another session holds the journal, events run at once. Afterwards rows are written again."""
    recorder = open_recorder(f"{url}&oncegate_timeout=1s")
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run({"id": "before"}, succeed)
    assert recorder.flush(10)
    longest = 0.0
    with postgres.connect() as db, db.transaction():
        db.execute(f"SELECT * FROM {SCHEMA}_journal.meta FOR UPDATE".encode())  # noqa: S608
        for number in range(500):
            began = time.perf_counter()
            gate.run({"id": f"evt-{number}"}, succeed)
            longest = max(longest, time.perf_counter() - began)
        assert longest < 0.9
        assert recorder.flush(10)
    assert recorder.dropped == 500
    deadline = time.monotonic() + 20
    while recorder.written < 2 and time.monotonic() < deadline:
        gate.run({"id": f"after-{time.monotonic_ns()}"}, succeed)
        time.sleep(0.2)
    assert recorder.close(10)
    with closing(open_journal(url, create=False)) as journal:
        counted = sum(each.count for each in journal.totals(RowFilter(), 0, 2**62))
    assert counted == recorder.written + recorder.dropped


def test_a_server_that_is_away() -> None:
    """A server that cannot be reached is a StoreError."""
    with pytest.raises(StoreUnavailable):
        PostgresJournal(read_url("postgresql://postgres@127.0.0.1:1/postgres"))


def test_the_index_forgets(journal: PostgresJournal) -> None:
    """The index of terms has no hash of an erased row."""
    journal.append(batch(*map(new_row, range(1_500))))
    journal.erase(RowErasure("conversation-3"))
    with journal._connections.borrow() as db:
        blocks = db.execute(journal._sql["terms"], (2**63 - 1, 100)).fetchall()
    found = {each for _, _, hashes in blocks for each in array("I", bytes(hashes))}
    assert not {crc32(b"conversation-3"), crc32(b"evt-3"), crc32(b"evt-1493")} & found
    assert {crc32(b"conversation-4"), crc32(b"evt-1492")} <= found
