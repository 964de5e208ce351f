"""The journal in streams of a Redis server."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from oncegate import Event, Gate
from oncegate.errors import NoStore, StoreError, StoreUnavailable
from oncegate.journal import RowErasure, base, open_journal, open_recorder
from oncegate.journal.base import (
    LEAST_SIZE,
    MAX_AGE,
    MINUTE,
    BatchId,
    JournalBounds,
    NewRows,
    RowFilter,
    differing_paths,
)
from oncegate.journal.redis import RedisJournal
from oncegate.stores.redis.connection import Command, Reply
from oncegate.stores.redis.settings import settings_of
from tests.journal.contract import START, JournalContract, batch, ids, label, new_row
from tests.stores.redis_server import RedisCluster, RedisServer
from tests.stores.servers import free_port


class TestRedisJournal(JournalContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        redis_server.client.flushall()
        self.url = redis_server.url

    def open(self) -> RedisJournal:
        return RedisJournal(settings_of(self.url))


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.client.flushall()
    return redis_server


@pytest.fixture
def journal(server: RedisServer) -> Iterator[RedisJournal]:
    with closing(RedisJournal(settings_of(server.url))) as journal:
        yield journal


def succeed(event: Event) -> None: ...


def test_beside_the_store(server: RedisServer) -> None:
    """A gate and its journal share a server and a prefix, and the records of the store do not include the journal."""
    recorder = open_recorder(server.url)
    with closing(Gate(server.url, observers=[recorder.of("calls")])) as gate:
        gate.run_batch([{"id": f"evt-{number}"} for number in range(200)], succeed)
        assert recorder.close()
        assert len(list(gate.store.browse(limit=1_000))) == 200
    with closing(open_journal(server.url, create=False)) as journal:
        assert len(journal.rows(limit=1_000)) == 200
        assert journal.rows(RowFilter(status="failed")) == []


def test_reading_creates_nothing(server: RedisServer) -> None:
    """A reader of a journal that does not exist gets an error, and no key is made."""
    with pytest.raises(NoStore, match="there is no journal oncegate at"):
        RedisJournal(settings_of(server.url), create=False)
    assert server.client.keys() == []


def test_a_server_that_starts_later(tmp_path: Path) -> None:
    """If the server is down when the service starts, the journal starts with the server, and can be read."""
    port = free_port()
    recorder = open_recorder(f"redis://127.0.0.1:{port}")
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run({"id": "early"}, succeed)
    assert recorder.flush(10)
    server = RedisServer(tmp_path, port=port)
    try:
        deadline = time.monotonic() + 20
        while not recorder.written and time.monotonic() < deadline:
            gate.run({"id": f"later-{time.monotonic_ns()}"}, succeed)
            time.sleep(0.2)
        assert recorder.close(10)
        with closing(open_journal(server.url, create=False)) as journal:
            assert len(journal.rows()) == recorder.written > 0
            assert journal.rows()[0].place == "calls"
            assert journal.secret() == recorder._writer.secret
    finally:
        server.stop()


def test_a_server_that_loses_its_data(server: RedisServer) -> None:
    """After FLUSHALL, later rows have their labels, and the differences of bodies are known."""
    recorder = open_recorder(server.url)
    gate = Gate("memory://", key=lambda event: event.id, observers=[recorder.of("calls")])
    gate.run({"id": "before", "x": 0}, succeed)
    assert recorder.flush(10)
    server.client.flushall()
    for number in range(2):
        gate.run({"id": "after", "x": number}, succeed)
    assert recorder.close(10)
    with closing(open_journal(server.url, create=False)) as journal:
        second, first = journal.rows()
        assert (second.place, second.status, first.status) == ("calls", "conflict", "processed")
        assert differing_paths(journal, first, second) == ["x"]
        assert [each.count for each in journal.totals(RowFilter(), 0, 2**62)] == [1, 1]


def test_another_journal_in_its_place(server: RedisServer, journal: RedisJournal) -> None:
    """Rows whose hashes have another secret are refused."""
    journal.secret()
    server.client.flushall()
    with closing(RedisJournal(settings_of(server.url))) as other:
        other.secret()
    with pytest.raises(StoreUnavailable, match="was replaced; nothing was written"):
        journal.append(batch(new_row(1)))
    assert journal.rows() == []


def test_lost_shapes_are_reported(server: RedisServer, journal: RedisJournal) -> None:
    """A writer learns that the shapes were deleted, because there were too many of them."""
    shapes = {number.to_bytes(8): ("a",) for number in range(5_001)}
    assert journal.append(NewRows([], {}, shapes))
    assert journal.append(batch(new_row(1)))
    journal.prune(JournalBounds(), START)
    assert not journal.append(batch(new_row(2)))
    assert journal.append(batch(new_row(3)))


def test_a_batch_is_counted_once(server: RedisServer, journal: RedisJournal) -> None:
    """A batch that is appended again, also after a later batch, changes nothing."""
    minute = START // MINUTE
    for number in (1, 1, 2, 1):
        journal.append(NewRows([], {(minute, label()): 10}, {}, BatchId(b"writer-1", number)))
    journal.append(NewRows([], {(minute, label()): 1}, {}, BatchId(b"writer-2", 1)))
    assert [each.count for each in journal.totals(RowFilter(), 0, 2**62)] == [21]
    assert all(0 < server.client.ttl(key) <= 86_400 for key in server.client.keys("*batch:*"))


def test_a_late_reply(tmp_path: Path) -> None:
    """If the server writes a batch after the recorder has stopped waiting, the totals count its events once."""
    server = RedisServer(tmp_path)
    try:
        recorder = open_recorder(server.url)
        gate = Gate("memory://", observers=[recorder.of("calls")])
        gate.run({"id": "before"}, succeed)
        assert recorder.flush(10)
        process = server.client.info()["process_id"]
        os.kill(process, signal.SIGSTOP)
        try:
            gate.run_batch([{"id": f"evt-{number}"} for number in range(10)], succeed)
            assert recorder.flush(10)
        finally:
            os.kill(process, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while recorder.written < 2 and time.monotonic() < deadline:
            gate.run({"id": f"after-{time.monotonic_ns()}"}, succeed)
            time.sleep(0.2)
        assert recorder.close(10)
        with closing(open_journal(server.url, create=False)) as journal:
            counted = sum(each.count for each in journal.totals(RowFilter(), 0, 2**62))
        assert counted == recorder.written + recorder.dropped
    finally:
        server.stop()


def test_the_size_is_bounded(server: RedisServer, journal: RedisJournal) -> None:
    """Beyond the bound the oldest rows go, and the newest stay."""
    bounds = JournalBounds(max_size=LEAST_SIZE, payload_age=MAX_AGE)
    for start in range(0, 40_000, 2_000):
        journal.append(batch(*(new_row(n, payload=os.urandom(400)) for n in range(start, start + 2_000))))
        while journal.prune(bounds, START):
            """Delete the next part."""
    assert journal.size() <= LEAST_SIZE
    assert journal.rows()[0].event_id == "evt-39999"
    assert 5_000 < len(journal.rows(limit=40_000)) < 39_000
    assert journal.rows(RowFilter(term="evt-1")) == []
    assert ids(journal.rows(RowFilter(term="evt-39000"))) == ["evt-39000"]


def test_a_part_of_the_memory(tmp_path: Path) -> None:
    """A journal uses at most a tenth of the server's maxmemory, so that it leaves room for the store. The server is one
    of its own: the clients of other tests would use up the memory."""
    server = RedisServer(tmp_path)
    try:
        with closing(RedisJournal(settings_of(server.url))) as journal:
            journal.append(batch(*map(new_row, range(20_000))))
            size = journal.size()
            server.client.config_set("maxmemory", 5 * size)
            while journal.prune(JournalBounds(), START):
                """Delete the next part."""
            assert journal.size() <= size / 2
            assert journal.rows()[0].event_id == "evt-19999"
    finally:
        server.stop()


def test_many_minutes(journal: RedisJournal) -> None:
    """A filter reads only the minutes that have matches, however far apart they are."""
    rows = [
        new_row(n, label(status="failed" if n % 70 == 0 else "processed"), at=START + n * 61_000_000)
        for n in range(700)
    ]
    journal.append(batch(*rows))
    assert ids(journal.rows(RowFilter(status="failed"))) == [f"evt-{n}" for n in reversed(range(0, 700, 70))]
    assert len(journal.rows(RowFilter(status="processed"), limit=1_000)) == 690


def test_a_paused_server_delays_nothing(server: RedisServer) -> None:
    """While the server does not answer, events run at once; close() ends in time, and rows are written afterwards."""
    recorder = open_recorder(f"{server.url}?timeout=1s")
    gate = Gate("memory://", observers=[recorder.of("calls")])
    gate.run({"id": "before"}, succeed)
    assert recorder.flush(10)
    server.client.client_pause(3_000)
    longest = 0.0
    for number in range(500):
        began = time.perf_counter()
        gate.run({"id": f"evt-{number}"}, succeed)
        longest = max(longest, time.perf_counter() - began)
    assert longest < 0.9
    assert not recorder.flush(0.2)
    deadline = time.monotonic() + 20
    while recorder.written < 2 and time.monotonic() < deadline:
        gate.run({"id": f"after-{time.monotonic_ns()}"}, succeed)
        time.sleep(0.2)
    assert recorder.close(10)
    assert recorder.dropped > 0
    with closing(open_journal(server.url, create=False)) as journal:
        assert "before" in ids(journal.rows(limit=1_000))
        counted = sum(each.count for each in journal.totals(RowFilter(), 0, 2**62))
    assert counted >= recorder.written + recorder.dropped


def test_a_server_that_is_away(tmp_path: Path) -> None:
    """A server that cannot be reached is a StoreError."""
    journal = RedisJournal(settings_of("redis://127.0.0.1:1"))
    with pytest.raises(StoreUnavailable):
        journal.secret()
    with pytest.raises(StoreError):
        journal.append(batch(new_row(1)))


def test_a_cluster(redis_cluster: RedisCluster) -> None:
    """The journal works on a cluster, in one slot."""
    with closing(RedisJournal(settings_of(redis_cluster.url))) as journal:
        journal.append(batch(*map(new_row, range(1_200))))
        assert journal.rows()[0].event_id == "evt-1199"
        assert ids(journal.rows(RowFilter(term="evt-7"))) == ["evt-7"]
        journal.prune(JournalBounds(), START)


def test_totals_of_hours_are_remembered(journal: RedisJournal, server: RedisServer) -> None:
    """The sums of hours that have ended are not read again, unless a process has counted an event there later."""
    hour = START // MINUTE // 60
    counts = {((hour + each) * 60 + minute, label()): 1 + each for each in range(8) for minute in (0, 30, 59)}
    journal.append(NewRows([], counts, {}))
    start, end = hour * 60 * MINUTE, (hour + 8) * 60 * MINUTE

    def read() -> tuple[int, list[int]]:
        """The number of hours that were read, and the totals."""
        server.client.config_resetstat()
        totals = journal.totals(RowFilter(), start, end, 120 * MINUTE)
        return server.client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"], [
            each.count for each in totals
        ]

    expected = [3 * (1 + 2), 3 * (3 + 4), 3 * (5 + 6), 3 * (7 + 8)]
    labels = 1  # the labels are read each time
    assert read() == (8 + labels, expected)
    assert read() == (2 + labels, expected)
    journal.append(NewRows([], {(hour * 60, label()): 100}, {}))
    assert read() == (3 + labels, [expected[0] + 100, *expected[1:]])
    cut = journal.totals(RowFilter(), start + 31 * MINUTE, end, 480 * MINUTE)
    assert sum(each.count for each in cut) == sum(expected) - 2  # the first hour is read by minute


# ── erasure ───────────────────────────────────────────────────────────────────────────────────────────────


def all_hashes(journal: RedisJournal) -> set[int]:
    return {each for _, _, hashes in journal._blocks(0, 2**63 - 1) for each in hashes}


def test_the_index_forgets(journal: RedisJournal) -> None:
    """The index of terms has no hash of an erased row."""
    journal.append(batch(*map(new_row, range(500))))
    assert crc32(b"conversation-3") in all_hashes(journal)
    journal.erase(RowErasure("conversation-3"))
    assert not {crc32(b"conversation-3"), crc32(b"evt-3")} & all_hashes(journal)
    assert crc32(b"conversation-4") in all_hashes(journal)


def test_rows_that_are_written_during_an_erasure(
    server: RedisServer, journal: RedisJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that another process writes between two steps of an erasure are not lost."""
    for start in range(0, 5_000, 100):
        journal.append(batch(*(new_row(number, payload=b"x") for number in range(start, start + 100))))
    execute, number = journal._execute, iter(range(10_000, 20_000))
    with closing(RedisJournal(settings_of(server.url))) as other:

        def execute_and_write(*commands: Command) -> list[Reply]:
            if commands[0][0] == "EVAL":
                other.append(batch(new_row(next(number), payload=b"late")))
            return execute(*commands)

        monkeypatch.setattr(journal, "_execute", execute_and_write)
        assert journal.erase(RowErasure("conversation-3")) == 500
        monkeypatch.undo()
        written = next(number) - 10_000
        assert written > 10
        rows = journal.rows(limit=10_000)
        assert len(rows) == 4_500 + written
        assert [row.id for row in rows] == sorted({row.id for row in rows}, reverse=True)
        assert journal.payload(rows[0].id) == b"late"
        assert not [key for key in server.client.scan_iter() if b"copy:" in key or b"rewriting" in key]
        assert {server.client.ttl(key) for key in server.client.scan_iter()} == {-1}


