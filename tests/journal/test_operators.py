"""The record of what operators did."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from oncegate.claims import EventSummary
from oncegate.errors import NoStore, StoreUnavailable
from oncegate.journal import OPERATOR_ACTIONS, ChangedEvent, Journal, OperatorLog, RowFilter, open_journal
from oncegate.settings import Settings, examine
from tests.journal.contract import HOSTILE


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    def of(**flags: str) -> Settings:
        return examine(flags={"store": f"sqlite:///{tmp_path}/store.db", **flags}, environ={})[0]

    return of


def test_an_action(tmp_path: Path) -> None:
    """A row has who, what and the event. Text from a sender or a person stays on one line."""
    url = f"sqlite:///{tmp_path}/journal.db"
    log = OperatorLog(lambda: open_journal(url), f"ada\n{HOSTILE}", lambda: 5)
    about = EventSummary("plain", HOSTILE, HOSTILE, None, HOSTILE)
    log.add("reset", f"Reset {HOSTILE}", ChangedEvent(f"crm{HOSTILE}", b"k" * 16, about))
    log.close()
    assert log.problem is None
    with closing(open_journal(url, create=False)) as journal:
        (row,) = journal.rows(OPERATOR_ACTIONS)
        assert (row.status, row.kind, row.key, row.at) == ("operator", "reset", b"k" * 16, 5)
        assert row.reason.startswith("Reset ")
        assert row.worker.startswith("ada ")
        assert (row.reason + row.worker).isprintable()
        assert list(journal.rows(RowFilter(term=b"k".hex() * 16, operators=True))) == [row]


@pytest.mark.parametrize(
    ("error", "is_missing"),
    [(NoStore("there is no journal"), True), (StoreUnavailable("disk full"), False)],
)
def test_no_journal(caplog: pytest.LogCaptureFixture, error: Exception, is_missing: bool) -> None:
    """Without a journal, the log has the record. The action goes on, and the journal is not opened again."""
    opened = []

    def fail() -> Journal:
        opened.append(1)
        raise error

    log = OperatorLog(fail, "ada")
    log.add_events("drop", "Dropped.", [ChangedEvent("crm", b"", EventSummary("plain"))])
    log.add("drop", "Dropped 2 dead letters.")
    log.close()
    assert (log.problem, log.is_missing, len(opened)) == (str(error), is_missing, 1)
    OperatorLog(fail, "ada", is_logged=False).add("drop", "Dropped by a command.")
    assert caplog.messages == ["drop (ada): Dropped 2 dead letters."]


class TestSettings:
    def test_auto(self, settings: Callable[..., Settings], tmp_path: Path) -> None:
        """With `auto`, an action adds a row to a journal that exists, and creates none."""
        log = settings().operator_log("ada")
        log.add("drop", "Dropped 2 dead letters.")
        assert (log.is_missing, list(tmp_path.iterdir())) == (True, [])
        open_journal(f"sqlite:///{tmp_path}/store.journal.db").close()
        log = settings().operator_log("ada")
        log.add("drop", "Dropped 2 dead letters.")
        log.close()
        with closing(settings().open_journal()) as journal:
            assert [row.worker for row in journal.rows(OPERATOR_ACTIONS)] == ["ada"]

    def test_a_journal_with_a_url(self, settings: Callable[..., Settings], tmp_path: Path) -> None:
        """A journal that the settings name is created."""
        chosen = settings(journal=f"sqlite:///{tmp_path}/other.db")
        log = chosen.operator_log("ada")
        log.add("drop", "Dropped 2 dead letters.")
        log.close()
        with closing(chosen.open_journal()) as journal:
            assert len(journal.rows(OPERATOR_ACTIONS)) == 1

    def test_off(self, settings: Callable[..., Settings]) -> None:
        log = settings(journal="off").operator_log("ada")
        log.add("drop", "Dropped 2 dead letters.")
        assert log.is_missing
        assert "it is off" in (log.problem or "")
