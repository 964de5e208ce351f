"""Gaps: rows about a time in which events may have been missed."""

from contextlib import closing
from pathlib import Path

import pytest

from oncegate.errors import StoreUnavailable
from oncegate.journal import GAP, Journal, RowFilter, open_journal
from oncegate.journal.base import ALL_ROWS
from oncegate.journal.gaps import GapLog

SINCE, UNTIL = 1_770_000_000_000_000, 1_770_000_090_500_000


def test_a_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A gap is a line of the log and a row of the journal, with its beginning and its end. Totals do not count it."""
    url = f"sqlite:///{tmp_path}/journal.db"
    with closing(GapLog(lambda: open_journal(url), "genesys", "crm")) as gaps:
        gaps.add("socket", SINCE, UNTIL, "the notification socket\nwas lost")
    with closing(open_journal(url, create=False)) as journal:
        (row,) = journal.rows(RowFilter(status=GAP))
        assert journal.rows(ALL_ROWS) == [row]
        assert list(journal.totals(ALL_ROWS, 0, 2 * UNTIL)) == []
    assert (row.kind, row.place, row.namespace, row.since, row.at) == ("socket", "genesys", "crm", SINCE, UNTIL)
    assert (row.key, row.entity, row.count) == (b"", None, 1)
    assert row.reason == caplog.records[0].getMessage()
    assert row.reason == (
        "Gap of 1 m, from 2026-02-02T02:40:00.000Z to 2026-02-02T02:41:30.500Z: the notification socket was lost"
    )


def test_a_journal_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    """A gap is always logged, also if the journal fails. Without a journal, it is only logged."""

    def broken() -> Journal:
        raise StoreUnavailable("the disk is full")

    with closing(GapLog(broken, "genesys", "crm")) as gaps:
        gaps.add("store", SINCE, UNTIL, "the store did not answer")
        assert not gaps.write_rest()
    with closing(GapLog(None, "genesys", "crm")) as gaps:
        gaps.add("stopped", SINCE, UNTIL, "no listener ran")
        assert gaps.write_rest()
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 4
    assert logged[1] == "the journal has no row for this gap yet: the disk is full"
    assert logged[2] == "the journal has no row for 1 gap: the disk is full"


def test_a_journal_that_can_be_written_again(tmp_path: Path) -> None:
    """The rows of gaps that could not be written are written later."""
    url, failures = f"sqlite:///{tmp_path}/journal.db", [StoreUnavailable("the disk is full")] * 3

    def opened() -> Journal:
        if failures:
            raise failures.pop()
        return open_journal(url)

    with closing(GapLog(opened, "genesys", "crm")) as gaps:
        gaps.add("socket", SINCE, UNTIL, "the socket was lost")
        gaps.add("store", SINCE, UNTIL, "the store did not answer")
        assert [gaps.write_rest(), gaps.write_rest()] == [False, True]
    with closing(open_journal(url, create=False)) as journal:
        assert [row.kind for row in journal.rows(RowFilter(status=GAP))] == ["store", "socket"]
