"""`oncegate dlq`: list, show, redrive and drop dead letters."""

import io
import json
import os
import pwd
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.cli import exit_codes
from oncegate.journal import OPERATOR_ACTIONS, Journal, RowFilter, open_journal
from tests.cli.conftest import Run


def fail(event: Event) -> None:
    raise ValueError(f"no case \x1b[31m{event.id}")


def ids(shown: str) -> list[str]:
    """The event ids of a list in JSON, in its order."""
    return [each["event_id"] for each in json.loads(shown)]


@pytest.fixture
def dead(gate: Gate) -> dict[str, str]:
    """Four dead letters of two types, the oldest first. Returns their keys by event id."""
    found = {}
    for event in ({"id": "a", "type": "call"}, {"id": "b", "type": "call"}, {"id": "c", "type": "chat"}):
        found[event["id"]] = str(gate.run(event, fail).key)
    found["d"] = str(gate.run({"id": "d", "type": "chat"}, lambda event: 1 / 0).key)
    return found


class TestFilters:
    @pytest.mark.parametrize(
        ("filters", "selected"),
        [
            ((), "dcba"),
            (("--id", "b"), "b"),
            (("--type", "call"), "ba"),
            (("--error", "NO CASE \\x1b[31m"), "cba"),
            (("--error", "division by zero"), "d"),
            (("--type", "chat", "--error", "no case"), "c"),
            (("--newer-than", "1h"), "dcba"),
            (("--older-than", "1h"), ""),
            (("--type", "nothing"), ""),
        ],
    )
    def test_each(
        self, oncegate: Run, gate: Gate, dead: dict[str, str], filters: tuple[str, ...], selected: str
    ) -> None:
        """`list`, `redrive` and `drop` have the same filters, and each filter narrows the selection. A dry run changes
        nothing."""
        assert ids(oncegate("dlq", "list", "--output", "json", *filters)[1]) == list(selected)
        count = f"{len(selected)} dead letter{' matches' if len(selected) == 1 else 's match'}.\n"
        choice = filters or ("--all",)
        for command in ("redrive", "drop"):
            code, out, err = oncegate("dlq", command, "--dry-run", *choice)
            assert (code, err, out.startswith(count)) == (exit_codes.OK, "", True)
            assert out.endswith("Dry run: nothing was changed.\n")
            assert [line.split()[0] for line in out.splitlines()[2:-1]] == [dead[each] for each in selected]
        assert len(gate.store.dead_letters()) == 4
        code, out, err = oncegate("dlq", "drop", "--yes", *choice)
        assert (code, out, err) == (exit_codes.OK, f"{count}{len(selected)} dropped.\n", "")
        left = {entry.record.about.delivery_id for entry in gate.store.dead_letters()}
        assert left == set("abcd") - set(selected)

    def test_keys_and_filters(self, oncegate: Run, gate: Gate, dead: dict[str, str]) -> None:
        """With keys and filters, only the named dead letters that match are changed."""
        arguments = (dead["a"], dead["c"], "--type", "call")
        assert oncegate("dlq", "redrive", *arguments)[1] == "1 dead letter matches.\n1 redriven.\n"
        left = {entry.record.about.delivery_id for entry in gate.store.dead_letters()}
        assert left == {"b", "c", "d"}

    def test_a_dry_run_of_many(self, oncegate: Run, gate: Gate) -> None:
        """A dry run names the newest ten, and counts the others."""
        gate.run_batch([{"id": number} for number in range(25)], fail)
        _, out, _ = oncegate("dlq", "drop", "--all", "--dry-run")
        lines = out.splitlines()
        assert (lines[0], len(lines)) == ("25 dead letters match.", 14)
        assert lines[-2:] == ["Showing the newest 10; 15 more match.", "Dry run: nothing was changed."]

    def test_no_match(self, oncegate: Run, gate: Gate, dead: dict[str, str]) -> None:
        """A list without matches says so."""
        assert oncegate("dlq", "list", "--id", "other")[1] == "No dead letter matches.\n"

    def test_a_wrong_duration(self, oncegate: Run) -> None:
        """A duration that cannot be read is an error that names the option."""
        code, _, err = oncegate("dlq", "list", "--older-than", "soon")
        assert (code, "--older-than" in err) == (exit_codes.USAGE, True)

    def test_part_of_the_dead_letters(self, oncegate: Run, gate: Gate, dead: dict[str, str]) -> None:
        """A list that stopped before the last dead letter says so."""
        _, out, _ = oncegate("dlq", "list", "--scan", "3")
        assert out.endswith("Only 3 records were scanned; use --scan to scan more.\n")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("command", "done"), [("redrive", "redriven"), ("drop", "dropped")])
