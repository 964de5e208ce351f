"""`oncegate explain`: the sentence is true, records are found by any id, and unknown ids are reported."""

import io
import json
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Event, Gate, keys, open_store, read
from oncegate.claims import Claim, EventSummary, Redrive
from oncegate.cli import exit_codes
from oncegate.clocks import wall
from oncegate.errors import RetryLater
from oncegate.inspection import replays
from oncegate.journal import ChangedEvent, open_journal
from oncegate.journal.base import NewRow, NewRows
from oncegate.journal.rows import Fields
from oncegate.settings import examine
from tests.cli.conftest import RecordedGate, Run, on_terminal, sqs_message
from tests.gate.test_handed_on import Sink, put


def fail(event: Event) -> None:
    raise ValueError("no\nsuch case")


def first_line(told: tuple[int, str, str]) -> str:
    code, out, err = told
    assert (code, err) == (exit_codes.OK, "")
    return out.splitlines()[0]


def second_line(told: tuple[int, str, str]) -> str:
    """The sentence about copies. The decision is before it."""
    assert " This is the latest of " in first_line(told) or first_line(told).startswith("Run and failed: a failed ")
    return told[1].splitlines()[1]


def fact(told: tuple[int, str, str], name: str) -> str:
    line = next(line for line in told[1].splitlines() if line.startswith(f"{name} "))
    return line.removeprefix(name).strip()


