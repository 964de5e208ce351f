"""`oncegate forget`: erase one entity."""

import io
import json
import os
import pwd
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.claims import Claim, EventSummary, Forget, Redrive
from oncegate.cli import exit_codes
from oncegate.errors import StoreUnavailable
from oncegate.inspection.operators import all_dead_letters
from oncegate.journal import OPERATOR_ACTIONS, open_journal, open_recorder
from oncegate.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Run, on_terminal

ENTITY = "conversation-4711"
CACHED = "Running processes may keep the erased data in memory for up to a minute"
FREE_SPACE = "Data that SQLite deleted earlier"


def event(id_: str, entity: str = ENTITY) -> dict[str, Any]:
    return {"id": id_, "type": "call.ended", "conversationId": entity}


def fail(event: Event) -> None:
    raise ValueError("no mail for Annabel")


@pytest.fixture
def filled(gate: Gate, tmp_path: Path) -> Path:
    """A record and a dead letter of the entity, a record of another entity, and a journal."""
    recorder = open_recorder(f"sqlite:///{tmp_path}/oncegate.journal.db", payload_age=60_000_000)
    recorded = Gate(gate.store, max_attempts=1, remember=None, observers=[recorder.of("calls")])
    recorded.run(event("evt-1"), lambda event: "Annabel")
    recorded.run(event("evt-2"), fail)
    recorded.run(event("other-1", "conversation-4712"), lambda event: "Bernd")
    assert recorder.flush(20)
    recorder.close()
    return tmp_path


def entities(gate: Gate) -> list[str]:
    return sorted(entry.record.about.entity or "" for entry in gate.store.browse())


def test_dry_run(oncegate: Run, gate: Gate, filled: Path) -> None:
    """A dry run counts, and changes nothing."""
    before = gate.store.browse()
    code, out, err = oncegate("forget", "--entity", ENTITY, "--dry-run")
    assert (code, err) == (exit_codes.OK, "")
    assert out == "Found 1 record, 1 dead letter and 2 journal rows.\nDry run: nothing was changed.\n"
    assert gate.store.browse() == before
    with closing(open_journal(f"sqlite:///{filled}/oncegate.journal.db")) as journal:
        assert len(journal.rows()) == 3


def test_erase(oncegate: Run, gate: Gate, filled: Path) -> None:
    """Records, dead letters and rows are erased. Duplicates are still recognised. The action is recorded without the
    entity."""
    code, out, err = oncegate("forget", "--entity", ENTITY, "--yes")
    assert (code, err) == (exit_codes.OK, "")
    lines = out.splitlines()
    assert lines[:2] == [
        "Found 1 record, 1 dead letter and 2 journal rows.",
        "Erased 1 record, 1 dead letter and 2 journal rows.",
    ]
    assert CACHED in lines[2]
    assert FREE_SPACE in lines[3]
    assert entities(gate) == ["", "", "conversation-4712"]
    assert gate.run(event("evt-1"), fail).status == gate.run(event("evt-2"), fail).status == "duplicate"
    with closing(open_journal(f"sqlite:///{filled}/oncegate.journal.db")) as journal:
        assert [row.event_id for row in journal.rows()] == ["other-1"]
        (action,) = journal.rows(OPERATOR_ACTIONS)
    assert (action.kind, action.reason) == ("forget", "Erased 1 record, 1 dead letter and 2 journal rows.")
    assert action.worker.startswith(f"{pwd.getpwuid(os.getuid()).pw_name}@")
    assert oncegate("forget", "--entity", ENTITY, "--yes")[:2] == (
        exit_codes.OK,
        "Found 0 records, 0 dead letters and 0 journal rows.\nErased 0 records, 0 dead letters and 0 journal rows.\n",
    )


def test_the_files(oncegate: Run, gate: Gate, filled: Path) -> None:
    """With --vacuum, no file has a trace of the entity, while a service has the files open."""
    assert oncegate("forget", "--entity", ENTITY, "--yes", "--vacuum")[0] == exit_codes.OK
    data = b"".join(path.read_bytes() for path in filled.glob("*.db*") if path.is_file())
    assert [text for text in (ENTITY, "Annabel", "evt-1", "evt-2") if text.encode() in data] == []
    assert b"conversation-4712" in data


def test_json(oncegate: Run, filled: Path) -> None:
    """The counts as JSON on stdout, the rest on stderr."""
    code, out, err = oncegate("forget", "--entity", ENTITY, "--yes", "--output", "json")
    found = {"records": 1, "dead_letters": 1, "waiting": 0, "in_progress": 0, "journal_rows": 2}
    erased = {"records": 1, "dead_letters": 1, "waiting": 0, "journal_rows": 2}
    assert code == exit_codes.OK
    assert json.loads(out) == {
        "dry_run": False,
        "found": found,
        "erased": erased,
        "left": 0,
        "journal_rows_left": 0,
    }
    assert "Found 1 record" in err
    out = oncegate("forget", "--entity", ENTITY, "--dry-run", "--output", "json")[1]
    assert json.loads(out)["dry_run"] is True


