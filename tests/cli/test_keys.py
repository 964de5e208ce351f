"""`oncegate keys`: show and reset records."""

import io
import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Gate
from oncegate.claims import Claim, Complete, EventSummary, Release
from oncegate.cli import exit_codes
from oncegate.journal import OPERATOR_ACTIONS, open_journal
from tests.cli.conftest import Run

ABOUT = EventSummary("plain", "call", "conv-7", delivery_id="runs")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestList:
    @pytest.fixture(autouse=True)
    def records(self, gate: Gate) -> None:
        """Four records in four states, the oldest first."""
        gate.run({"id": "done", "type": "call"}, lambda event: None)
        gate.run({"id": "dead", "type": "chat"}, lambda event: 1 / 0)
        gate.admit([{"id": "waits", "type": "chat", "entity": "conv-1"}])
        gate.store.claim([Claim("default", b"k" * 16, b"a" * 16, b"h" * 16, 10**10, 10**12, ABOUT)])

    @pytest.mark.parametrize(
        ("filters", "listed"),
        [
            ((), ["runs", "waits", "dead", "done"]),
            (("--state", "completed"), ["done"]),
            (("--state", "in-progress"), ["runs"]),
            (("--state", "released"), ["waits"]),
            (("--state", "dead"), ["dead"]),
            (("--type", "chat"), ["waits", "dead"]),
            (("--type", "chat", "--state", "dead"), ["dead"]),
            (("--entity", "conv-7"), ["runs"]),
            (("--limit", "2"), ["runs", "waits"]),
            (("--namespace", "other"), []),
        ],
    )
    def test_filters(self, oncegate: Run, filters: tuple[str, ...], listed: list[str]) -> None:
        """Records are listed newest first, and each filter narrows the list."""
        code, out, _ = oncegate("keys", "list", "--output", "json", *filters)
        assert (code, [each["event_id"] for each in json.loads(out)]) == (exit_codes.OK, listed)
        assert all("payload" not in each for each in json.loads(out))

    def test_a_table(self, oncegate: Run) -> None:
        """The table has one line for each record. A list that is cut, or that stopped early, says so."""
        header, *rows, more, stopped = oncegate("keys", "list", "--limit", "2", "--scan", "3")[1].splitlines()
        assert re.split(r"\s{2,}", header)[:3] == ["key", "namespace", "event id"]
        assert len(rows) == 2
        assert more == "Showing the newest 2; use --limit to see more."
        assert stopped == "Only 3 records were scanned; use --scan to scan more."

    def test_nothing(self, oncegate: Run) -> None:
        """An empty list is one sentence."""
        assert oncegate("keys", "list", "--entity", "other")[1] == "No record matches.\n"
        told = oncegate("keys", "list", "--namespace", "other")[1]
        assert told == "There are no records in namespace other. There are records in other namespaces: default.\n"
        assert oncegate("keys", "list", "--namespace", "other", "--type", "a")[1] == told

    def test_nothing_changes(self, oncegate: Run, gate: Gate) -> None:
        """The list only reads."""
        before = gate.store.browse()
        oncegate("keys", "list")
        assert gate.store.browse() == before