class TestDecisions:
    def test_processed(self, oncegate: Run, gate: Gate) -> None:
        """A processed event is explained with time and attempt; another delivery is a duplicate until the record
        expires."""
        outcome = gate.run({"id": "evt-1", "type": "call.ended"}, lambda event: {"case": 7})
        told = oncegate("explain", "evt-1")
        start, _, end = first_line(told).partition(" ago ")
        assert start.startswith("Run: evt-1 was processed ")
        assert end.startswith("at its first attempt. Until 2")
        assert end.endswith("Z, every further delivery with the same content is a duplicate and is not run.")
        assert (fact(told, "key"), fact(told, "state"), fact(told, "attempts")) == (str(outcome.key), "completed", "1")
        assert fact(told, "result") == '{"case":7}'
        assert [line for line in told[1].splitlines() if line.startswith(("lost", "fence"))] == []
        assert fact(oncegate("keys", "show", str(outcome.key)), "fence").isdecimal()
        assert first_line(oncegate("explain", str(outcome.key)))[:12] == first_line(told)[:12]

    def test_published(self, oncegate: Run, gate: Gate) -> None:
        """A published event is explained with its target and with its state at the consumer; both records are shown."""
        sink = Sink()
        outcome = gate.run({"id": "evt-1"}, sink)
        said = " ".join(first_line(oncegate("explain", "evt-1")).split())
        assert said.startswith("Run: evt-1 was published to sqs://q?region=eu-central-1 at 2")
        assert ". No consumer with this store and namespace has claimed the published event yet. Until 2" in said
        assert (
            ", every further delivery with the same content to the publisher is a duplicate and is not published again."
            in said
        )
        assert "No consumer with this store and namespace" in oncegate("keys", "show", str(outcome.key))[1]
        gate.run(sink.sent[0], fail)
        assert (
            " At its consumer it became a dead letter at its first attempt: ValueError"
            in oncegate("explain", "evt-1")[1]
        )
        (dead,) = gate.store.dead_letters()
        gate.store.redrive([Redrive(dead.namespace, dead.key)])
        gate.run_waiting(lambda event: None)
        for wanted in ("evt-1", str(outcome.key)):
            told = oncegate("explain", wanted)
            assert " Its consumer processed it at 2" in first_line(told)
            assert (str(outcome.key) in told[1], dead.key.hex() in told[1]) == (True, True)
        found = json.loads(oncegate("explain", "evt-1", "--output", "json")[1])["records"]
        assert [each["record"]["handed_to"] for each in found] == ["sqs://q?region=eu-central-1"]
        assert [each["key"] for each in found[0]["handed_on"]] == [dead.key.hex()]
        shown = oncegate("keys", "show", str(outcome.key))[1]
        assert "Published to sqs://q?region=eu-central-1 " in shown
        assert "\nProcessed " in shown
        assert (
            f"the key {dead.key.hex()}; reset that key too" in oncegate("keys", "reset", str(outcome.key), "--yes")[1]
        )

    def test_as_it_was_published(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """An event in the envelope of a bus is found by the key that it carries."""
        outcome = gate.run({"id": "evt-1"}, Sink())
        (tmp_path / "put.json").write_text(json.dumps(put({"id": "evt-1"}, str(outcome.key))))
        assert " evt-1 was published to " in oncegate("explain", "--file", "put.json")[1]

    def test_marked(self, oncegate: Run, gate: Gate) -> None:
        """An event that was only marked as done is not reported as run."""
        gate.seen({"id": "evt-1"})
        assert first_line(oncegate("explain", "evt-1")).startswith("Marked as done: evt-1 was recorded ")

    def test_failed(self, oncegate: Run, tmp_path: Path) -> None:
        """A failed attempt is explained with its error; the next delivery runs the event."""
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", max_attempts=3)) as gate:
            for _ in range(2):
                gate.run({"id": "evt-1"}, fail)
        assert first_line(oncegate("explain", "evt-1")) == (
            "Run and failed: evt-1 failed after 2 attempts with ValueError: no such case. The next delivery runs it"
            " again."
        )

    def test_what_an_entity_waits_for(self, oncegate: Run, tmp_path: Path) -> None:
        """A waiting event names the earlier event of its entity, and that one says how many events wait for it."""
        seen = [
            {"id": f"evt-{second}", "conversationId": "call-1", "timestamp": f"2026-01-01T00:00:0{second}Z"}
            for second in (3, 1, 2)
        ]
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate:
            gate.admit([*seen, {"id": "evt-4", "conversationId": "call-2"}])
            (first,) = (outcome for outcome in gate.run_waiting(fail) if outcome.event.id == "evt-1")
        later = first_line(oncegate("explain", "evt-3"))
        assert later.endswith(f" It waits for evt-1 ({first.key}), an earlier event of the same entity.")
        assert first_line(oncegate("explain", "evt-1")).endswith(" 2 later events of the same entity wait for it.")
        assert " wait for it" not in first_line(oncegate("explain", "evt-4"))
        path = tmp_path / "event.json"
        path.write_text(json.dumps(seen[2]))
        assert "It waits for evt-1" in oncegate("explain", "--file", str(path))[1]

    def test_buried(self, oncegate: Run, gate: Gate) -> None:
        """A dead letter is explained with its error, its payload and the parts of its key."""
        gate.run({"id": "evt-1"}, fail)
        told = oncegate("explain", "evt-1")
        assert first_line(told) == (
            "Given up: evt-1 became a dead letter at its first attempt: ValueError: no such case. It runs again only if"
            " it is redriven (oncegate dlq redrive)."
        )
        assert (fact(told, "payload"), fact(told, "made_of")) == ('{"id":"evt-1"}', '["evt-1"]')

    def test_processed_after_a_redrive(self, oncegate: Run, gate: Gate) -> None:
        """After a redrive the attempts are counted from zero, and the sentence says so."""
        outcome = gate.run({"id": "evt-1"}, fail)
        oncegate("dlq", "redrive", str(outcome.key))
        gate.run_waiting(lambda event: None)
        line = first_line(oncegate("explain", "evt-1"))
        assert "ago at attempt 1 (counted from the last redrive, if there was one). Until 2" in line

    def test_redriven(self, oncegate: Run, gate: Gate) -> None:
        """A waiting event is explained with the time before which it does not run, if its handler set one."""

        def later(event: Event) -> None:
            raise RetryLater("busy", after=600)

        gate.run({"id": "evt-1"}, fail)
        gate.run({"id": "evt-2"}, lambda event: None)
        (entry,) = gate.store.dead_letters()
        oncegate("dlq", "redrive", entry.key.hex())
        waiting = first_line(oncegate("explain", "evt-1"))
        assert waiting.endswith(
            "It is stored with its payload and waits for the service or an inbox worker; another delivery is a"
            " duplicate."
        )
        with_more = Gate(gate.store, max_attempts=5)
        assert [outcome.status for outcome in with_more.run_waiting(later)] == ["failed"]
        assert with_more.run_waiting(later) == []
        told = first_line(oncegate("explain", "evt-1"))
        assert told.startswith("Run without success: what the handler of evt-1 calls has been unavailable for ")
        assert "(busy). It is stored with its payload and does not run before 20" in told

    def test_in_hand(self, oncegate: Run, gate: Gate) -> None:
        """For a running event, the rest of its lease is shown."""
        begun, over = threading.Event(), threading.Event()

        def slow(event: Event) -> None:
            begun.set()
            over.wait(10)

        worker = threading.Thread(target=gate.run, args=({"id": "evt-1"}, slow))
        worker.start()
        assert begun.wait(10)
        told = oncegate("explain", "evt-1")
        over.set()
        worker.join()
        assert first_line(told).startswith(
            "Running: a worker is processing evt-1 at its first attempt, and its lease ends in 2"
        )
        assert fact(told, "lease_left").endswith(" s")

    def test_in_hand_of_the_inbox(self, oncegate: Run, gate: Gate) -> None:
        """While a stored event runs, another delivery is a duplicate for the service and in flight for gate.run."""
        told, copies = "", []

        def slow(event: Event) -> None:
            nonlocal told
            told = first_line(oncegate("explain", "evt-1"))
            copies.extend([*gate.admit([{"id": "evt-1"}]), gate.run({"id": "evt-1"}, slow)])

        gate.admit([{"id": "evt-1"}])
        gate.run_waiting(slow)
        assert [copy.status for copy in copies] == ["duplicate", "in_flight"]
        assert told.startswith("Running: ")
        assert told.endswith(
            "another delivery to the service is a duplicate; to gate.run or serve.mode=inline it is in flight."
        )

    def test_a_worker_that_died(self, oncegate: Run, tmp_path: Path) -> None:
        """If the lease of a worker has ended, the result is reported as unknown."""
        with closing(open_store(f"sqlite:///{tmp_path}/oncegate.db")) as store:
            about = EventSummary("plain", delivery_id="evt-1")
            store.claim([Claim("default", bytes(16), bytes(16), bytes(16), 20_000, 60_000_000, about)])
        told = ""
        while "lease ended" not in told:  # it takes 20 ms
            told = first_line(oncegate("explain", "evt-1"))
        assert told.startswith("Run with unknown result: the worker that ran evt-1 at its first attempt did not report")

    def test_a_process_that_has_ended(self, oncegate: Run, tmp_path: Path) -> None:
        """An event of a dead process is not reported as running, although its lease has not ended."""
        code = "import os, oncegate; oncegate.Gate('sqlite:///oncegate.db').run({'id': 'e'}, lambda _: os._exit(0))"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
        told = first_line(oncegate("explain", "e"))
        assert told.startswith("Run with unknown result: the process that ran e at its first attempt has ended. The ")

    def test_conflict(self, oncegate: Run, gate: Gate) -> None:
        """The dead letter of a conflict is not reported as run."""
        gate.run({"id": "evt-1", "amount": 1}, lambda event: None)
        conflict = gate.run({"id": "evt-1", "amount": 2}, fail)
        assert first_line(oncegate("explain", str(conflict.kept))).startswith(
            "Not run: evt-1 has the key of another event but different content, and is a dead letter ("
        )

    def test_refused(self, oncegate: Run, gate: Gate) -> None:
        """The dead letter of an unreadable event is not reported as run."""
        (kept,) = gate.keep([gate.run(b"{", fail)])
        told = first_line(oncegate("explain", str(kept.kept)))
        assert told.startswith("Not run: an event without an id was refused and is a dead letter: the ")

    def test_failed_after_it_was_marked(self, oncegate: Run, gate: Gate) -> None:
        """In mark_first mode a failure has a record of its own, which is explained as such."""
        outcome = Gate(gate.store, mode="mark_first").run({"id": "evt-1"}, fail)
        told = first_line(oncegate("explain", str(outcome.kept)))
        assert told.startswith("Run and failed after it was marked as done: evt-1 is a dead letter: Val")


class TestFinding:
    def test_a_conversation(self, oncegate: Run, gate: Gate) -> None:
        """Several records are a table in the order of occurrence, with a hint how to see one of them."""
        for second in (7, 5, 9):
            body = {"id": f"evt-{second}", "conversationId": "c-1", "timestamp": f"2026-01-01T10:00:0{second}Z"}
            gate.run(body, lambda event: None)
        gate.run({"id": "evt-1", "conversationId": "c-2"}, lambda event: None)
        code, out, _ = oncegate("explain", "c-1")
        head, copies, columns, *rows, hint, note = out.splitlines()
        assert code == exit_codes.OK
        assert copies == "The records do not show copies (3 records, compared by content, key, type and time)."
        assert head.startswith("Run: evt-9 was processed ")
        assert head.endswith(" This is the latest of 3 records with the key, event id or entity c-1.")
        assert columns.split()[:3] == ["key", "namespace", "event"]
        assert [row.split()[2] for row in rows] == ["evt-5", "evt-7", "evt-9"]
        assert hint == "Explain one record with oncegate explain KEY; select a namespace with --namespace."
        assert note.startswith(
            "The store does not record duplicates one by one. The journal does, but it was not read:"
        )
        assert "there is no journal at " in note
        alone = oncegate("explain", "c-2")[1].splitlines()
        assert alone[0].startswith("Run: evt-1 was processed ")
        assert alone[-1] == oncegate("explain", "evt-1")[1].splitlines()[-1] == note

    def test_namespaces(self, oncegate: Run, gate: Gate) -> None:
        """--namespace selects the records of one namespace."""
        gate.run({"id": "evt-1"}, lambda event: None)
        Gate(gate.store, namespace="other").run({"id": "evt-1"}, lambda event: None)
        told = oncegate("explain", "evt-1")
        assert first_line(told).endswith(" This is the latest of 2 records with the key, event id or entity evt-1.")
        assert told[1].splitlines()[1].startswith("The records do not show copies (2 records, ")
        assert fact(oncegate("explain", "evt-1", "--namespace", "other"), "namespace") == "other"

    def test_unknown(self, oncegate: Run, gate: Gate) -> None:
        """For an unknown id, the possible reasons are listed, with the metric, log line or command that shows each."""
        gate.run({"id": "evt-1"}, lambda event: None)
        for unknown in ("evt-2", "0" * 32):
            code, out, err = oncegate("explain", unknown)
            assert (code, out) == (exit_codes.NOT_FOUND, "")
            sentence, *reasons = err.splitlines()
            assert sentence == (
                f"Error: {unknown} is not known: no record has this key, event id or entity. Possible reasons:"
            )
            assert all(reason.startswith("- ") for reason in reasons)
            assert "(retention is 7d)" in reasons[1]
            for shown in (
                "never arrived",
                "another store",
                "--file",
                "unguarded",
                "oncegate dlq list",
                "401",
                "oncegate_signature_refusals_total",
                "rejected a request from",
                "oncegate_limited_total",
                "oncegate_shed_total",
            ):
                assert shown in err
            found = json.loads(oncegate("explain", unknown, "--output", "json")[1])
            assert [f"- {reason}" for reason in found["reasons"]] == reasons
        assert "in another namespace than sales" in oncegate("explain", "evt-2", "--namespace", "sales")[2]

    def test_an_id_that_looks_like_a_key(self, oncegate: Run, gate: Gate) -> None:
        """An event id of 32 hexadecimal digits is found too."""
        gate.run({"id": "0" * 32}, lambda event: None)
        assert first_line(oncegate("explain", "0" * 32)).startswith(
            "Run: 00000000000000000000000000000000 was processed"
        )

    def test_cut(self, oncegate: Run, gate: Gate) -> None:
        """A search that stops early says so, with and without a result."""
        events = [{"id": f"evt-{n}", "conversationId": "c-1"} for n in range(1_500)]
        Gate(gate.store).run_batch(events, lambda event: None)
        code, _, err = oncegate("explain", "evt-x", "--scan", "1200")
        assert code == exit_codes.NOT_FOUND
        assert "evt-x was not found in the first 1,200 records; use --scan to scan more" in err
        some = oncegate("explain", "c-1", "--scan", "3")[1].splitlines()[0]
        assert "3 records with the key, event id or entity c-1 among the first 3 records (use --scan" in some
        assert "Only the first 1 records were scanned" in oncegate("explain", "c-1", "--scan", "1")[1]
        many = oncegate("explain", "c-1")[1].splitlines()
        assert many[0].endswith(" This is the latest of more than 1,000 records with the key, event id or entity c-1.")
        assert many[1].endswith("; other records match too, but only 1,000 were compared.")
        whole = oncegate("explain", "evt-x", "--scan", "1500")
        assert "is not known" in whole[2]

    def test_times_for_programs(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """In JSON, all times have the format of the log."""
        (tmp_path / "e.json").write_text('{"id": "1", "timestamp": "2026-02-03T04:05:06.123Z"}')
        outcome = gate.run((tmp_path / "e.json").read_bytes(), fail)
        shown = [
            json.loads(oncegate("read", "e.json", "--output", "json")[1])["events"][0],
            json.loads(oncegate("explain", "1", "--output", "json")[1])["records"][0]["record"],
            json.loads(oncegate("keys", "show", str(outcome.key), "--output", "json")[1]),
            json.loads(oncegate("dlq", "list", "--output", "json")[1])[0],
        ]
        assert [each["occurred_at"] for each in shown] == ["2026-02-03T04:05:06.123Z"] * 4
        assert "2026-02-03 04:05:06.123Z" in oncegate("keys", "show", str(outcome.key))[1]

    def test_one_name_for_a_strategy(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """A strategy has its name from the settings, whatever variant `auto` chose."""
        (tmp_path / "e.json").write_text('{"source": "Genesys-Cloud", "conversationId": "c-1", "status": "ended"}')
        assert keys.auto(read((tmp_path / "e.json").read_bytes())[0]).strategy == "auto.content"
        told = oncegate("explain", "--file", "e.json")
        assert fact(told, "strategy") == "auto"

    def test_json(self, oncegate: Run, gate: Gate) -> None:
        """The JSON output has the sentence and the records, also for an unknown id."""
        outcome = gate.run({"id": "evt-1"}, fail)
        code, out, _ = oncegate("explain", "evt-1", "--output", "json")
        told = json.loads(out)
        (record,) = told["records"]
        assert (code, told["cut"], told["looked_through"]) == (exit_codes.OK, False, 1)
        assert told["sentence"] == record["sentence"]
        assert (record["record"]["key"], record["key"]["parts"]) == (str(outcome.key), ["evt-1"])
        code, out, err = oncegate("explain", "evt-2", "--output", "json")
        assert (code, json.loads(out)["records"], err) == (exit_codes.NOT_FOUND, [], "")

    def test_invalid_options(self, oncegate: Run) -> None:
        """No id, an id and a file, or no store: each gives one sentence and its exit code."""
        code, _, err = oncegate("explain")
        assert (code, "name one ID" in err) == (exit_codes.USAGE, True)
        assert oncegate("explain", "evt-1", "--file", "-")[0] == exit_codes.USAGE
        code, _, err = oncegate("explain", "evt-1")
        assert (code, "oncegate.db" in err) == (exit_codes.STORE, True)

    @pytest.mark.parametrize("columns", ["80", "50"])
    def test_state_and_error_are_shown(self, gate: Gate, tmp_path: Path, columns: str) -> None:
        """The list of records shows the state and the error of each record on every terminal."""
        gate.run({"id": "evt-1", "conversationId": "c-1"}, lambda event: None)
        gate.run({"id": "evt-2", "conversationId": "c-1"}, fail)
        shown = on_terminal(["explain", "c-1"], tmp_path, COLUMNS=columns, NO_COLOR="1")
        table = shown.partition("key ")[2]
        for cell in ("state", "error", "completed", "dead letter", "ValueError"):
            assert cell in table

    def test_an_error_with_several_lines(self, oncegate: Run, gate: Gate) -> None:
        """A line break in an error is a line break on the screen too."""
        outcome = gate.run({"id": "evt-1"}, fail)
        for command in (("explain", "evt-1"), ("keys", "show", str(outcome.key))):
            out = oncegate(*command)[1]
            assert "error         ValueError: no\n              such case\n" in out
            assert "\\n" not in out

    def test_hostile_text(self, gate: Gate, tmp_path: Path) -> None:
        """Control characters in an event do not reach the terminal."""
        gate.run({"id": "evt-1", "type": "\x1b[2J", "conversationId": "\x1b[2Jc"}, fail)
        assert "\x1b[2J" not in on_terminal(["explain", "evt-1"], tmp_path)


class TestFiles:
    def test_each_event(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """Each event of a file is looked up by its key: known, conflicting, unknown, unreadable."""
        gate.run({"id": "evt-1", "n": 1}, lambda event: None)
        gate.run({"id": "evt-2", "n": 1}, fail)
        lines = ['{"n": 1, "id": "evt-1"}', '{"id": "evt-2", "n": 2}', '{"id": "evt-3"}', "{}", "x"]
        (tmp_path / "events.jsonl").write_text("\n".join(lines))
        code, out, _ = oncegate("explain", "--file", "events.jsonl")
        assert code == exit_codes.OK
        copies, *parts = [part.splitlines() for part in out.split("\n\n")[:-1]]
        assert copies == [
            "The file does not show copies (3 events, compared by content, key, and state within 500 ms)."
        ]
        assert [part[0] for part in parts] == [
            "events.jsonl:1  evt-1",
            "events.jsonl:2  evt-2",
            "events.jsonl:3  evt-3",
            "events.jsonl:4",
            "events.jsonl:5",
        ]
        sentences = [part[1] for part in parts]
        assert sentences[0].startswith("Run: evt-1 was processed ")
        assert sentences[1].startswith("Not run: it has the key of evt-2 (first seen ")
        assert sentences[1].endswith(") but different content, so it is a conflict and becomes a dead letter.")
        assert "differs_in    n" in parts[1]
        assert sentences[2].startswith(
            "Not known: there is no record with the key of this event, so a delivery now is run."
        )
        assert sentences[4].startswith("Refused: the text is not JSON")

    def test_nothing_known(self, oncegate: Run, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        """The exit code is 4 if no event is known, and for a file without events."""
        gate.run({"id": "evt-1"}, lambda event: None)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": "evt-2"}')))
        assert oncegate("explain", "--file", "-")[0] == exit_codes.NOT_FOUND
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        code, _, err = oncegate("explain", "--file", "-")
        assert (code, err) == (exit_codes.NOT_FOUND, "Error: there is no event in -\n")

    def test_no_such_file(self, oncegate: Run, gate: Gate) -> None:
        """The error names the file that cannot be read."""
        gate.run({"id": "evt-1"}, lambda event: None)
        code, _, err = oncegate("explain", "--file", "nowhere.json")
        assert (code, err) == (exit_codes.USAGE, "Error: cannot read nowhere.json: No such file or directory\n")

    def test_a_state_change(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """An emission that joins another is explained by the record of that one, with the timeline of its entity."""
        states = Gate(gate.store, key=keys.state_change("500ms"))

        states.run(change("a", "ringing", "10:00:00"), lambda event: None)
        anchor = states.run(change("b", "connected", "10:00:05"), lambda event: None)
        (tmp_path / "echo.json").write_text(json.dumps(change("c", "connected", "10:00:05.300")))
        given = ("explain", "--file", "echo.json", "--key", 'state_change("500ms")')
        told = oncegate(*given)
        assert first_line(told).startswith("Run: b was processed ")
        assert fact(told, "kind") == "state-echo of b"
        (event,) = json.loads(oncegate(*given, "--output", "json")[1])["events"]
        assert [(each["state"], each["key"]) for each in event["timeline"]][1] == ("connected", str(anchor.key))
        assert len(event["timeline"]) == 2

    def test_settings(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """Key strategy and read paths are those of the settings, as for a gate."""
        (tmp_path / "oncegate.toml").write_text('key = "event_id"\n[read]\nid = "meta.n"\n')
        from_settings = Gate(gate.store, key=keys.fields("id"))
        from_settings.run({"id": "1"}, lambda event: None)
        (tmp_path / "event.json").write_text('{"meta": {"n": "evt-7"}}')
        told = oncegate("explain", "--file", "event.json")
        assert (told[0], fact(told, "made_of")) == (exit_codes.NOT_FOUND, '["evt-7"]')

    def test_policies(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """Every policy about keys has the same effect as in a gate."""
        gate.run({"id": "evt-1", "n": 1}, lambda event: None)
        (tmp_path / "event.json").write_text('{"id": "evt-1", "n": 2}')
        given = ("explain", "--file", "event.json")
        assert "so it is a conflict and becomes a dead letter" in oncegate(*given)[1]
        (tmp_path / "oncegate.toml").write_text('on_conflict = "run"')
        assert "Run under another key because of on_conflict: it has the key of evt-1" in oncegate(*given)[1]
        (tmp_path / "oncegate.toml").write_text('on_conflict = "duplicate"')
        further = "every further delivery with this key, whatever its content, is a duplicate and is not run"
        assert further in oncegate(*given)[1]
        (tmp_path / "oncegate.toml").write_text("key = 'fields(\"nowhere\")'")
        assert "Refused: the fields key needs nowhere, which the event does not have." in oncegate(*given)[1]
        (tmp_path / "oncegate.toml").write_text('key = \'fields("nowhere")\'\non_missing_key = "unguarded"')
        assert "Run without protection against duplicates: the fields key needs nowhere" in oncegate(*given)[1]
        (tmp_path / "oncegate.toml").write_text('max_age = "1h"\non_too_old = "bury"')
        (tmp_path / "event.json").write_text('{"id": "evt-2", "timestamp": "2020-01-01T00:00:00Z"}')
        assert "so a delivery now becomes a dead letter: it happened " in oncegate(*given)[1]


class TestCopies:
    """The first sentence about a conversation or a file says whether its events are copies."""

    def test_a_double_emission_in_a_file(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """Different content and the same state within the window: the sentence names the strategy that joins them."""
        emissions = [change("a", "connected", "10:00:05"), change("b", "connected", "10:00:05.200")]
        for each in emissions:
            gate.run(each, lambda event: None)
        (tmp_path / "both.jsonl").write_text("\n".join(map(json.dumps, emissions)))
        assert first_line(oncegate("explain", "--file", "both.jsonl")) == (
            "2 deliveries 200 ms apart, different content, same state (connected): double emission; their keys differ,"
            ' and the key strategy state_change("500ms") would join them.'
        )
        joined = oncegate("explain", "--file", "both.jsonl", "--key", 'state_change("500ms")')[1].splitlines()[0]
        assert joined.endswith(
            "double emission; the key strategy state_change joins them, and the store has no record of the event."
        )
        found = json.loads(oncegate("explain", "--file", "both.jsonl", "--output", "json")[1])["copies"]
        assert [(each["verdict"], each["events"]) for each in found["groups"]] == [("double emission", [1, 2])]
        assert found["sentence"] == found["groups"][0]["sentence"]

    def test_retries_in_a_file(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """The same content several times: retries, and the event completed once."""
        gate.run(change("a", "connected", "10:00:05"), lambda event: None)
        (tmp_path / "f.jsonl").write_text("\n".join([json.dumps(change("a", "connected", "10:00:05"))] * 3))
        assert first_line(oncegate("explain", "--file", "f.jsonl")) == (
            "3 deliveries of the same content: retries; they have one key, and the event completed once."
        )

    def test_a_long_file(self, oncegate: Run, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only the first events of a long file are compared, and the sentence says so. All events are explained."""
        monkeypatch.setattr("oncegate.cli.explain._MOST_COMPARED", 2)
        gate.run(change("a", "connected", "10:00:05"), lambda event: None)
        for count, ends in ((2, "completed once."), (3, "completed once; only the first 2 events were compared.")):
            (tmp_path / "f.jsonl").write_text("\n".join([json.dumps(change("a", "connected", "10:00:05"))] * count))
            told = oncegate("explain", "--file", "f.jsonl")
            assert first_line(told).startswith("2 deliveries of the same content: retries; ")
            assert first_line(told).endswith(ends)
            assert told[1].count("Run: a was processed") == count
            found = json.loads(oncegate("explain", "--file", "f.jsonl", "--output", "json")[1])
            assert (found["copies"]["sentence"], found["count"]) == (first_line(told), count)

    def test_a_double_emission_that_the_gate_joined(self, oncegate: Run, gate: Gate) -> None:
        """The state comes from the timeline of the entity."""
        states = Gate(gate.store, key=keys.state_change("500ms"))
        for id_, second in (("a", "05"), ("b", "05.200")):
            states.run(change(id_, "connected", f"10:00:{second}"), lambda event: None)
        assert second_line(oncegate("explain", "c-1")) == (
            "2 records 200 ms apart, different content, same state (connected): double emission; the key strategy"
            " state_change joins them, and the event completed once."
        )

    def test_a_state_that_the_store_does_not_hold(self, oncegate: Run, gate: Gate) -> None:
        """The records of two completed events do not show their states, and the sentence says so."""
        for id_, state, second in (("a", "ringing", "05"), ("b", "connected", "05.200")):
            gate.run(change(id_, state, f"10:00:{second}"), lambda event: None)
        assert second_line(oncegate("explain", "c-1")) == (
            "Possible double emission: 2 records of type call 200 ms apart, different content. It is a double emission"
            " if the records report the same state change. The store does not hold the state of completed events."
            " Compare the state in the journal (oncegate events list --entity ID) or in the log lines of the events, or"
            " compare their payloads with oncegate read FILE."
        )

    @pytest.mark.parametrize("state", ["connected", "ringing"])
    def test_states_of_dead_letters(self, oncegate: Run, gate: Gate, state: str) -> None:
        """The payloads of dead letters show the states: equal states are a double emission, others are no copies."""
        gate.run(change("a", "connected", "10:00:05"), fail)
        gate.run(change("b", state, "10:00:05.200"), fail)
        told = second_line(oncegate("explain", "c-1"))
        assert ("same state (connected): double emission; their keys differ" in told) == (state == "connected")
        assert ("do not show copies" in told) == (state == "ringing")

    def test_a_conflict(self, oncegate: Run, gate: Gate) -> None:
        """A conflict is recognised by its key, whatever the key strategy of the settings is."""
        for amount in (1, 2):
            gate.run({"id": "evt-1", "conversationId": "c-1", "amount": amount}, lambda event: None)
        for options in ((), ("--key", "content")):
            assert second_line(oncegate("explain", "c-1", *options)) == (
                "2 records, different content for one key: conflict, not retries; 1 dead letter. The record of a"
                " conflict has another key than the original record."
            )

    def test_a_conflict_that_ran(self, oncegate: Run, gate: Gate) -> None:
        """With on_conflict="run" both events ran. They are still a conflict."""
        running = Gate(gate.store, on_conflict="run")
        for amount in (1, 2):
            running.run({"id": "evt-1", "conversationId": "c-1", "amount": amount}, lambda event: None)
        assert second_line(oncegate("explain", "c-1")) == (
            "2 records, different content for one key: conflict, not retries. The record of a conflict has another key"
            " than the original record."
        )

    def test_the_same_content_under_two_keys(self, oncegate: Run, gate: Gate) -> None:
        """A re-emission that the key strategy does not recognise has two records with one content."""
        by_envelope = Gate(gate.store, key=keys.event_id)
        for id_ in ("env-1", "env-2"):
            by_envelope.run(envelope(id_), lambda event: None)
        assert second_line(oncegate("explain", "c-1")) == (
            "2 records of the same content: re-emission (the event ids differ); their keys differ, and the key strategy"
            " content would join them."
        )
        found = json.loads(oncegate("explain", "c-1", "--output", "json")[1])
        assert [len(each["keys"]) for each in found["copies"]["groups"]] == [2]
        assert found["copies"]["groups"][0]["verdict"] == "re-emission"

    def test_a_replay_that_ran(self, oncegate: Run, gate: Gate) -> None:
        """A record does not say that its event was a replay. The sentence names what can be the reason."""
        running = Gate(gate.store, on_replay="run")
        for replay in ({}, {"replay-name": "r"}):
            running.run(envelope("env-1") | replay, lambda event: None)
        assert second_line(oncegate("explain", "c-1")) == (
            "2 records of the same content: retries or a replay; their keys differ although the event id is the same,"
            ' as after a change of the key strategy, for a replay with on_replay="run", or with'
            ' on_missing_key="unguarded".'
        )

    def test_several_groups(self, oncegate: Run, gate: Gate) -> None:
        """With several groups of copies, the sentence is about one of them and says how many there are."""
        for minute in ("00", "01"):
            for id_, second in (("a", "05"), ("b", "05.200")):
                gate.run(change(f"{id_}{minute}", "connected", f"10:{minute}:{second}"), fail)
        assert second_line(oncegate("explain", "c-1")).endswith(" would join them (1 of 2 groups of copies).")

    def test_attempts(self, oncegate: Run, gate: Gate) -> None:
        """Several attempts of one event are retries."""
        retried = Gate(gate.store, max_attempts=3)
        for _ in range(2):
            retried.run(change("a", "connected", "10:00:05"), fail)
        assert second_line(oncegate("explain", "c-1")) == (
            "a was attempted 2 times: retries of one event, not a double emission."
        )

    def test_a_failure_after_the_mark(self, oncegate: Run, gate: Gate) -> None:
        """In mark_first mode a failed event has two records. They are not copies."""
        Gate(gate.store, mode="mark_first").run(change("a", "connected", "10:00:05"), fail)
        assert "do not show copies (2 records" in second_line(oncegate("explain", "c-1"))


def change(id_: str, state: str, at: str) -> dict[str, str]:
    return {"id": id_, "type": "call", "conversationId": "c-1", "state": state, "timestamp": f"2026-01-01T{at}Z"}


def envelope(id_: str) -> dict[str, object]:
    topic = "v2.detail.events.conversation.{id}.attributes"
    body = {"eventTime": 1770091506123, "conversationId": "c-1", "participantId": "p", "attributes": {"vip": "yes"}}
    detail = {"topicName": topic.replace("{id}", "c-1"), "version": "2", "eventBody": body}
    source = "aws.partner/genesys.com/cloud/e0e1e2e3-d4d5-4c6c-8b7b-a8a9a0a1a2a5/desk"
    return {"version": "0", "id": id_, "detail-type": topic, "source": source, "detail": detail}


ROUTES = """
key = "event_id"
[route.desk]
signature = "none"
key = 'fields("call")'
[route.crm]
signature = "none"
namespace = "sales"
key = 'fields("nr")'
[route.crm.read]
id = "nr"
"""


class TestRoutes:
    @pytest.fixture
    def files(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """Settings with two routes, one event that each has processed, and one unknown event."""
        (tmp_path / "oncegate.toml").write_text(ROUTES)
        nothing = Gate(gate.store, namespace="desk", key=keys.fields("call"))
        nothing.run({"id": "evt-1", "call": 7}, lambda event: None)
        hinted = Gate(gate.store, namespace="sales", key=keys.fields("nr"))
        hinted.run({"nr": "n-1"}, lambda event: None)
        gate.run({"id": "evt-9", "call": 9}, lambda event: None)
        for name, event in {
            "desk": {"id": "evt-2", "call": 7},
            "sales": {"nr": "n-1"},
            "none": {"id": "evt-9", "call": 8},
            "new": {"id": "evt-3", "call": 8},
        }.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(event))

    @pytest.mark.usefixtures("files")
    def test_the_key_of_its_route(self, oncegate: Run) -> None:
        """An event is looked up by the key of each route in its namespace; the answer lists the routes."""
        told = oncegate("explain", "--file", "desk.json")
        assert told[0] == exit_codes.OK
        assert first_line(told).startswith("Not run: it has the key of evt-1 (first seen ")
        assert fact(told, "namespace") == "desk"
        assert fact(told, "tried").startswith("desk (known in namespace desk, key ")
        assert "; crm (no key: Refused: the fields key needs nr" in fact(told, "tried")
        assert "; (no route) (not known in namespace default, key " in fact(told, "tried")
        told = oncegate("explain", "--file", "sales.json")
        assert (told[0], fact(told, "namespace")) == (exit_codes.OK, "sales")
        (event,) = json.loads(oncegate("explain", "--file", "none.json", "--output", "json")[1])["events"]
        assert event["record"]["namespace"] == "default"
        tried = [(each["route"], each["namespace"], each["known"], each["key"] is None) for each in event["tried"]]
        assert tried == [
            ("desk", "desk", False, False),
            ("crm", "sales", False, True),
            ("(no route)", "default", True, False),
        ]

    @pytest.mark.usefixtures("files")
    def test_not_known_to_any(self, oncegate: Run) -> None:
        """For an event that no route knows, the answer lists the routes and the key on each."""
        told = oncegate("explain", "--file", "new.json")
        assert told[0] == exit_codes.NOT_FOUND
        assert told[1].startswith("Not known to the routes desk, crm and (no route): ")
        assert fact(told, "tried").count("not known in namespace") == 2

    @pytest.mark.usefixtures("files")
    def test_a_namespace(self, oncegate: Run) -> None:
        """--namespace selects the route with that namespace, or no route; --key overrides the key of a route."""
        given = ("explain", "--file", "desk.json", "--namespace")
        assert fact(oncegate(*given, "desk"), "made_of") == '[["call"],7]'
        assert "tried" not in oncegate(*given, "desk")[1]
        assert oncegate(*given, "default")[0] == exit_codes.NOT_FOUND
        assert fact(oncegate(*given, "elsewhere"), "made_of") == '["evt-2"]'
        assert fact(oncegate(*given, "desk", "--key", "content"), "strategy") == "content"

    @pytest.mark.usefixtures("files")
    def test_a_record(self, oncegate: Run, gate: Gate) -> None:
        """A record with a payload is explained by the key of the route that has its namespace."""
        Gate(gate.store, namespace="desk", key=keys.fields("call"), max_attempts=1).run(
            {"id": "evt-5", "call": 5}, fail
        )
        assert fact(oncegate("explain", "evt-5"), "made_of") == '[["call"],5]'


class TestJournal:
    """With a journal, the answer also has each delivery, the difference to the original, and other strategies."""

    def test_one_event(self, oncegate: Run, recorded: RecordedGate) -> None:
        """The decision comes first. Then the record, the timeline, the key parts and the other strategies."""
        recorded.run({"id": "evt-1", "conversationId": "c-1"})
        told = oncegate("explain", "evt-1")
        assert first_line(told).startswith("Run: evt-1 was processed ")
        assert fact(told, "state") == "completed"
        assert "\nJournal: 1 delivery of evt-1.\n" in told[1]
        assert "  Processed at the first attempt.\n" in told[1]
        assert fact(told, "key parts") == 'event_id: ["evt-1"]'
        assert fact(told, "other strategies") == "auto: new event"
        assert "compared with 0 earlier rows of this key, event id or entity" in told[1]
        assert "The latest delivery" not in told[1]

    def test_a_later_delivery(self, oncegate: Run, recorded: RecordedGate) -> None:
        """The id of a later delivery, which the store does not hold, leads to the event."""
        body = {"id": "evt-1", "conversationId": "c-1"}
        for number in (1, 2):
            recorded.run(sqs_message(f"message-{number}", body))
        told = oncegate("explain", "message-2")
        assert first_line(told).startswith("Run: evt-1 was processed ")
        second = told[1].splitlines()[1]
        assert second.startswith("This delivery, at 2")
        assert second.endswith("; the handler was not run again.")
        assert "\nJournal: 2 deliveries of evt-1.\n" in told[1]
        assert fact(told, "original").startswith("evt-1, delivery message-1, processed at 2")
        assert fact(told, "difference") == "none: the content is the same"
        assert oncegate("explain", "message-2", "--journal", "off")[0] == exit_codes.NOT_FOUND

    def test_a_conflict(self, oncegate: Run, recorded: RecordedGate) -> None:
        """A conflict is explained by one sentence, and its fields are compared with the original."""
        recorded.run({"id": "evt-1", "a": {"b": 1}})
        recorded.run({"id": "evt-1", "a": {"b": 2}, "c": "\x1b[31m"})
        told = oncegate("explain", "evt-1")
        assert first_line(told).startswith("Not run: evt-1 has the key of another event but different content")
        assert first_line(told).endswith(" This is the latest of 2 events with the id evt-1.")
        assert told[1].splitlines()[2].startswith("2 records, different content for one key: conflict, not retries")
        assert fact(told, "difference") == "a.b, c"
        assert [line.split() for line in told[1].splitlines()[-2:]] == [
            ["a.b", "1", "2"],
            ["c", "(none)", '"\\u001b[31m"'],
        ]
        assert "\x1b" not in told[1]

    def test_an_event_of_a_file(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """The event of a file is compared with the original, and not the latest delivery. The name of a file is enough,
        and the decision is the first line."""
        recorded.run({"id": "evt-1", "a": 1})
        recorded.run({"id": "evt-1", "a": 1})
        (tmp_path / "event.json").write_text(json.dumps({"id": "evt-1", "a": 2}))
        told = oncegate("explain", "event.json")
        assert told[1].splitlines()[1:] == oncegate("explain", "--file", "event.json")[1].splitlines()[1:]
        assert first_line(told).startswith("Not run: it has the key of evt-1 (first seen ")
        assert told[1].splitlines()[1] == "event.json  evt-1"
        assert fact(told, "this delivery") == "evt-1, the event of the file"
        assert fact(told, "original").startswith("evt-1, processed at 2")
        assert fact(told, "difference") == "a"
        assert fact(told, "other strategies") == "auto: conflict with evt-1"
        (event,) = json.loads(oncegate("explain", "event.json", "--output", "json")[1])["events"]
        assert event["story"]["row"] is None
        assert event["story"]["difference"]["paths"] == ["a"]

    def test_the_id_selects_the_record(self, oncegate: Run, recorded: RecordedGate) -> None:
        """A key leads to its record. The key and the delivery id of a conflict lead to its dead letter."""
        recorded.run({"id": "evt-1", "a": 1})
        outcome = recorded.run(sqs_message("message-2", {"id": "evt-1", "a": 2}))
        told = oncegate("explain", str(outcome.key))
        assert first_line(told).startswith("Run: evt-1 was processed ")
        assert (fact(told, "state"), "dead_letter" in told[1]) == ("completed", False)
        for id_ in (str(outcome.kept), "message-2"):
            told = oncegate("explain", id_)
            assert first_line(told).startswith("Not run: evt-1 has the key of another event")
            assert (fact(told, "state"), fact(told, "key")) == ("dead letter", str(outcome.kept))

    @pytest.mark.parametrize("name", ["id", "conversationId"])
    def test_a_key_that_another_event_has_as_its_id(self, oncegate: Run, recorded: RecordedGate, name: str) -> None:
        """A key leads to its own event, or its own dead letter, although a later event has the key as its id."""
        key = str(recorded.run({"id": "evt-1", "a": 1}).key)
        kept = str(recorded.run({"id": "evt-1", "a": 2}).kept)
        for id_, start in ((key, "Run: evt-1 was "), (kept, "Not run: evt-1 has the key of another event")):
            recorded.run({"id": f"evt-{id_}", name: id_}, fail)
            told = oncegate("explain", id_)
            assert first_line(told).startswith(start)
            assert first_line(told).endswith(f" 1 other event has the id {id_}.")
            assert "\nThe event of the first line: 2 deliveries of evt-1.\n" in told[1]
            found = json.loads(oncegate("explain", id_, "--output", "json")[1])
            assert (found["sentence"].startswith(start), len(found["records"])) == (True, 2)
            assert first_line(oncegate("explain", id_.upper())).startswith(start)
        assert oncegate("dlq", "drop", kept, "--yes")[0] == exit_codes.OK
        assert first_line(oncegate("explain", kept)).startswith(
            f"The store has no record of the dead letter {kept} of "
        )

    def test_a_key_without_rows_that_another_event_has_as_its_id(
        self, oncegate: Run, gate: Gate, recorded: RecordedGate
    ) -> None:
        """The record of a key decides, also if the journal has only rows of another event with this id."""
        key = str(gate.run({"id": "evt-1"}, lambda event: None).key)
        recorded.run({"id": key}, fail)
        told = oncegate("explain", key)
        assert first_line(told).startswith("Run: evt-1 was processed ")
        assert first_line(told).endswith(f" 1 other event has the id {key}.")
        assert "The journal has no rows of it" in told[1]

    def test_a_failure_after_the_mark_is_not_hidden(self, oncegate: Run, recorded: RecordedGate, gate: Gate) -> None:
        """In mark_first mode, one event that failed has two records. A redelivery does not hide the failure."""
        marking = Gate(gate.store, mode="mark_first", observers=[recorded.recorder.of("calls")], remember=None)
        outcome = marking.run({"id": "evt-1"}, fail)
        for _ in range(2):
            assert recorded.recorder.flush(10)
            for id_ in ("evt-1", str(outcome.key), str(outcome.kept)):
                line = first_line(oncegate("explain", id_))
                assert line.startswith("Run and failed after it was marked as done: evt-1 is a dead letter: Val"), id_
                assert line.endswith("It runs again only if it is redriven (oncegate dlq redrive).")
            assert "not show copies" not in oncegate("explain", "evt-1")[1]
            assert marking.run({"id": "evt-1"}, fail).status == "duplicate"
        oncegate("dlq", "redrive", str(outcome.kept))
        marking.run_waiting(lambda event: None)
        assert recorded.recorder.flush(10)
        told = oncegate("explain", "evt-1")
        assert first_line(told).startswith("Run: evt-1 was processed ")
        assert "latest of" not in first_line(told)
        assert "  operator (redrive)  " in told[1]

    def test_a_dropped_dead_letter(self, oncegate: Run, recorded: RecordedGate) -> None:
        """The key and the delivery id of a dropped conflict lead to the drop, and not to the record of the original,
        which has run."""
        recorded.run({"id": "evt-1", "a": 1})
        kept = str(recorded.run(sqs_message("message-2", {"id": "evt-1", "a": 2})).kept)
        assert oncegate("dlq", "drop", kept, "--yes")[0] == exit_codes.OK
        recorded.run({"id": "evt-1", "a": 1})
        for id_ in (kept, "message-2"):
            told = oncegate("explain", id_)
            start, _, end = first_line(told).partition(" (command) dropped the dead letter ")
            assert start.startswith(
                f"The store has no record of the dead letter {kept} of evt-1 any more: the operator "
            )
            assert ". The last decision, " in end
            assert ": Conflict: same key as evt-1 (processed " in end
            assert "  operator (drop)  " in told[1]
        assert first_line(oncegate("explain", "evt-1")).startswith("Run: evt-1 was processed ")

    def test_a_dropped_dead_letter_without_a_key(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """An event without a key was refused, and its dead letter was dropped: the answer names the drop."""
        recorded.run({"id": "evt-1"})
        label, kept = ("calls", "default", "plain", "call", "invalid", ""), b"k" * 16
        fields = Fields(event_id="evt-2", kept=kept, at=wall() - 5_000_000, reason="Refused: no key.")
        with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db")) as journal:
            journal.append(NewRows([NewRow(label, fields)], {}, {}))
        with closing(examine(environ={})[0].operator_log("ada")) as log:
            log.add("drop", "Dropped.", ChangedEvent("default", kept, EventSummary("plain", delivery_id="evt-2")))
        for id_ in (kept.hex(), "evt-2"):
            assert first_line(oncegate("explain", id_)).startswith(
                f"The store has no record of the dead letter {kept.hex()} of evt-2 any more: the operator ada"
                " dropped the dead letter "
            )

    def test_a_conversation(self, oncegate: Run, recorded: RecordedGate) -> None:
        """Several events: one sentence about the latest, whether they are copies, and the rows of all of them."""
        recorded.run(change("evt-1", "connected", "10:00:05"))
        recorded.run(change("evt-2", "connected", "10:00:05.2"))
        told = oncegate("explain", "c-1")
        assert first_line(told).startswith("Run: evt-2 was processed ")
        assert first_line(told).endswith(" This is the latest of 2 events with the id c-1.")
        assert told[1].splitlines()[1].startswith("Possible double emission: 2 records of type call")
        assert "\nJournal: 2 rows of several events.\n" in told[1]
        assert "  processed, possible echo  evt-2  " in told[1]
        assert "\nThe event of the first line: 1 delivery of evt-2.\n" in told[1]
        assert "does not record duplicates" not in told[1]

    def test_json(self, oncegate: Run, recorded: RecordedGate) -> None:
        """The JSON output has the story, with all rows and values."""
        recorded.run({"id": "evt-1", "a": 1})
        outcome = recorded.run({"id": "evt-1", "a": 2})
        found = json.loads(oncegate("explain", str(outcome.kept), "--output", "json")[1])
        story = found["story"]
        assert found["journal"] is None
        assert found["sentence"] == story["sentence"]
        assert (story["deliveries"], story["is_complete"], story["row"]["status"]) == (2, True, "conflict")
        assert story["difference"]["values"] == [{"path": "a", "original": "1", "value": "2"}]
        assert story["row"]["dead_letter"] == str(outcome.kept)
        assert story["key"]["parts"] == ["evt-1"]
        assert [(each["strategy"], each["decision"]) for each in story["strategies"]] == [
            ("auto", "conflict"),
            ("event_id", "conflict"),
            ("content", "new"),
            ("state_change", "no key"),
        ]
        assert story["strategies"][0]["earlier"]["row"] == story["rows"][0]["row"]
        assert [(each["status"], each["is_arrival"]) for each in found["timeline"]] == [
            ("processed", True),
            ("conflict", True),
        ]

    def test_a_replay(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """A replay that waits is the latest event, although the journal has no decision about it yet."""
        payload = b'{"id": "evt-1"}'
        outcome = recorded.run(payload)
        assert outcome.key is not None
        settings = examine(flags={"store": f"sqlite:///{tmp_path}/oncegate.db"}, environ={})[0]
        event = ChangedEvent("default", outcome.key.digest, EventSummary("plain", delivery_id="evt-1"))
        with closing(settings.operator_log("ada")) as log:
            again = replays.replay(recorded.gate.store, settings, event, payload, "fix", log)
        for scan in ([], ["--scan", "10"]):
            told = oncegate("explain", "evt-1", *scan)
            assert first_line(told).startswith("Not run yet: evt-1 arrived ")
            assert first_line(told).endswith(" This is the latest of 2 events with the id evt-1.")
            assert (str(outcome.key) in told[1], str(again.key) in told[1]) == (True, True)
        recorded.gate.run_waiting(lambda event: None)
        assert recorded.recorder.flush(10)
        told = oncegate("explain", "evt-1")
        assert first_line(told).startswith("Run: evt-1 was processed ")
        assert " ago at its first attempt. " in first_line(told)
        assert json.loads(oncegate("explain", "evt-1", "--output", "json")[1])["story"]["row"]["key"] == str(again.key)
        assert first_line(oncegate("explain", str(outcome.key))).count(" ago at its first attempt. ") == 1

    def test_the_store_is_not_scanned(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """If the journal has the id of an event, the store is not scanned, unless --scan is given. The answer says
        so."""
        recorded.run({"id": "evt-1"})
        recorded.run({"id": "evt-1", "changed": True})
        outcome = recorded.run({"id": "evt-2"})
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", namespace="other")) as unrecorded:
            unrecorded.run({"id": "evt-1"}, lambda event: None)
        found = json.loads(oncegate("explain", "evt-1", "--output", "json")[1])
        assert (len(found["records"]), found["scanned"], found["looked_through"]) == (2, False, 0)
        assert (
            "\nThe store was not scanned (the journal has the id); --scan N scans it, too.\n"
            in oncegate("explain", "evt-1")[1]
        )
        found = json.loads(oncegate("explain", "evt-1", "--scan", "10", "--output", "json")[1])
        assert (len(found["records"]), found["scanned"], found["looked_through"]) == (3, True, 4)
        for arguments in (["evt-1", "--scan", "10"], [str(outcome.key)]):
            assert "was not scanned" not in oncegate("explain", *arguments)[1]

    @pytest.mark.parametrize("is_old", [False, True])
    def test_an_entity_is_scanned_if_the_journal_is_young(
        self, oncegate: Run, gate: Gate, tmp_path: Path, is_old: bool
    ) -> None:
        """An entity may have events from before the journal. If the journal is older than the retention, their records
        have expired."""
        gate.run({"id": "evt-1", "conversationId": "c-1"}, lambda event: None)
        label = ("calls", "default", "plain", "call", "processed", "")
        with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db")) as journal:
            at = wall() - (8 if is_old else 6) * 86_400_000_000
            journal.append(NewRows([NewRow(label, Fields(event_id="evt-0", at=at))], {}, {}))
        with closing(RecordedGate(tmp_path)) as recorded:
            recorded.run({"id": "evt-2", "conversationId": "c-1"})
        found = json.loads(oncegate("explain", "c-1", "--output", "json")[1])
        assert (len(found["records"]), found["scanned"]) == ((1, False) if is_old else (2, True))

    def test_without_a_record(self, oncegate: Run, recorded: RecordedGate) -> None:
        """An event whose record was reset is still explained by the journal."""
        outcome = recorded.run({"id": "evt-1"})
        assert oncegate("keys", "reset", str(outcome.key), "--yes")[0] == exit_codes.OK
        told = oncegate("explain", "evt-1")
        assert first_line(told).startswith("The store has no record of evt-1 any more: ")
        assert first_line(told).endswith(" ago: Processed at the first attempt.")

    def test_not_in_the_journal(self, oncegate: Run, gate: Gate, recorded: RecordedGate) -> None:
        """If the journal has no rows of a known event, the answer says so."""
        gate.run({"id": "evt-1"}, lambda event: None)
        recorded.run({"id": "evt-2"})
        told = oncegate("explain", "evt-1")
        assert first_line(told).startswith("Run: evt-1 was processed ")
        assert told[1].splitlines()[-1].startswith("The journal has no rows of it: ")
        assert "and the journal has no row of it: journal_max_age is 14d" in oncegate("explain", "evt-3")[2]

    def test_a_damaged_journal(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """If the journal cannot be read, the record is still explained."""
        gate.run({"id": "evt-1", "conversationId": "c-1"}, lambda event: None)
        (tmp_path / "oncegate.journal.db").write_bytes(b"this is no database" * 1_000)
        told = oncegate("explain", "c-1")
        assert first_line(told).startswith("Run: evt-1 was processed ")
        assert "The journal does, but it was not read: " in told[1]

    def test_a_file(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """A file with one event shows the story of its key."""
        recorded.run({"id": "evt-1", "conversationId": "c-1"})
        (tmp_path / "event.json").write_text('{"id": "evt-1", "conversationId": "c-1"}')
        assert "\nJournal: 1 delivery of evt-1.\n" in oncegate("explain", "--file", "event.json")[1]
        found = json.loads(oncegate("explain", "--file", "event.json", "--output", "json")[1])
        assert found["events"][0]["story"]["deliveries"] == 1

    @pytest.mark.parametrize("columns", ["80", "50"])
    def test_on_a_terminal(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path, columns: str) -> None:
        """A table fits a narrow terminal, and NO_COLOR turns off all escape codes."""
        for number in range(3):
            recorded.run(sqs_message(f"message-{number}", {"id": "evt-1", "a": 1}))
        shown = on_terminal(["explain", "evt-1"], tmp_path, COLUMNS=columns, NO_COLOR="1")
        assert "\x1b" not in shown
        table = shown.split("(UTC)")[1].split("delivery  ")[0]
        assert max(len(line) for line in table.splitlines()) <= int(columns)
        assert "redelivery" in table
        assert "state" not in table.split("Columns not shown")[0]