def test_one_erasure_at_a_time(server: RedisServer, journal: RedisJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second erasure is refused. An erasure that has lost its lock changes nothing more and leaves no copy."""
    journal.append(batch(*map(new_row, range(100))))
    execute = journal._execute
    with closing(RedisJournal(settings_of(server.url))) as other:

        def execute_and_compete(*commands: Command) -> list[Reply]:
            if commands[0][0] == "EVAL":
                with pytest.raises(StoreUnavailable, match="another erasure changes the journal"):
                    other.erase(RowErasure("conversation-4"))
                server.client.set(journal._key(b"rewriting"), b"another erasure")
            return execute(*commands)

        monkeypatch.setattr(journal, "_execute", execute_and_compete)
        with pytest.raises(StoreError, match="lost its lock"):
            journal.erase(RowErasure("conversation-3"))
        assert len(other.rows(limit=200)) == 100
        assert [key for key in server.client.scan_iter() if b"copy:" in key] == []
        assert server.client.get(journal._key(b"rewriting")) == b"another erasure"


def test_the_search_of_many_blocks_is_bounded(journal: RedisJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal with few events has a block for each row. A read searches a bounded number of blocks, and says where it
    stopped."""
    monkeypatch.setattr(base, "MOST_COMPARED", 50)
    for number in range(120):
        journal.append(batch(new_row(number)))
    where = RowFilter(term="evt-3")
    first = journal.rows(where)
    assert (first, first.next) == ([], journal.rows(limit=50)[-1].id)
    assert ids(base.all_rows(journal, where, 10)) == ["evt-3"]
    assert base.all_rows(journal, RowFilter(term="absent"), 10).next is None
