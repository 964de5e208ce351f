"""The journal in an SQLite file."""

import os
import sqlite3
import stat
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pytest

from oncegate.errors import NoStore, StoreError, StoreReadOnly, StoreRefused, StoreUnavailable
from oncegate.journal.base import LEAST_SIZE, MAX_AGE, JournalBounds, RowFilter
from oncegate.journal.rows import Row, RowErasure
from oncegate.journal.sqlite import SqliteJournal
from tests.journal.contract import START, JournalContract, batch, ids, label, new_row


class TestSqliteJournal(JournalContract):
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = tmp_path / "x.journal.db"

    def open(self) -> SqliteJournal:
        return SqliteJournal(str(self.path))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "x.journal.db")


@pytest.fixture
def journal(path: str) -> Iterator[SqliteJournal]:
    with closing(SqliteJournal(path, max_size=LEAST_SIZE)) as journal:
        yield journal


def test_the_file(path: str, journal: SqliteJournal) -> None:
    """The file has a write-ahead log, and only its owner can read it."""
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_size_is_bounded(path: str, journal: SqliteJournal) -> None:
    """The file never becomes larger than the bound, and the newest rows stay."""
    bounds = JournalBounds(max_size=LEAST_SIZE, payload_age=MAX_AGE)
    for start in range(0, 40_000, 2_000):
        rows = [new_row(number, payload=os.urandom(400)) for number in range(start, start + 2_000)]
        journal.append(batch(*rows))
        for _ in range(20):
            if not journal.prune(bounds, START):
                break
        assert os.stat(path).st_size <= LEAST_SIZE
    assert journal.size() <= LEAST_SIZE
    assert journal.rows()[0].event_id == "evt-39999"
    assert len(journal.rows(limit=40_000)) > 5_000
    assert journal.rows(RowFilter(term="evt-1")) == []
    assert ids(journal.rows(RowFilter(term="evt-39000"))) == ["evt-39000"]


def test_a_full_journal_refuses_rows_and_goes_on(journal: SqliteJournal) -> None:
    """Without pruning the file stays within the bound; after pruning rows are written again."""

    def fill() -> None:
        for start in range(0, 100_000, 2_000):
            journal.append(batch(*(new_row(number, payload=os.urandom(400)) for number in range(start, start + 2_000))))

    with pytest.raises(StoreReadOnly, match="has reached journal_max_size; nothing was written"):
        fill()
    journal.prune(JournalBounds(max_size=LEAST_SIZE, payload_age=MAX_AGE), START)
    journal.append(batch(new_row(100_000)))
    assert ids(journal.rows(limit=1)) == ["evt-100000"]


@pytest.mark.parametrize(("rows", "free"), [(0, 2**40), (15_000, 0)])
def test_a_full_disk(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch, rows: int, free: int) -> None:
    """If the disk is full, or a quota applies to it, the error names the disk and not the largest size."""
    for start in range(0, rows, 1_500):
        journal.append(batch(*(new_row(number, payload=os.urandom(400)) for number in range(start, start + 1_500))))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    with pytest.raises(StoreReadOnly, match="the disk that holds"), journal._connection():
        raise error


def test_a_lower_bound_makes_the_file_smaller(path: str) -> None:
    """If the bound is lowered, the file shrinks to the new bound."""
    with closing(SqliteJournal(path)) as journal:
        for start in range(0, 60_000, 5_000):
            rows = (new_row(number, payload=os.urandom(300)) for number in range(start, start + 5_000))
            journal.append(batch(*rows))
    assert os.stat(path).st_size > LEAST_SIZE * 2
    with closing(SqliteJournal(path, max_size=LEAST_SIZE)) as journal:
        for _ in range(50):
            journal.prune(JournalBounds(max_size=LEAST_SIZE), START)
    assert os.stat(path).st_size <= LEAST_SIZE


def test_a_removed_file_is_made_again(path: str, journal: SqliteJournal) -> None:
    """Rows are not written to a file that was removed or replaced."""
    journal.append(batch(new_row(1)))
    for suffix in ("", "-wal", "-shm"):
        os.unlink(path + suffix)
    journal.append(batch(new_row(2)))
    with closing(SqliteJournal(path, create=False)) as reader:
        assert ids(reader.rows()) == ["evt-2"]


def test_a_removed_file_keeps_its_secret(path: str, journal: SqliteJournal) -> None:
    """A file that is made again has the same secret, and the writer learns that the shapes are lost. The file of
    another process is refused."""
    secret = journal.secret()
    assert journal.append(batch(new_row(1)))
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    assert not journal.append(batch(new_row(2)))
    assert journal.append(batch(new_row(3)))
    assert journal.secret() == secret
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    with closing(SqliteJournal(path)):
        """Another process makes the file."""
    with pytest.raises(StoreUnavailable, match="was replaced; nothing was written"):
        journal.append(batch(new_row(4)))


def test_reading_creates_nothing(path: str) -> None:
    """A reader of a journal that does not exist gets an error, and no file is made."""
    with pytest.raises(NoStore, match="there is no journal at"):
        SqliteJournal(path, create=False)
    assert not Path(path).exists()


