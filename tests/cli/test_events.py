"""`oncegate events`: lists, stories, the live tail and recordings of the journal."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate
from oncegate.cli import events, exit_codes
from oncegate.errors import StoreUnavailable
from oncegate.journal import RowFilter, open_journal, open_recorder
from oncegate.journal.base import NewRow, NewRows, Page
from oncegate.journal.rows import Fields
from oncegate.journal.sqlite import SqliteJournal
from oncegate.settings import examine
from tests.cli.conftest import RecordedGate, Run, on_terminal, sqs_message
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer

CALL = {"id": "evt-1", "type": "call.ended", "conversationId": "c-1"}


def fail(_event: Event) -> None:
    raise ValueError("no such case")


def rows_of(told: tuple[int, str, str]) -> list[dict[str, Any]]:
    code, out, err = told
    assert (code, err) == (exit_codes.OK, "")
    found: list[dict[str, Any]] = json.loads(out)["rows"]
    return found


def started(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "oncegate", "events", "tail", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """End a command by Ctrl-C; returns its exit code, and the rest of its output."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


class TestList:
    def test_filters(self, oncegate: Run, recorded: RecordedGate) -> None:
        """Each filter selects rows, and several filters must all match."""
        recorded.run(CALL)
        recorded.run(CALL)
        recorded.run({"id": "evt-2", "type": "call.held", "conversationId": "c-1"}, fail)
        recorded.run(sqs_message("message-1", {"id": "evt-3", "type": "call.held", "conversationId": "c-2"}))

        def listed(*filters: str) -> list[tuple[str, str]]:
            found = rows_of(oncegate("events", "list", *filters, "--output", "json"))
            return [(row["event_id"], row["status"]) for row in found]

        everything = [("evt-3", "processed"), ("evt-2", "failed"), ("evt-1", "duplicate"), ("evt-1", "processed")]
        assert listed() == everything
        assert listed("--status", "duplicate") == [("evt-1", "duplicate")]
        assert listed("--kind", "redelivery") == [("evt-1", "duplicate")]
        assert listed("--type", "call.held") == everything[:2]
        assert listed("--entity", "c-1") == everything[1:]
        assert listed("--entity", "c-1", "--status", "processed", "--type", "call.ended") == everything[3:]
        assert listed("--id", "message-1") == everything[:1]
        assert (listed("--route", "calls"), listed("--route", "other")) == (everything, [])
        assert (listed("--namespace", "default"), listed("--namespace", "other")) == (everything, [])
        assert (listed("--since", "1h"), listed("--until", "1h")) == (everything, [])
        assert (listed("--since", "2020-01-31T10:00:00Z"), listed("--until", "2020-01-31")) == (everything, [])

    def test_pages(self, oncegate: Run, recorded: RecordedGate) -> None:
        """A list that has more rows prints the cursor of the next page, and the pages have each row once."""
        for number in range(5):
            recorded.run({"id": f"evt-{number}"})
        out = oncegate("events", "list", "--limit", "2")[1]
        assert out.splitlines()[0].split()[:3] == ["time", "outcome", "event"]
        text, cursor = out.splitlines()[-1].split(" --before ")
        assert text == "Older rows:"
        found = ["evt-4", "evt-3"]
        while cursor:
            page = json.loads(oncegate("events", "list", *f"--limit 2 --output json --before {cursor}".split())[1])
            found += [row["event_id"] for row in page["rows"]]
            cursor = page["next"]
        assert found == [f"evt-{number}" for number in reversed(range(5))]
        assert oncegate("events", "list", "--before", "1")[1] == "No older row matches.\n"

    def test_json(self, oncegate: Run, recorded: RecordedGate) -> None:
        """A row for programs has every field, times of RFC 3339, and milliseconds."""
        key = recorded.run(CALL | {"time": "2026-02-03T10:00:00Z", "state": "ended"}).key
        (row,) = rows_of(oncegate("events", "list", "--output", "json"))
        assert (row["key"], row["route"], row["type"], row["state"]) == (str(key), "calls", "call.ended", "ended")
        assert (row["occurred_at"], row["attempt"], row["count"]) == ("2026-02-03T10:00:00.000Z", 1, 1)
        assert row["at"].endswith("Z")
        assert 0 <= row["took_ms"] < 10_000
        since = datetime.fromisoformat(row["at"]) - datetime.fromisoformat(row["occurred_at"])
        assert row["lag_ms"] == pytest.approx(since / timedelta(milliseconds=1) - row["took_ms"])

    def test_actions_of_operators(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """Rows of operators are listed only on request."""
        recorded.run(CALL)
        label = ("calls", "default", "", "", "operator", "drop")
        with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db")) as journal:
            fields = Fields(b"k" * 16, at=time.time_ns() // 1_000, reason="Dropped.")
            journal.append(NewRows([NewRow(label, fields)], {}, {}))
        assert [row["status"] for row in rows_of(oncegate("events", "list", "--output", "json"))] == ["processed"]
        asked = rows_of(oncegate("events", "list", "--status", "operator", "--output", "json"))
        assert [row["reason"] for row in asked] == ["Dropped."]

    def test_an_action_on_several_events(self, oncegate: Run, recorded: RecordedGate) -> None:
        """The row of the action and the rows of its events differ in words. An operator has no route."""
        recorded.run(CALL)
        with closing(Gate(recorded.gate.store, max_attempts=1)) as gate:
            gate.run({"id": "evt-8"}, fail)
            gate.run({"id": "evt-9"}, fail)
        assert oncegate("dlq", "drop", "--all", "--yes")[0] == exit_codes.OK
        lines = oncegate("events", "list", "--status", "operator")[1].splitlines()[1:]
        assert sorted("one of several events" in line for line in lines) == [False, True, True]
        assert all(line.split()[2:4] == ["operator", "(drop)" + "," * ("one of" in line)] for line in lines)
        assert not any("  operator  " in line for line in lines)

    def test_nothing(self, oncegate: Run, recorded: RecordedGate) -> None:
        recorded.run(CALL)
        assert oncegate("events", "list", "--type", "none") == (exit_codes.OK, "No row matches.\n", "")

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (
                ("--since", "yesterday"),
                "'yesterday' is not a time; write a duration such as 2h, or a time such as 2026",
            ),
            (("--since", "2026-13-45T99:00:00Z"), "is not a time"),
            (("--since", "0s"), "is not a time"),
            (("--since", "1h", "--until", "2h"), "--since is not before --until"),
            (("--status", "lost"), "'lost' is not one of"),
            (("--before", "x"), "'--before': 'x' is not a cursor; a cursor is a number, which a list prints below its"),
            (("--limit", "0"), "--limit"),
            (("--journal", "off"), "there is no journal, because it is off; remove this setting, or set it to auto"),
            (("--journal", "ftp://x"), "unknown journal scheme 'ftp'"),
            (("--store", "memory://"), "memory:// has no place for one"),
        ],
    )
    def test_bad_input(self, oncegate: Run, recorded: RecordedGate, arguments: tuple[str, ...], text: str) -> None:
        """Invalid input is one clear error and exit code 2."""
        for command in ("list", "tail"):
            if command == "tail" and arguments[0] in ("--before", "--limit"):
                continue
            code, out, err = oncegate("events", command, *arguments)
            assert (code, out) == (exit_codes.USAGE, "")
            assert text in err
            assert "Traceback" not in err

    @pytest.mark.parametrize("command", [("list",), ("show", "evt-1"), ("export", "r.jsonl")])
    def test_no_journal_yet(self, oncegate: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
        """Without a store, the error is about the store; without a journal beside the store, about the journal."""
        code, _, err = oncegate("events", *command)
        assert (code, "there is no store at oncegate.db" in err) == (exit_codes.STORE, True)
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate:
            gate.run(CALL, lambda _event: None)
        code, _, err = oncegate("events", *command)
        assert (code, "there is no journal at " in err) == (exit_codes.STORE, True)

    @pytest.mark.parametrize("columns", ["80", "50"])
    def test_on_a_terminal(self, recorded: RecordedGate, tmp_path: Path, columns: str) -> None:
        """The table fits a narrow terminal. Text of senders prints no escape codes."""
        hostile = "\x1b[2J\u202e evil"
        recorded.run({"id": hostile, "type": hostile, "conversationId": hostile}, fail)
        shown = on_terminal(["events", "list"], tmp_path, COLUMNS=columns, NO_COLOR="1")
        assert "failed" in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert max(len(line) for line in shown.splitlines()) <= int(columns)


class TestShow:
    def test_an_event_and_a_row(self, oncegate: Run, recorded: RecordedGate) -> None:
        """An event is found by any id, and a row by its number."""
        recorded.run(CALL)
        recorded.run(CALL)
        second, first = rows_of(oncegate("events", "list", "--output", "json"))
        for id_ in ("evt-1", "c-1", first["key"], second["row"]):
            code, out, _ = oncegate("events", "show", id_)
            assert code == exit_codes.OK
            assert out.startswith("Run: evt-1 was processed ")
            assert f"\n{'This' if id_ == second['row'] else 'The latest'} delivery, at 2" in out
            assert "\nJournal: 2 deliveries of evt-1.\n" in out
        shown = json.loads(oncegate("events", "show", first["row"], "--output", "json")[1])
        assert (shown["row"]["status"], shown["deliveries"], shown["others"]) == ("processed", 2, 0)
        assert json.loads(shown["payload"]) == CALL
        assert [row["row"] for row in shown["rows"]] == [first["row"], second["row"]]

    def test_several_events(self, oncegate: Run, recorded: RecordedGate) -> None:
        for number in (1, 2, 3):
            recorded.run(CALL | {"id": f"evt-{number}"})
        out = oncegate("events", "show", "c-1")[1]
        assert out.startswith("Run: evt-3 was processed ")
        assert out.splitlines()[0].endswith(" This is the latest of 3 events with the id c-1.")

    def test_a_replay(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """The run of a replay is no delivery. The story says who replayed which event."""
        key, copy = str(recorded.run(CALL).key), b"2" * 16
        at, url = time.time_ns() // 1_000, f"sqlite:///{tmp_path}/oncegate.journal.db"
        label = ("operator", "default", "", "", "operator", "replay")
        made = Fields(key=bytes.fromhex(key), kept=copy, at=at, worker="ada", reason='Replayed under the name "x".')
        ran = Fields(key=copy, event_id="evt-1", at=at + 1, attempt=1, reason="Processed.")
        run = NewRow(("calls", "default", "plain", "call", "processed", ""), ran)
        with closing(open_journal(url)) as journal:
            journal.append(NewRows([NewRow(label, made), run], {}, {}))
        out = oncegate("events", "show", copy.hex())[1]
        assert "\nJournal: 0 deliveries, 1 replay of evt-1.\n" in out
        assert f'Replayed under the name "x". The event has the key {key}. By ada.' in " ".join(out.split())

    def test_an_unreadable_event(self, oncegate: Run, recorded: RecordedGate) -> None:
        """A delivery without a key has a story too."""
        recorded.run(b"not json")
        (row,) = rows_of(oncegate("events", "list", "--output", "json"))
        code, out, _ = oncegate("events", "show", row["row"])
        assert code == exit_codes.OK
        assert out.startswith("Refused: the text is not JSON")
        assert "payload" in out

    def test_unknown(self, oncegate: Run, recorded: RecordedGate) -> None:
        recorded.run(CALL)
        for id_ in ("evt-2", "99", "9" * 19, "9" * 40, "\x1b[2J", ""):
            code, out, err = oncegate("events", "show", id_)
            assert (code, out) == (exit_codes.NOT_FOUND, "")
            assert err.startswith("Error: no row of the journal has the id ")
            assert "\x1b" not in err


class TestTail:
    def test_every_row_of_a_burst(self, recorded: RecordedGate, tmp_path: Path) -> None:
        """All rows of a burst are shown once and in order, as JSON lines in a pipe. Ctrl-C ends with 0."""
        recorded.run({"id": "before"})
        process = started(tmp_path, "--output", "json")
        assert json.loads(line_of(process))["event_id"] == "before"
        names = [f"evt-{number}" for number in range(3_000)]
        for start in range(0, len(names), 500):
            batch = [{"id": name} for name in names[start : start + 500]]
            recorded.gate.run_batch(batch, lambda _event: None)
            assert recorded.recorder.flush(20)
        found = [json.loads(line_of(process))["event_id"] for _ in names]
        assert found == names
        assert ended(process) == (exit_codes.OK, "", "")

    def test_filters_and_last(self, recorded: RecordedGate, tmp_path: Path) -> None:
        """The first rows and the new rows match the filter."""
        for number in range(4):
            recorded.run({"id": f"evt-{number}", "type": "a" if number % 2 else "b"})
        process = started(tmp_path, "--last", "1", "--type", "a")
        assert "  processed  calls  evt-3  " in line_of(process)
        recorded.run({"id": "evt-4", "type": "b"})
        recorded.run({"id": "evt-5", "type": "a"}, fail)
        line = line_of(process)
        assert "  failed     calls  evt-5  Failed at attempt 1: ValueError; " in line
        assert ended(process) == (exit_codes.OK, "", "")

    def test_a_read_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a read fails between two pages, the rows that were printed before are not printed again."""
        settings = examine(flags={"journal": f"sqlite:///{tmp_path}/journal.db"}, environ={})[0]
        label, printed = ("calls", "default", "plain", "call.ended", "processed", ""), list[str | None]()
        follower = events._Follower(settings, RowFilter(), lambda row: printed.append(row.event_id))
        with closing(open_journal(f"sqlite:///{tmp_path}/journal.db")) as journal:
            journal.append(NewRows([NewRow(label, Fields(event_id="0", at=1))], {}, {}))
            assert follower.step(10) == events._POLL
            new = [NewRow(label, Fields(event_id=str(number), at=1)) for number in range(1, 2_501)]
            journal.append(NewRows(new, {}, {}))
        read, reads = SqliteJournal.rows, []

        def fail_once(self: SqliteJournal, *arguments: Any, **options: Any) -> Page:
            reads.append(options)
            if len(reads) == 6:  # the newest row, three cursors, the first page of rows, and the second
                raise StoreUnavailable("failover")
            return read(self, *arguments, **options)

        monkeypatch.setattr(SqliteJournal, "rows", fail_once)
        assert follower.step(10) == events._RETRY
        assert 1 < len(printed) < 2_501
        assert follower.step(10) == events._POLL
        follower.close()
        assert printed == [str(number) for number in range(2_501)]

    def test_it_waits_for_the_journal(self, tmp_path: Path) -> None:
        """Without a journal the command waits, and shows its first row."""
        process = started(tmp_path, "--last", "0")
        assert process.stderr is not None
        assert process.stderr.readline().endswith("check the setting journal; waiting for it\n")
        with closing(RecordedGate(tmp_path)) as recorded:
            recorded.run({"id": "evt-1"})
            assert "evt-1" in line_of(process)
            assert process.stderr.readline() == "The journal can be read again.\n"
        code, _, err = ended(process)
        assert (code, err) == (exit_codes.OK, "")

    def test_its_reader_ends(self, recorded: RecordedGate, tmp_path: Path) -> None:
        """The command ends with 0 when the reader of the pipe has gone, although no new row comes."""
        recorded.run({"id": "evt-1"})
        command = f"{sys.executable} -m oncegate events tail | head -n 1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=60)  # noqa: S607
        assert (done.returncode, done.stdout.count(b"\n"), done.stderr) == (exit_codes.OK, 1, b"")


class TestExport:
    @pytest.fixture(autouse=True)
    def with_payloads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEGATE_JOURNAL_PAYLOADS", "24h")

    def test_read_and_replay(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """A recording has each delivery in order, and `read` and `simulate --replay` take it."""
        first = b'{\n  "id": "evt-1", "price": 1.10,\n  "type": "call.ended"\n}'
        recorded.run(first)
        recorded.run(first)
        recorded.run(sqs_message("message-1", {"id": "evt-2", "text": "a\nb"}))
        recorded.run(b"not json")
        code, out, err = oncegate("events", "export", "r.jsonl")
        assert (code, out, err) == (exit_codes.OK, "", "Wrote 3 deliveries. Left out: 1 not JSON.\n")
        lines = (tmp_path / "r.jsonl").read_bytes().splitlines()
        assert lines[0] == lines[1] == b'{"id":"evt-1","price":1.10,"type":"call.ended"}'
        assert json.loads(lines[2]) == {"id": "evt-2", "text": "a\nb"}
        read = json.loads(oncegate("read", "r.jsonl", "--output", "json")[1])
        assert [event["id"] for event in read["events"]] == ["evt-1", "evt-1", "evt-2"]
        assert oncegate("simulate", "--replay", "r.jsonl", "--to", "file://sent.jsonl", "--rate", "1000")[0] == 0
        sent = (tmp_path / "sent.jsonl").read_text().splitlines()
        assert sorted(json.loads(line)["id"] for line in sent) == ["evt-1", "evt-1", "evt-2"]

    def test_two_workers(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """A copy has the payload of the same worker with the same body."""
        label, at = ("calls", "default", "plain", "", "duplicate", ""), time.time_ns() // 1_000
        rows = [
            ("a:1", 1, b'{"x":1}'),
            ("a:2", 1, b'{"x":2}'),
            ("a:1", 2, b'{"x":3}'),
            ("a:1", 1, None),
            ("a:3", 1, None),
        ]
        with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db")) as journal:
            for number, (worker, body, payload) in enumerate(rows):
                fields = Fields(b"k" * 16, at=at + number, worker=worker, body=body, same=payload is None)
                journal.append(NewRows([NewRow(label, fields, payload)], {}, {}))
        out = oncegate("events", "export", "-")[1]
        assert out.splitlines() == ['{"x":1}', '{"x":2}', '{"x":3}', '{"x":1}']

    def test_filters_that_hide_the_payload(self, oncegate: Run, recorded: RecordedGate) -> None:
        """A copy has the payload of the first delivery, also if a filter leaves out the row of that delivery."""
        for _ in range(3):
            recorded.gate.run_batch([json.dumps(CALL).encode()], lambda _event: None)
            time.sleep(0.002)  # times are shown in milliseconds
        assert recorded.recorder.flush(10)
        rows = rows_of(oncegate("events", "list", "--output", "json"))
        for filters in (("--status", "duplicate"), ("--kind", "redelivery"), ("--since", rows[1]["at"])):
            code, out, err = oncegate("events", "export", "-", *filters)
            assert (code, err) == (exit_codes.OK, "Wrote 2 deliveries.\n"), filters
            assert [json.loads(line) for line in out.splitlines()] == [CALL, CALL]

    def test_deliveries_of_an_inbox(self, oncegate: Run, recorded: RecordedGate) -> None:
        """The attempts of a stored event are no deliveries."""
        recorded.gate.admit([CALL])
        recorded.gate.run_waiting(lambda _event: None)
        recorded.gate.admit([CALL])
        assert recorded.recorder.flush(10)
        assert len(rows_of(oncegate("events", "list", "--output", "json"))) == 3
        code, out, err = oncegate("events", "export", "-")
        assert (code, err) == (exit_codes.OK, "Wrote 2 deliveries.\n")
        assert [json.loads(line) for line in out.splitlines()] == [CALL, CALL]

    def test_filters_that_hide_the_acceptance(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """The attempts of a stored event are no deliveries, also if a filter leaves out the row of its acceptance, or
        if another process ran the event."""
        recorded.gate.admit([CALL, {"id": "evt-2"}])
        assert recorded.recorder.flush(10)
        worker = open_recorder(f"sqlite:///{tmp_path}/oncegate.journal.db", payload_age=86_400_000_000)
        gate = Gate(f"sqlite:///{tmp_path}/oncegate.db", observers=[worker.of("inbox")], remember=None)
        with closing(gate):
            gate.run_waiting(lambda _event: None)
            assert worker.flush(10)
        worker.close()
        recorded.run({"id": "evt-3"})
        attempts = rows_of(oncegate("events", "list", "--status", "processed", "--output", "json"))
        assert [row["event_id"] for row in attempts[:1]] == ["evt-3"]
        assert {row["route"] for row in attempts[1:]} == {"inbox"}
        assert oncegate("events", "export", "-")[1].count("\n") == 3
        for filters in (("--status", "processed"), ("--since", attempts[-1]["at"])):
            assert oncegate("events", "export", "-", *filters)[1:] == ('{"id":"evt-3"}\n', "Wrote 1 delivery.\n")
        assert oncegate("events", "export", "-", "--route", "inbox")[1:] == ("", "Wrote 0 deliveries.\n")
        assert oncegate("events", "export", "-", "--status", "accepted")[2] == "Wrote 2 deliveries.\n"

    def test_storms(self, oncegate: Run, recorded: RecordedGate) -> None:
        """The copies of a storm are left out, and the note counts them."""
        recorded.gate.run_batch([CALL], lambda _event: None)
        for _ in range(12):
            recorded.gate.run_batch([CALL], lambda _event: None)
        assert recorded.recorder.flush(10)
        assert oncegate("events", "export", "-")[2] == "Wrote 6 deliveries. Left out: 7 copies in storms.\n"

    def test_many_pages(self, oncegate: Run, recorded: RecordedGate) -> None:
        """A long recording is in order, and a filter selects its rows."""
        recorded.gate.run_batch([{"id": f"evt-{n}", "type": "ab"[n % 2]} for n in range(2_500)], lambda _event: None)
        assert recorded.recorder.flush(20)
        out = oncegate("events", "export", "-")[1]
        assert [json.loads(line)["id"] for line in out.splitlines()] == [f"evt-{n}" for n in range(2_500)]
        assert oncegate("events", "export", "-", "--type", "a")[1].count("\n") == 1_250
        assert oncegate("events", "export", "-", "--id", "evt-7")[1] == '{"id":"evt-7","type":"b"}\n'

    def test_without_payloads(self, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If no event has a payload, the export fails with the reason and the setting, and no file is written. What
        this command's own settings say does not count: another process may have written the journal."""
        with closing(RecordedGate(tmp_path, payloads=False)) as recorded:
            recorded.run(CALL)
        code, out, err = oncegate("events", "export", "r.jsonl")
        assert (code, out) == (exit_codes.FAILED, "")
        assert err.startswith(
            "Wrote 0 deliveries. Left out: 1 without a payload.\nError: the journal holds no payloads"
        )
        assert "set journal_payloads to a duration, such as 24h" in err
        assert not (tmp_path / "r.jsonl").exists()
        monkeypatch.delenv("ONCEGATE_JOURNAL_PAYLOADS")
        with closing(RecordedGate(tmp_path)) as recorded:
            recorded.run(CALL | {"id": "evt-2"})
        assert oncegate("events", "export", "r.jsonl")[0] == exit_codes.OK
        assert json.loads((tmp_path / "r.jsonl").read_text())["id"] == "evt-2"
        code, out, err = oncegate("events", "export", "other.jsonl", "--journal", "off")
        assert (code, "there is no journal, because it is off" in err) == (exit_codes.USAGE, True)

    def test_the_file(self, oncegate: Run, recorded: RecordedGate, tmp_path: Path) -> None:
        """Only the owner can read a new file. An existing file is replaced only with --force."""
        recorded.run(CALL)
        file = tmp_path / "r.jsonl"
        assert oncegate("events", "export", "r.jsonl")[0] == exit_codes.OK
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.write_text("other\n")
        code, _, err = oncegate("events", "export", "r.jsonl")
        assert (code, file.read_text()) == (exit_codes.FAILED, "other\n")
        assert err == "Error: r.jsonl exists; use --force to replace it, or name another file\n"
        assert oncegate("events", "export", "r.jsonl", "--force")[0] == exit_codes.OK
        assert json.loads(file.read_text()) == CALL
        assert oncegate("events", "export", "/dev/null")[0] == exit_codes.OK


class TestServers:
    """The commands read a journal on Redis and on Postgres."""

    def check(self, oncegate: Run, url: str, folder: Path) -> None:
        with closing(RecordedGate(folder, url=url)) as recorded:
            recorded.run(CALL)
            recorded.run(sqs_message("message-2", CALL))
            recorded.run(CALL | {"x": 1})
        at = ("--store", url)
        found = rows_of(oncegate("events", "list", *at, "--entity", "c-1", "--output", "json"))
        assert [row["status"] for row in found] == ["conflict", "duplicate", "processed"]
        out = oncegate("explain", "message-2", *at)[1]
        assert out.startswith("Run: evt-1 was processed ")
        assert "\nJournal: 3 deliveries of evt-1.\n" in out
        assert oncegate("events", "show", found[0]["row"], *at)[1].startswith("Not run: evt-1 has the key of another")
        assert oncegate("events", "export", "-", *at)[1].count("\n") == 3

    def test_redis(
        self, oncegate: Run, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ONCEGATE_JOURNAL_PAYLOADS", "24h")
        redis_server.client.flushall()
        self.check(oncegate, redis_server.url, tmp_path)

    def test_postgres(
        self, oncegate: Run, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ONCEGATE_JOURNAL_PAYLOADS", "24h")
        with postgres.connect() as db:
            db.execute(b"DROP SCHEMA IF EXISTS events CASCADE")
            db.execute(b"DROP SCHEMA IF EXISTS events_journal CASCADE")
        self.check(oncegate, f"{postgres.url()}?oncegate_schema=events", tmp_path)