class TestKeys:
    def test_show(self, oncegate: Run, gate: Gate) -> None:
        """`keys show` prints one sentence about the next delivery, then the fields of the record."""
        outcome = gate.run({"id": "evt-1", "type": "call.ended"}, lambda event: {"case": 7})
        code, out, err = oncegate("keys", "show", str(outcome.key))
        assert (code, err) == (exit_codes.OK, "")
        assert re.match(
            r"Processed \d+ (ms|s) ago\. Until 20[^,]+, every further delivery with the same content is a duplicate\.",
            out,
        )
        facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines()[1:])
        assert (facts["key"], facts["state"], facts["event_id"]) == (str(outcome.key), "completed", "evt-1")
        assert json.loads(facts["result"]) == {"case": 7}

    def test_show_json(self, oncegate: Run, gate: Gate) -> None:
        """The JSON output has the fields of the record."""
        outcome = gate.run({"id": "evt-1"}, lambda event: [1])
        code, out, _ = oncegate("keys", "show", str(outcome.key), "--output", "json")
        shown = json.loads(out)
        assert code == exit_codes.OK
        assert (shown["state"], shown["result"], shown["attempts"]) == ("completed", [1], 1)
        assert (shown["lost"], shown["handed_to"], shown["unavailable_since"]) == (0, None, None)

    def test_show_what_was_counted(self, oncegate: Run, gate: Gate) -> None:
        """Lost attempts, the start of unavailability and the publish target are shown."""
        key, about = b"k" * 16, EventSummary("plain", delivery_id="evt-1")
        (granted,) = gate.store.claim([Claim("default", key, b"a" * 16, b"h" * 16, 1, 10**12, about)])
        assert json.loads(oncegate("keys", "show", key.hex(), "--output", "json")[1])["lost"] == 0
        (granted,) = gate.store.claim([Claim("default", key, b"b" * 16, b"h" * 16, 10**10, 10**12, about)])
        assert json.loads(oncegate("keys", "show", key.hex(), "--output", "json")[1])["lost"] == 1
        assert "at its first attempt (plus 1 lost attempt)" in oncegate("explain", key.hex())[1]
        proof = ("default", key, b"b" * 16, granted.record.fence)
        gate.store.settle([Release(*proof, "ConnectionError: refused", unavailable=True)])
        code, out, _ = oncegate("keys", "show", key.hex())
        assert (code, "Released: what the handler calls has been unavailable for" in out) == (exit_codes.OK, True)
        assert "unavailable_since" in out
        said = oncegate("explain", key.hex())[1]
        assert said.startswith("Run without success: what the handler of evt-1 calls has been unavailable for")
        (granted,) = gate.store.claim([Claim("default", key, b"c" * 16, b"h" * 16, 10**10, 10**12, about)])
        proof = ("default", key, b"c" * 16, granted.record.fence)
        gate.store.settle([Complete(*proof, 10**12, b"null", handed_to="sqs://queue")])
        assert "Published to sqs://queue" in oncegate("keys", "show", key.hex())[1]
        assert "evt-1 was published to sqs://queue at" in oncegate("explain", key.hex())[1]

    def test_reset(self, oncegate: Run, gate: Gate) -> None:
        """After a reset the event runs again; a second reset finds no record."""
        outcome = gate.run({"id": "evt-1"}, lambda event: None)
        code, out, _ = oncegate("keys", "reset", str(outcome.key), "--yes")
        assert code == exit_codes.OK
        assert out.endswith(f"Deleted {outcome.key}. Running processes may cache its completion for up to a minute.\n")
        assert gate.run({"id": "evt-1"}, lambda event: None).status == "processed"
        oncegate("keys", "reset", str(outcome.key), "--yes")
        code, _, err = oncegate("keys", "reset", str(outcome.key), "--yes")
        assert code == exit_codes.NOT_FOUND
        assert "there is no record of" in err
        assert "the event was never seen, or its record has expired, or was reset or dropped" in err

    def test_reset_of_a_dead_letter(self, oncegate: Run, gate: Gate) -> None:
        """A dead letter is not reset, because its payload would be lost."""
        key = gate.run({"id": "evt-1"}, lambda event: 1 / 0).key
        code, out, err = oncegate("keys", "reset", str(key), "--yes")
        assert (code, out) == (exit_codes.USAGE, "")
        assert f"use oncegate dlq redrive {key} to run it again, or oncegate dlq drop {key} to delete it" in err
        assert len(gate.store.dead_letters()) == 1

    def test_reset_of_a_waiting_event(self, oncegate: Run, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        """The payload of a waiting event is deleted with its record, and no completion is cached."""
        (outcome,) = gate.admit([{"id": "evt-1"}])
        monkeypatch.setattr("sys.stdin", _Terminal("y\n"))
        code, out, err = oncegate("keys", "reset", str(outcome.key))
        assert (code, out.endswith(f"Deleted {outcome.key}.\n")) == (exit_codes.OK, True)
        assert "Delete this record and the stored payload, so that the next delivery runs?" in out + err
        assert "The stored payload is deleted too. The event is lost unless it is delivered again.\n" in out

    def test_reset_asks(self, oncegate: Run, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a confirmation nothing is deleted."""
        outcome = gate.run({"id": "evt-1"}, lambda event: None)
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        code, out, _ = oncegate("keys", "reset", str(outcome.key))
        assert code == exit_codes.FAILED
        assert out.endswith("Nothing was changed.\n")
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        code, _, err = oncegate("keys", "reset", str(outcome.key))
        assert code == exit_codes.USAGE
        assert err == ("Error: cannot ask for confirmation because stdin is not a terminal; add --yes to confirm\n")
        assert gate.run({"id": "evt-1"}, lambda event: None).status == "duplicate"

    def test_several_namespaces(self, oncegate: Run, gate: Gate) -> None:
        """A key in several namespaces needs --namespace."""
        other = Gate(gate.store, namespace="other")
        outcome = gate.run({"id": 1}, lambda event: None)
        other.run({"id": 1}, lambda event: None)
        code, _, err = oncegate("keys", "show", str(outcome.key))
        assert code == exit_codes.USAGE
        assert "several namespaces (default, other)" in err
        assert oncegate("keys", "show", str(outcome.key), "--namespace", "other")[0] == exit_codes.OK


def test_the_record_of_a_reset(oncegate: Run, gate: Gate, tmp_path: Path) -> None:
    """The journal has a row for a reset: who, the key, and the state of the deleted record."""
    with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db")) as journal:
        outcome = gate.run({"id": "evt-1", "type": "call"}, lambda event: None)
        oncegate("keys", "reset", str(outcome.key), "--yes")
        (row,) = journal.rows(OPERATOR_ACTIONS)
    assert (row.kind, row.key_text, row.event_id, row.type) == ("reset", str(outcome.key), "evt-1", "call")
    assert row.reason == "Reset. The record was completed."