def test_progress(oncegate: Run, gate: Gate, monkeypatch: pytest.MonkeyPatch, command: str, done: str) -> None:
    """On a terminal, a long selection and a long change show their progress on stderr."""
    gate.run_batch([{"id": number} for number in range(250)], fail)
    monkeypatch.setattr("oncegate.cli.output._PROGRESS_AFTER", 0)
    monkeypatch.setattr("oncegate.cli.output._PROGRESS_EVERY", 0)
    monkeypatch.setattr("sys.stderr", stderr := _Terminal())
    assert oncegate("dlq", command, "--all", "--yes")[1] == f"250 dead letters match.\n250 {done}.\n"
    for shown in ("250 dead letters read", f"100 of 250 {done}", f"250 of 250 {done}"):
        assert f"\r\x1b[K{shown}" in stderr.getvalue()


class TestQuestions:
    def test_a_script_that_redrives(self, oncegate: Run, dead: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a terminal, `redrive` does not ask and does not read stdin."""
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        assert oncegate("dlq", "redrive", "--type", "call")[1] == "2 dead letters match.\n2 redriven.\n"

    @pytest.mark.parametrize(
        ("arguments", "asks"),
        [(("--all",), True), (("--type", "call"), True), (("--id", "a"), False), (("--all", "--yes"), False)],
    )
    def test_a_person_who_redrives(
        self,
        oncegate: Run,
        gate: Gate,
        dead: dict[str, str],
        monkeypatch: pytest.MonkeyPatch,
        arguments: tuple[str, ...],
        asks: bool,
    ) -> None:
        """On a terminal, `redrive` asks if a filter or --all selects several dead letters."""
        monkeypatch.setattr("sys.stdin", _Terminal("n\n"))
        code, out, err = oncegate("dlq", "redrive", *arguments)
        assert ("Redrive " in err, code) == (asks, exit_codes.FAILED if asks else exit_codes.OK)
        assert (len(gate.store.dead_letters()) == 4) is asks
        assert out.startswith(("4 dead letters match.\n", "2 dead letters match.\n", "1 dead letter matches.\n"))


class TestDeadLetters:
    def test_empty(self, oncegate: Run, gate: Gate) -> None:
        """Without dead letters there is one sentence, and an empty list as JSON."""
        assert oncegate("dlq", "list")[:2] == (exit_codes.OK, "There are no dead letters.\n")
        assert json.loads(oncegate("dlq", "list", "--output", "json")[1]) == []

    def test_an_empty_namespace(self, oncegate: Run, gate: Gate) -> None:
        """If a namespace has no dead letters, the sentence names other namespaces that have some, at most five."""
        none = "There are no dead letters in namespace nope."
        assert oncegate("dlq", "list", "--namespace", "nope")[1] == f"{none}\n"
        for number in range(6):
            Gate(gate.store, namespace=f"n{number}", max_attempts=1).run({"id": "evt-1"}, fail)
        others = f"{none} There are dead letters in other namespaces: n0, n1, n2, n3, n4, ….\n"
        assert oncegate("dlq", "list", "--namespace", "nope")[1] == others
        assert oncegate("dlq", "list", "--namespace", "n1", "--type", "other")[1] == "No dead letter matches.\n"

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
        assert "Showing the newest 2 of 5; use --limit to see more." in out

    @pytest.mark.parametrize(("limit", "said"), [(2, "Showing the newest 2 of 5; use --limit to see more.\n"), (5, "")])
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
        assert "Dead letter. It runs only if it is redriven." in out
        assert '{"id": "evt-1", "n": 1.0}' in out

    def test_redrive_waits_for_a_dispatcher(self, oncegate: Run, gate: Gate) -> None:
        """A redriven event is no longer a dead letter and waits to be run."""
        outcome = gate.run({"id": "evt-1"}, fail)
        assert oncegate("dlq", "redrive", str(outcome.key))[:2] == (
            exit_codes.OK,
            "1 dead letter matches.\n1 redriven.\n",
        )
        assert (
            "Waiting: the event is stored with its payload until the service or an inbox worker runs it."
            in oncegate("keys", "show", str(outcome.key))[1]
        )
        assert oncegate("dlq", "redrive", str(outcome.key))[:2] == (
            exit_codes.OK,
            "0 dead letters match.\n0 redriven.\n",
        )
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
        count, told, advice, done = out.splitlines()
        assert (count, done) == ("2 dead letters match.", "2 redriven.")
        assert told.startswith(f"1 event cannot be read and will become a dead letter again: {broken.kept} (")
        assert "dlq drop" in advice
        assert str(outcome.key) not in out

    def test_redrive_a_call(self, oncegate: Run, gate: Gate) -> None:
        """`redrive` warns that no handler can run the call of a guarded function, and names the remedy."""
        with pytest.raises(ValueError, match="no case"):
            gate.once(name="pay")(fail)(Event(source="plain", id="1", body={}))
        code, out, err = oncegate("dlq", "redrive", "--all")
        assert (code, err) == (exit_codes.OK, "")
        count, told, advice, done = out.splitlines()
        assert (count, done) == ("1 dead letter matches.", "1 redriven.")
        assert told.startswith("1 call of a function cannot be redriven and will become a dead letter again: ")
        assert "dlq drop" in advice

    def test_redrive_a_conflict(self, oncegate: Run, gate: Gate) -> None:
        """`redrive` warns that the event of a conflict runs beside the event that has its key."""
        gate.run({"id": "evt-1", "n": 1}, lambda event: None)
        gate.run({"id": "evt-1", "n": 2}, lambda event: None)
        code, out, _ = oncegate("dlq", "redrive", "--all", "--dry-run")
        assert code == exit_codes.OK
        assert "1 conflict: an event with the same key and other content was accepted before" in out

    def test_redrive_with_a_handler(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """With a handler the dead letters run at once, and each outcome is printed."""
        gate.run_batch([{"id": 1}, {"id": 2}], fail)
        (tmp_path / "mended.py").write_text("def handler(event):\n    assert event.id != '2', 'still broken'\n")
        code, out, _ = oncegate("dlq", "redrive", "--all", "--handler", "mended:handler")
        assert code == exit_codes.FAILED
        assert out.startswith("2 dead letters match.\n2 redriven.\n")
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
        assert oncegate("dlq", "drop", "--all", "--yes")[:2] == (
            exit_codes.OK,
            "2 dead letters match.\n2 dropped.\n",
        )
        assert gate.store.dead_letters() == []
        assert gate.run({"id": "done"}, fail).status == "duplicate"

    def test_many(self, oncegate: Run, gate: Gate) -> None:
        """--all covers all pages."""
        gate.run_batch([{"id": number} for number in range(250)], fail)
        assert oncegate("dlq", "drop", "--all", "--yes")[1] == "250 dead letters match.\n250 dropped.\n"

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ((), "name the keys of dead letters, use filters such as --type or --error, or use --all"),
            (("--all", "0" * 32), "keys and --all cannot be combined, because --all selects every dead letter"),
            (("--all", "--type", "t"), "filters and --all cannot be combined, because --all selects every dead letter"),
        ],
    )
    def test_which(self, oncegate: Run, arguments: tuple[str, ...], problem: str) -> None:
        """Either keys and filters or --all is required; the store is not opened otherwise."""
        for command in ("redrive", "drop"):
            code, _, err = oncegate("dlq", command, *arguments)
            assert code == exit_codes.USAGE
            assert problem in err


class TestRecord:
    """What `redrive` and `drop` write into the journal."""

    @pytest.fixture
    def journal(self, tmp_path: Path) -> Iterator[Journal]:
        with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db")) as journal:
            yield journal

    def test_a_filter(self, oncegate: Run, dead: dict[str, str], journal: Journal) -> None:
        """A row has the user, the filter and the count, and each event has a row in its history."""
        oncegate("dlq", "drop", "--type", "call", "--error", "no case", "--yes")
        (action,) = journal.rows(OPERATOR_ACTIONS)
        assert action.reason == 'Dropped 2 dead letters (type call, error with "no case").'
        assert (action.kind, action.key, action.namespace) == ("drop", b"", "default")
        assert action.worker.startswith(f"{pwd.getpwuid(os.getuid()).pw_name}@")
        assert action.worker.endswith(" (command)")
        for event in "ab":
            (row,) = journal.rows(RowFilter(term=dead[event], operators=True))
            assert (row.event_id, row.type, row.reason) == (event, "call", "Dropped by an action on 2 dead letters.")

    def test_a_key(self, oncegate: Run, dead: dict[str, str], journal: Journal) -> None:
        """An action on one event is one row. A dry run and an action on nothing have no row."""
        oncegate("dlq", "redrive", dead["a"], "--dry-run")
        oncegate("dlq", "redrive", "--type", "nothing")
        oncegate("dlq", "redrive", dead["a"])
        (action,) = journal.rows(RowFilter(status="operator"))
        assert (action.kind, action.key_text, action.reason) == ("redrive", dead["a"], "Redriven.")

    def test_many(self, oncegate: Run, gate: Gate, journal: Journal) -> None:
        """An action on more than 1,000 events has a row at its start and a row at its end, and none for each event."""
        gate.run_batch([{"id": number} for number in range(1_001)], fail)
        oncegate("dlq", "redrive", "--all", "--yes")
        assert [row.reason for row in journal.rows(RowFilter(status="operator"))] == [
            "Redrove 1,001 dead letters (all).",
            "Started to redrive 1,001 dead letters (all).",
        ]

    def test_a_journal_that_cannot_be_written(self, oncegate: Run, dead: dict[str, str], tmp_path: Path) -> None:
        """The result of the command is the same, and a note says that there is no record."""
        (tmp_path / "oncegate.journal.db").write_bytes(b"not a database" * 100)
        code, out, err = oncegate("dlq", "drop", dead["a"], "--yes")
        assert (code, out) == (exit_codes.OK, "1 dead letter matches.\n1 dropped.\n")
        assert err.startswith("The journal has no record of this command: ")