def test_readers_see_new_rows_and_cannot_write(path: str, journal: SqliteJournal) -> None:
    """A reader sees the rows that are written after it was opened; it cannot write."""
    with closing(SqliteJournal(path, create=False)) as reader:
        assert reader.rows() == []
        journal.append(batch(new_row(1)))
        assert ids(reader.rows()) == ["evt-1"]
        with pytest.raises(StoreError):
            reader.append(batch(new_row(2)))


@pytest.mark.parametrize("content", ["text", "other"])
def test_a_file_of_another_program(path: str, content: str) -> None:
    """A file of another program is refused and not changed."""
    if content == "text":
        Path(path).write_text("this is not a database, but it is long enough to look like one" * 20)
    else:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE theirs (x)")
    before = Path(path).read_bytes()
    with pytest.raises(StoreRefused):
        SqliteJournal(path)
    assert Path(path).read_bytes() == before


def test_a_missing_folder(tmp_path: Path) -> None:
    """The error names the folder that does not exist."""
    with pytest.raises(StoreRefused, match=r"the folder .*/none for the journal"):
        SqliteJournal(str(tmp_path / "none" / "x.db"))


_WRITER = """
import sys
from contextlib import closing
from oncegate.journal.sqlite import SqliteJournal
from tests.journal.contract import batch, label, new_row
path, name = sys.argv[1:]
with closing(SqliteJournal(path)) as journal:
    for start in range(0, 600, 20):
        journal.append(batch(*(new_row(number, label(name)) for number in range(start, start + 20))))
"""


def test_several_processes(path: str) -> None:
    """Processes that write at the same time lose no row, and terms find the rows of all of them."""
    names = ["one", "two", "three"]
    root = Path(__file__).parent.parent.parent
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, path, name], cwd=root) for name in names]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    with closing(SqliteJournal(path, create=False)) as journal:
        rows = journal.rows(limit=2_000)
        assert len({row.id for row in rows}) == len(rows) == 1_800
        assert [len(journal.rows(RowFilter(place=name), limit=2_000)) for name in names] == [600, 600, 600]
        assert sorted(row.place for row in journal.rows(RowFilter(term="evt-17"))) == sorted(names)


def test_lists_of_many_rows_are_quick(journal: SqliteJournal) -> None:
    """The first page of every list comes quickly from 50,000 rows, also for a rare status or an absent term. The
    benchmark measures a million rows."""
    rare = label(status="conflict")
    for start in range(0, 50_000, 5_000):
        rows = [new_row(number, rare if number % 10_000 == 3 else None) for number in range(start, start + 5_000)]
        journal.append(batch(*rows))
    took = []
    reads: list[Callable[[], list[Row]]] = [
        journal.rows,
        lambda: journal.rows(RowFilter(status="conflict")),
        lambda: journal.rows(RowFilter(place="default", status="processed")),
        lambda: journal.rows(RowFilter(term="evt-77")),
        lambda: journal.rows(RowFilter(term="absent")),
    ]
    for read in reads:
        began = time.perf_counter()
        read()
        took.append(time.perf_counter() - began)
    assert max(took) < 0.5, took
    assert ids(journal.rows(RowFilter(status="conflict"))) == [f"evt-{n}" for n in (40_003, 30_003, 20_003, 10_003, 3)]


def test_the_index_forgets(tmp_path: Path) -> None:
    """The index of terms has no hash of an erased row, in full blocks and later in the block that was not full."""
    with closing(SqliteJournal(str(tmp_path / "j.db"))) as journal:
        journal.append(batch(*map(new_row, range(1_500))))
        journal.erase(RowErasure("conversation-3"))
        journal.append(batch(*(new_row(number * 10) for number in range(151, 700))))
        with journal._connection() as db:
            blocks = db.execute("SELECT hashes FROM terms").fetchall()
        found = {each for (hashes,) in blocks for each in array("I", hashes)}
        assert len(blocks) > 2
        assert not {crc32(b"conversation-3"), crc32(b"evt-3"), crc32(b"evt-1493")} & found
        assert {crc32(b"conversation-0"), crc32(b"evt-1492")} <= found


def test_blocks_that_are_made_during_an_erasure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process makes a block of rows that an erasure is about to delete, the index forgets them, too."""
    with (
        closing(SqliteJournal(str(tmp_path / "j.db"))) as journal,
        closing(SqliteJournal(str(tmp_path / "j.db"))) as other,
    ):
        journal.append(batch(*map(new_row, range(500))))
        erase_block = journal._erase_block

        def write_and_erase(erasure: RowErasure, first: int, last: int, *, dry_run: bool) -> int:
            other.append(batch(*map(new_row, range(500, 600))))
            return erase_block(erasure, first, last, dry_run=dry_run)

        monkeypatch.setattr(journal, "_erase_block", write_and_erase)
        journal.erase(RowErasure("conversation-3"))
        with journal._connection() as db:
            (hashes,) = db.execute("SELECT hashes FROM terms").fetchone()
        assert crc32(b"conversation-3") not in array("I", hashes)
        assert crc32(b"conversation-4") in array("I", hashes)
