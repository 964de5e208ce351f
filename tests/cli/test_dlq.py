"""`oncegate dlq`: list, show, redrive and drop dead letters."""

import json
from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.cli import exit_codes
from tests.cli.conftest import Run


def fail(event: Event) -> None:
    raise ValueError(f"no case \x1b[31m{event.id}")


class TestDeadLetters:
    def test_empty(self, oncegate: Run, gate: Gate) -> None:
        """Without dead letters there is one sentence, and an empty list as JSON."""
        assert oncegate("dlq", "list")[:2] == (exit_codes.OK, "There are no dead letters.\n")
        assert json.loads(oncegate("dlq", "list", "--output", "json")[1]) == []

    def test_list(self, oncegate: Run, gate: Gate) -> None:
        """Each dead letter is one line with its key and error; control characters are escaped."""
        outcome = gate.run({"id": "evt-1", "type": "t"}, fail)
        _, out, _ = oncegate("dlq", "list")
        assert str(outcome.key) in out
        assert "ValueError: no case \\x1b[31mevt-1" in out
        assert "\x1b" not in out

    def test_limit(self, oncegate: Run, gate: Gate) -> None:
        """A list that is cut by --limit says so."""
        gate.run_batch([{"id": number} for number in range(5)], fail)
        _, out, _ = oncegate("dlq", "list", "--limit", "2")
        assert len(out.splitlines()) == 4
        assert "Showing the first 2; use --limit to see more." in out

    @pytest.mark.parametrize(("limit", "said"), [(2, "Showing the first 2; use --limit to see more.\n"), (5, "")])
    def test_limit_as_json(self, oncegate: Run, gate: Gate, limit: int, said: str) -> None:
        """With JSON, the note about a cut list goes to stderr."""
        gate.run_batch([{"id": number} for number in range(5)], fail)
        _, out, err = oncegate("dlq", "list", "--limit", str(limit), "--output", "json")
        assert (len(json.loads(out)), err) == (limit, said)

    def test_show(self, oncegate: Run, gate: Gate) -> None:
        """A dead letter is shown with its payload as delivered."""
        outcome = gate.run(b'{"id": "evt-1", "n": 1.0}', fail)
        code, out, _ = oncegate("dlq", "show", str(outcome.key))
        assert code == exit_codes.OK
        assert "Dead letter after 1 attempt." in out
        assert '{"id": "evt-1", "n": 1.0}' in out

    def test_redrive_waits_for_a_dispatcher(self, oncegate: Run, gate: Gate) -> None:
        """A redriven event is no longer a dead letter and waits to be run."""
        outcome = gate.run({"id": "evt-1"}, fail)
        assert oncegate("dlq", "redrive", str(outcome.key))[:2] == (exit_codes.OK, "1 redriven.\n")
        assert (
            "Waiting: the event is stored with its payload until the service or an inbox worker runs it."
            in oncegate("keys", "show", str(outcome.key))[1]
        )
        assert oncegate("dlq", "redrive", str(outcome.key))[:2] == (exit_codes.OK, "0 redriven.\n")
        done = gate.run({"id": "done"}, lambda event: None)
        code, _, err = oncegate("dlq", "redrive", str(done.key))
        assert code == exit_codes.NOT_FOUND
        assert "is not a dead letter" in err

    def test_redrive_what_cannot_be_read(self, oncegate: Run, gate: Gate) -> None:
        """`redrive` warns about events that cannot be read, with the problem and the remedy, and about no others."""
        outcome = gate.run({"id": "evt-1"}, fail)
        (broken,) = gate.keep([gate.run(b"{", fail)])
        code, out, err = oncegate("dlq", "redrive", "--all")
        assert (code, err) == (exit_codes.OK, "")
        first, told, advice = out.splitlines()
        assert first == "2 redriven."
        assert told.startswith(f"1 event cannot be read and will become a dead letter again: {broken.kept} (")
        assert "dlq drop" in advice
        assert str(outcome.key) not in out

    def test_redrive_a_call(self, oncegate: Run, gate: Gate) -> None:
        """`redrive` warns that no handler can run the call of a guarded function, and names the remedy."""
        with pytest.raises(ValueError, match="no case"):
            gate.once(name="pay")(fail)(Event(source="plain", id="1", body={}))
        code, out, err = oncegate("dlq", "redrive", "--all")
        assert (code, err) == (exit_codes.OK, "")
        first, told, advice = out.splitlines()
        assert first == "1 redriven."
        assert told.startswith("1 call of a function cannot be redriven and will become a dead letter again: ")
        assert "dlq drop" in advice

    def test_redrive_with_a_handler(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """With a handler the dead letters run at once, and each outcome is printed."""
        gate.run_batch([{"id": 1}, {"id": 2}], fail)
        (tmp_path / "mended.py").write_text("def handler(event):\n    assert event.id != '2', 'still broken'\n")
        code, out, _ = oncegate("dlq", "redrive", "--all", "--handler", "mended:handler")
        assert code == exit_codes.FAILED
        assert out.startswith("2 redriven.\n")
        assert "Processed at the first attempt." in out
        assert "Failed at attempt 1: AssertionError: still broken; the event is stored and will be retried." in out
        assert "after 5 attempts: AssertionError: still broken" in out
        assert gate.run({"id": 1}, fail).status == "duplicate"
        assert [entry.record.about.delivery_id for entry in gate.store.dead_letters()] == ["2"]

    def test_redrive_what_waits_already(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """An event that was redriven before and still waits can be run with a handler."""
        outcome = gate.run({"id": 1}, fail)
        oncegate("dlq", "redrive", str(outcome.key))
        (tmp_path / "later.py").write_text("def handler(event):\n    pass\n")
        code, out, _ = oncegate("dlq", "redrive", str(outcome.key), "--handler", "later:handler")
        assert code == exit_codes.OK
        assert "Processed at the first attempt." in out

    def test_drop(self, oncegate: Run, gate: Gate) -> None:
        """Dropped dead letters are deleted; other records are not."""
        done = gate.run({"id": "done"}, lambda event: None)
        gate.run_batch([{"id": 1}, {"id": 2}], fail)
        assert oncegate("dlq", "drop", str(done.key), "--yes")[0] == exit_codes.NOT_FOUND
        assert oncegate("dlq", "drop", "--all", "--yes")[:2] == (exit_codes.OK, "2 dropped.\n")
        assert gate.store.dead_letters() == []
        assert gate.run({"id": "done"}, fail).status == "duplicate"

    def test_many(self, oncegate: Run, gate: Gate) -> None:
        """--all covers all pages."""
        gate.run_batch([{"id": number} for number in range(250)], fail)
        assert oncegate("dlq", "drop", "--all", "--yes")[1] == "250 dropped.\n"

    @pytest.mark.parametrize("arguments", [(), ("--all", "0" * 32)])
    def test_which(self, oncegate: Run, arguments: tuple[str, ...]) -> None:
        """Either keys or --all is required; the store is not opened otherwise."""
        for command in ("redrive", "drop"):
            code, _, err = oncegate("dlq", command, *arguments)
            assert code == exit_codes.USAGE
            assert "name the keys of dead letters, or use --all" in err