def test_confirmation(oncegate: Run, gate: Gate, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --yes, the command asks. Without an answer it changes nothing."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, out, err = oncegate("forget", "--entity", ENTITY)
    assert code == exit_codes.USAGE
    assert "Found 1 record" in out
    assert "add --yes to confirm" in err
    assert ENTITY in entities(gate)
    assert oncegate("forget", "--entity", "nothing")[0] == exit_codes.OK


def test_waiting_and_running(oncegate: Run, gate: Gate, filled: Path) -> None:
    """An event that waits or is in progress is left, and the exit code says so. With --waiting, a waiting event never
    runs."""
    (dead,) = all_dead_letters(gate.store, None)
    gate.store.redrive([Redrive(dead.namespace, dead.key)])
    about = EventSummary("plain", "call.ended", ENTITY)
    gate.store.claim([Claim("default", b"r" * 16, b"o" * 16, b"h" * 16, 60_000_000, 60_000_000, about)])
    code, out, err = oncegate("forget", "--entity", ENTITY, "--yes")
    assert code == exit_codes.FAILED
    assert "1 event has not run yet, and will be left. Use --waiting to erase waiting events.\n" in out
    assert "1 event in progress will be left.\n" in out
    assert "Error: 2 events could not be erased now; run the command again\n" in err
    code, out, err = oncegate("forget", "--entity", ENTITY, "--yes", "--waiting")
    assert code == exit_codes.FAILED
    assert "1 event has not run yet, and will never run.\n" in out
    assert "Erased 0 records, 0 dead letters, 1 waiting event and 0 journal rows.\n" in out
    assert "Error: 1 event could not be erased now" in err
    assert gate.run_waiting(fail) == []


def test_a_file_in_use(oncegate: Run, filled: Path) -> None:
    """If another process reads the file for too long, its log cannot be emptied. The command says so, and the next call
    empties it."""
    store = f"sqlite:///{filled}/oncegate.db?busy_timeout=50ms"
    with closing(sqlite3.connect(filled / "oncegate.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM claims").fetchone()
        code, out, _ = oncegate("forget", "--entity", ENTITY, "--yes", "--store", store)
        assert (code, "their logs still hold the erased data" in out) == (exit_codes.FAILED, True)
    assert oncegate("forget", "--entity", ENTITY, "--yes", "--store", store)[0] == exit_codes.OK


def test_an_interrupted_command(oncegate: Run, gate: Gate, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store fails in the middle, the command and the journal say what was erased before."""
    gate.run_batch([event(f"more-{number}") for number in range(248)], lambda event: None)
    forget, batches = SqliteStore.forget, iter(range(3))

    def fail_third(store: SqliteStore, requests: Sequence[Forget]) -> list[bool]:
        if next(batches) == 2:
            raise StoreUnavailable("the disk is full")
        return forget(store, requests)

    monkeypatch.setattr(SqliteStore, "forget", fail_third)
    code, out, err = oncegate("forget", "--entity", ENTITY, "--yes")
    erased = "Erased 200 records and 0 dead letters. Interrupted after 200 of 250 records (stopped by an error)."
    assert (code, out.splitlines()[-1], "the disk is full" in err) == (exit_codes.STORE, erased, True)
    with closing(open_journal(f"sqlite:///{filled}/oncegate.journal.db")) as journal:
        assert [row.reason for row in journal.rows(OPERATOR_ACTIONS)] == [erased]


def test_a_journal_that_is_not_used(oncegate: Run, gate: Gate, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the journal is off but exists, a warning says that its rows are left. --journal names a journal."""
    monkeypatch.setenv("ONCEGATE_JOURNAL", "off")
    code, out, err = oncegate("forget", "--entity", ENTITY, "--dry-run")
    assert (code, err) == (exit_codes.OK, "")
    assert " ".join(out.split()).startswith(
        "Found 1 record and 1 dead letter. Warning: ONCEGATE_JOURNAL is off, but there is a journal beside the store."
        " Its rows are not searched and not erased. Use --journal auto"
    )
    for journal in ("auto", f"sqlite:///{filled}/oncegate.journal.db"):
        out = oncegate("forget", "--entity", ENTITY, "--dry-run", "--journal", journal)[1]
        assert out.startswith("Found 1 record, 1 dead letter and 2 journal rows.\n")
    (filled / "oncegate.journal.db").write_bytes(b"this is no database" * 1_000)
    assert " off, but there is a journal beside" in oncegate("forget", "--entity", ENTITY, "--dry-run")[1]


def test_without_a_journal(oncegate: Run, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a journal, the records are erased, and no journal is created."""
    gate.run(event("evt-1"), lambda event: None)
    for journal in ("sqlite:///absent.db", "off", "auto"):
        monkeypatch.setenv("ONCEGATE_JOURNAL", journal)
        out = oncegate("forget", "--entity", ENTITY, "--dry-run")[1]
        assert out.startswith("Found 1 record and 0 dead letters. There is no journal.\n")
    assert oncegate("forget", "--entity", ENTITY, "--yes")[1].startswith("Found 1 record")
    assert not [path for path in Path().iterdir() if "journal" in path.name or "absent" in path.name]
    assert entities(gate) == [""]


def test_refused_options(oncegate: Run, gate: Gate) -> None:
    """An empty or missing entity is refused."""
    assert "--entity is empty" in oncegate("forget", "--entity", "")[2]
    assert oncegate("forget")[0] == exit_codes.USAGE


@pytest.mark.parametrize("columns", ["50", "80"])
def test_on_a_terminal(filled: Path, columns: str) -> None:
    """No line is wider than the terminal."""
    shown = on_terminal(["forget", "--entity", ENTITY, "--yes"], filled, COLUMNS=columns, NO_COLOR="1")
    assert "Erased 1 record" in shown
    assert "\x1b[3" not in shown
