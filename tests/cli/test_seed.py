"""`oncegate seed`: files, samples, refusals and hostile rows. tests/previous has the sources on servers."""

import json
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, keys, read
from oncegate.claims import EventSummary
from oncegate.cli import exit_codes
from oncegate.cli.seeding import Candidate, Counts, MergedEvents, StoreSink
from oncegate.errors import StoreUnavailable
from oncegate.gate.options import validate
from oncegate.sources import Hints
from oncegate.stores.base import Change, scan
from oncegate.stores.memory import MemoryStore
from tests.cli.conftest import Run, on_terminal

PAIR = 'fields("conversationId", "timestamp")'
LATER = int(time.time()) + 3_600


def lines(path: Path, *documents: Any) -> str:
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in documents))
    return path.name


@pytest.fixture
def rows(tmp_path: Path) -> str:
    found = [{"conversationId": f"c-{n}", "timestamp": n, "expiresAt": LATER} for n in range(1, 4)]
    return lines(tmp_path / "old.jsonl", *found)


def run_all(tmp_path: Path, *payloads: Any, **options: Any) -> list[str]:
    def succeed(event: Event) -> None: ...

    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", **options)) as gate:
        return [outcome.status for outcome in gate.run_batch(payloads, succeed)]


class TestFiles:
    def test_rows(self, oncegate: Run, rows: str, tmp_path: Path) -> None:
        """A line with a flat object is a row."""
        code, out, _ = oncegate("seed", rows, "--key", PAIR, "--source", "plain")
        assert (code, out) == (0, "Read 3 rows: 3 seeded, 0 already there, 0 expired, 0 unreadable.\n")
        events = [{"conversationId": f"c-{n}", "timestamp": n, "more": [n]} for n in range(1, 5)]
        assert run_all(tmp_path, *events, key=keys.fields("conversationId", "timestamp")) == [
            "duplicate",
            "duplicate",
            "duplicate",
            "processed",
        ]

    @pytest.mark.parametrize("strategy", ["auto", "content", 'state_change("500ms")', "event_id"])
    def test_payloads(self, strategy: str, oncegate: Run, tmp_path: Path) -> None:
        """A line with a whole payload is read as an event, so every strategy has its key. A file:// URL is a file."""
        detail = {"conversationId": "c-1", "eventType": "call.ended", "state": "ended", "timestamp": 1_770_091_506_000}
        envelope = {"source": "aws.partner/genesys.com/x", "detail-type": "call.ended"}
        known, new = ({**envelope, "id": n, "detail": detail | {"conversationId": f"c-{n}"}} for n in ("1", "2"))
        lines(tmp_path / "old.jsonl", known)
        code, out, err = oncegate("seed", f"file://{tmp_path}/old.jsonl", "--key", strategy)
        assert (code, out) == (0, "Read 1 row: 1 seeded, 0 already there, 0 expired, 0 unreadable.\n"), err
        chosen = {
            "auto": keys.auto,
            "content": keys.content,
            "event_id": keys.event_id,
            'state_change("500ms")': keys.state_change("500ms"),
        }[strategy]
        assert run_all(tmp_path, known, new, key=chosen) == ["duplicate", "processed"]

    def test_state_changes(self, oncegate: Run, tmp_path: Path) -> None:
        """Another emission of a seeded state change is a duplicate, too: the timeline of its entity is filled."""
        lines(
            tmp_path / "old.jsonl", {"id": "1", "conversationId": "c", "state": "held", "timestamp": 1_770_091_506_000}
        )
        command = ("seed", "old.jsonl", "--lines", "events", "--key", 'state_change("500ms")')
        assert oncegate(*command)[0] == 0
        echo = {"id": "2", "conversationId": "c", "state": "held", "timestamp": 1_770_091_506_200}
        later = {"id": "3", "conversationId": "c", "state": "held", "timestamp": 1_770_091_509_000}
        assert run_all(tmp_path, echo, later, key=keys.state_change("500ms")) == ["duplicate", "processed"]

    def test_what_a_line_is(self, oncegate: Run, tmp_path: Path) -> None:
        """`--lines` says what the lines are, if a flat object is an event or a row has inner values."""
        file = lines(tmp_path / "old.jsonl", {"id": "1", "x": 1})
        assert oncegate("seed", file, "--lines", "events", "--key", "content")[0] == 0
        nested = lines(tmp_path / "nested.jsonl", {"id": "1", "x": {"y": 1}})
        out = oncegate("seed", nested, "--lines", "rows", "--key", "event_id", "--source", "plain")[1]
        assert out.startswith("Read 1 row: 1 seeded")

    def test_an_export_of_dynamodb(self, oncegate: Run, tmp_path: Path) -> None:
        """The lines of an export of a table to S3 are rows."""
        item = {"id": {"S": "evt-1"}, "expiresAt": {"N": str(LATER)}, "data": {"M": {"x": {"S": "y"}}}}
        expired = {"id": {"S": "evt-2"}, "ttl": {"N": "1700000000"}}
        file = lines(tmp_path / "old.jsonl", {"Item": item}, {"Item": expired})
        out = oncegate("seed", file, "--source", "plain")[1]
        assert out == "Read 2 rows: 1 seeded, 0 already there, 1 expired, 0 unreadable.\n"
        assert run_all(tmp_path, {"id": "evt-1"}, {"id": "evt-2"}) == ["duplicate", "processed"]

    def test_rows_among_payloads(self, oncegate: Run, tmp_path: Path) -> None:
        """A row after many payloads has no key without a source; it never gets the key of another source."""
        payloads = [{"id": str(number), "data": {"x": number}} for number in range(150)]
        file = lines(tmp_path / "old.jsonl", *payloads, {"id": "evt-1"})
        code, out, _ = oncegate("seed", file)
        assert code == exit_codes.FAILED
        assert out.splitlines() == [
            "Read 151 rows: 150 seeded, 0 already there, 0 expired, 1 unreadable.",
            "  old.jsonl:151: the source of its event is not known; add --source",
        ]

    def test_the_source_of_rows_among_payloads(self, oncegate: Run, tmp_path: Path) -> None:
        """The source that is given or configured is used for every row, wherever it is in the file."""
        payloads = [{"id": str(number), "data": {"x": number}} for number in range(150)]
        file = lines(tmp_path / "old.jsonl", *payloads, {"id": "evt-1"})
        summary = "Read 151 rows: 151 would be seeded, 0 expired, 0 unreadable. Nothing was written.\n"
        assert oncegate("seed", file, "--source", "plain", "--dry-run")[:2] == (0, summary)
        (tmp_path / "oncegate.toml").write_text('[read]\nsource = "crm"\n')
        assert oncegate("seed", file, "--key", "event_id", "--dry-run")[:2] == (0, summary)

    def test_a_row_without_content_among_payloads(self, oncegate: Run, tmp_path: Path) -> None:
        """A row never gets a key that needs the content of its event."""
        payloads = [{"id": str(number), "data": {"x": number}} for number in range(150)]
        file = lines(tmp_path / "old.jsonl", *payloads, {"id": "evt-1"})
        code, out, _ = oncegate("seed", file, "--source", "plain", "--key", "content")
        assert code == exit_codes.FAILED
        assert out.endswith("  old.jsonl:151: the row lacks the content of the event, which the key needs\n")

    def test_a_missing_file(self, oncegate: Run) -> None:
        """A file that cannot be read ends the command before anything is written."""
        code, _, err = oncegate("seed", "none.jsonl", "--source", "plain")
        assert (code, err) == (exit_codes.USAGE, "Error: cannot read none.jsonl: No such file or directory\n")


class TestBadRows:
    def test_clusters_of_bad_rows(self, oncegate: Run, tmp_path: Path) -> None:
        """Rows that cannot be read are counted and shown with their position; the other rows are seeded. The exit code
        says that rows are missing."""
        good = [{"id": f"evt-{number}"} for number in range(300)]
        bad: list[Any] = ["{", '"text"', "[1", {"id": ""}, {"id": None}, {"id": True}, {"x": 1}, '{"id": "\\ud800"}']
        bad += [{"id": [1]}, {"id": "x" * 300}, {"id": 10**40}] + [{"id": None}] * 200
        file = lines(tmp_path / "old.jsonl", *good[:150], *bad, *good[150:])
        code, out, err = oncegate("seed", file, "--source", "plain")
        found = re.match(r"Read (\d+) rows: (\d+) seeded, 0 already there, 0 expired, (\d+) unreadable\.\n", out)
        assert (code, err) == (exit_codes.FAILED, "")
        assert found
        read, seeded, unreadable = map(int, found.groups())
        assert (read, seeded + unreadable) == (511, 511)
        assert seeded >= 300
        assert "\n  old.jsonl:154: the row has no id\n" in out
        assert out.endswith(f"\n  and {unreadable - 10} more\n")

    def test_bad_rows_at_the_start(self, oncegate: Run, tmp_path: Path) -> None:
        """Many bad rows at the start hide neither the missing source nor the missing parts of the key."""
        file = lines(tmp_path / "old.jsonl", *['"text"', "{"] * 250, {"x": "1"})
        assert "the source of the events is a part of their keys" in oncegate("seed", file)[2]
        assert "lack id, which the key auto needs" in oncegate("seed", file, "--source", "plain")[2]

    def test_nothing_can_be_read(self, oncegate: Run, tmp_path: Path) -> None:
        """If no row can be read, the command fails."""
        code, out, _ = oncegate("seed", lines(tmp_path / "old.jsonl", "1", "2"), "--source", "plain", "--lines", "rows")
        assert code == exit_codes.FAILED
        assert out.startswith("Read 2 rows: 0 seeded, 0 already there, 0 expired, 2 unreadable.\n")

    def test_control_characters(self, oncegate: Run, tmp_path: Path) -> None:
        """A hostile value cannot control the terminal."""
        file = lines(tmp_path / "old.jsonl", {"id": "1", "expiresAt": "\x1b[2J"}, {"id": "2"})
        out = oncegate("seed", file, "--source", "plain")[1]
        assert "\x1b" not in out

    def test_an_expiry_that_is_no_time(self, oncegate: Run, tmp_path: Path) -> None:
        """A row whose expiry is not a time is seeded for the retention, as the setting `previous` does. The summary
        counts these rows."""
        file = lines(tmp_path / "old.jsonl", {"id": "1", "ttl": "soon"}, {"id": "2", "ttl": 0}, {"id": "3", "ttl": 5})
        code, out, _ = oncegate("seed", file, "--source", "plain", "--retention", "1h")
        assert (code, out.splitlines()) == (
            0,
            [
                "Read 3 rows: 3 seeded, 0 already there, 0 expired, 0 unreadable.",
                "2 rows with an expiry that is not a time: remembered for the retention.",
            ],
        )
        assert self.lifetimes(tmp_path) == [pytest.approx(3_600, abs=5)] * 3

    def test_rows_with_one_key(self, oncegate: Run, tmp_path: Path) -> None:
        """Of the rows with one key, the longest expiry counts, however far they are apart. The summary counts them. A
        row without an expiry counts as long as the retention."""
        others = [{"id": f"x-{number}", "ttl": LATER} for number in range(1_200)]
        soon = LATER - 3_000
        first = [{"id": "a", "ttl": soon}, {"id": "b"}, {"id": "c", "ttl": LATER}, {"id": "d"}]
        second = [
            {"id": "a", "ttl": LATER},
            {"id": "b", "ttl": LATER},
            {"id": "c", "ttl": soon},
            {"id": "d", "ttl": soon},
        ]
        file = lines(tmp_path / "old.jsonl", *first, *others, *second)
        command = ("seed", file, "--source", "plain", "--retention", "30m")
        counts = "4 with the key of another row, 0 expired, 0 unreadable."
        out = oncegate(*command, "--dry-run")[1]
        assert out == f"Read 1,208 rows: 1,204 would be seeded, {counts} Nothing was written.\n"
        assert oncegate(*command)[:2] == (0, f"Read 1,208 rows: 1,204 seeded, 0 already there, {counts}\n")
        left = pytest.approx(LATER - time.time(), abs=10)
        assert self.lifetimes(tmp_path) == [pytest.approx(1_800, abs=60), *[left] * 1_203]
        assert oncegate(*command)[1] == f"Read 1,208 rows: 0 seeded, 1,204 already there, {counts}\n"

    def lifetimes(self, tmp_path: Path) -> list[float]:
        """The time that each record has left, in seconds, the shortest first."""
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate:
            return sorted((entry.record.expires_at or 0) / 1e6 - time.time() for entry in scan(gate.store, "default"))

    def test_a_busy_timeline(self) -> None:
        """A state change whose timeline other workers keep changing is not recorded under a wrong key. It is counted,
        so the exit code asks to repeat the command."""

        class BusyStore(MemoryStore):
            def swap(self, changes: Sequence[Change]) -> list[bool]:
                return [False] * len(changes)

        payload = {"id": "1", "conversationId": "c", "state": "held", "timestamp": 1_770_091_506_000}
        (event,) = read(payload)
        strategy = keys.state_change("500ms")
        store, counts = BusyStore(), Counts()
        candidate = Candidate("old.jsonl:1", strategy(event), EventSummary("plain"), None, event)
        with closing(MergedEvents()) as merged:
            sink = StoreSink(store, validate({}), Hints(), merged)
            sink.add([candidate], counts)
            sink.finish(counts)
        assert (counts.seeded, counts.unreadable, counts.same_key) == (0, 1, 0)
        assert counts.problems[0].problem.endswith("changing the timeline of its entity; repeat the command")
        assert list(scan(store)) == []

    def test_a_temporary_file_that_cannot_be_written(self) -> None:
        """If the disk is full, the error says what to do."""
        merged = MergedEvents()
        merged.close()
        with pytest.raises(StoreUnavailable, match="set TMPDIR to a folder with free space"):
            merged.count()

    def test_a_large_expiry(self, oncegate: Run, tmp_path: Path) -> None:
        """A record keeps the time of its row, even if that is longer than the retention; it is never longer."""
        file = lines(
            tmp_path / "old.jsonl", {"id": "1", "expiresAt": LATER * 1_000 + 7}, {"id": "1", "expiresAt": LATER + 9}
        )
        assert oncegate("seed", file, "--source", "plain", "--retention", "1m")[0] == 0
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate:
            (entry,) = gate.store.browse("default")
        assert entry.record.expires_at is not None
        assert (LATER + 9) * 1_000_000 - 10_000 < entry.record.expires_at <= (LATER + 9) * 1_000_000 + 10_000


class TestSample:
    def test_a_sample(self, oncegate: Run, rows: str, tmp_path: Path) -> None:
        """Nothing is written. The command says how many recent events would be recognised, and why others would not."""
        sample = lines(
            tmp_path / "recent.jsonl",
            {"conversationId": "c-1", "timestamp": 1},
            {"conversationId": "c-2", "timestamp": 77},
            {"conversationId": "c-3", "timestamp": "3"},
            {"conversationId": "c-9", "timestamp": 99},
            {"conversationId": "c-8"},
        )
        code, out, err = oncegate("seed", rows, "--key", PAIR, "--sample", sample)
        assert (code, err) == (0, "The source of the events in the sample is plain.\n")
        assert out.splitlines() == [
            "Read 3 rows: 3 would be seeded, 0 expired, 0 unreadable. Nothing was written.",
            "Of 5 recent events, 1 would be recognised.",
            "  recent.jsonl:2: timestamp is 77 in the event and 2 in the nearest row",
            "  recent.jsonl:3: timestamp is the text 3 in the event and a number in the row; use --map"
            " timestamp=COLUMN:text",
            "  recent.jsonl:4: no row has its conversationId or timestamp",
        ]
        assert not (tmp_path / "oncegate.db").exists()

    def test_the_hint_helps(self, oncegate: Run, tmp_path: Path) -> None:
        """With the type of the hint, the event is recognised."""
        old = lines(tmp_path / "old.jsonl", {"conversationId": "c", "timestamp": "5"})
        sample = lines(tmp_path / "recent.jsonl", {"conversationId": "c", "timestamp": 5})
        command = ("seed", old, "--key", PAIR, "--sample", sample)
        assert "use --map timestamp=COLUMN:int" in oncegate(*command)[1]
        assert "Of 1 recent event, 1 would be recognised." in oncegate(*command, "--map", "timestamp=timestamp:int")[1]

    def test_other_reasons(self, oncegate: Run, tmp_path: Path) -> None:
        """An expired row, another source and an event without a key are reasons."""
        old = lines(tmp_path / "old.jsonl", {"id": "1", "expiresAt": LATER - 9_999}, {"id": "2"})
        sample = lines(tmp_path / "recent.jsonl", {"id": "1"}, {"id": "2"}, {"x": 1})
        command = ("seed", old, "--key", "event_id", "--sample", sample, "--output", "json")
        found = json.loads(oncegate(*command, "--source", "crm")[1])["sample"]
        assert (found["events"], found["recognised"]) == (3, 0)
        assert [each["reason"] for each in found["not_recognised"]] == [
            "no row has its id",
            "the source is plain in the event and crm for the rows; use --source plain",
            "the event_id key needs id, which the event does not have",
        ]
        found = json.loads(oncegate(*command, "--source", "plain")[1])["sample"]
        assert (found["recognised"], found["not_recognised"][0]["reason"]) == (1, "its row has expired")

    def test_a_dry_run(self, oncegate: Run, rows: str, tmp_path: Path) -> None:
        """A dry run only counts."""
        code, out, _ = oncegate("seed", rows, "--key", PAIR, "--source", "plain", "--dry-run")
        assert (code, out) == (0, "Read 3 rows: 3 would be seeded, 0 expired, 0 unreadable. Nothing was written.\n")
        assert not (tmp_path / "oncegate.db").exists()


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (("old.jsonl", "--key", "event_id"), "the source of the events is a part of their keys"),
            (("old.jsonl", "--source", "genesys"), "lack the content of the event, which the key auto needs"),
            (("old.jsonl", "--source", "plain"), "lack id, which the key auto needs; nothing was written"),
            (("old.jsonl", "--source", "plain", "--key", 'fields("a.b", "c")'), "lack a.b, c, which"),
            (("old.jsonl", "--source", "plain", "--key", "state_change()"), "lack the timeline of state changes"),
            (("old.jsonl", "--source", "plain", "--map", "x"), "must be written PATH=COLUMN"),
            (("old.jsonl", "--match", "x*"), "--match is for Redis"),
            (("sqlite:///a.db", "--match", "x*"), "--match is for Redis"),
            (("sqlite:///a.db",), "needs table="),
            (("redis://127.0.0.1",), "name the Redis keys to read"),
            (("redis://127.0.0.1", "--match", "a*", "--template", "a"), "has no field in braces"),
            (("nonsense://x",), "is not the URL of an old place"),
            (("old.jsonl", "--template", "{id}"), "names no column"),
        ],
    )
    def test_refused(self, arguments: tuple[str, ...], problem: str, oncegate: Run, rows: str, tmp_path: Path) -> None:
        """What is missing or wrong is named before anything is written."""
        code, _, err = oncegate("seed", *arguments)
        assert code == exit_codes.USAGE
        assert problem in " ".join(err.split())
        assert not (tmp_path / "oncegate.db").exists()

    def test_a_store_in_memory(self, oncegate: Run, rows: str) -> None:
        """A store that is empty again after the command is refused."""
        code, _, err = oncegate("seed", rows, "--key", PAIR, "--source", "plain", "--store", "memory://")
        assert (code, "memory:// is empty again when this command ends" in err) == (exit_codes.USAGE, True)

    def test_an_unknown_source(self, oncegate: Run, rows: str) -> None:
        """A source with another spelling gets a note: the keys would not fit."""
        err = oncegate("seed", rows, "--key", PAIR, "--source", "Genesys")[2]
        assert err.startswith("Genesys is not a known source (genesys, cxone, cloudevents, eventbridge, plain);")

    def test_the_source_from_the_settings(self, oncegate: Run, tmp_path: Path) -> None:
        """The source is taken from the settings of [read]."""
        file = lines(tmp_path / "old.jsonl", {"id": "1"})
        (tmp_path / "oncegate.toml").write_text('[read]\nsource = "crm"\n')
        assert oncegate("seed", file, "--key", "event_id")[0] == 0
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate:
            assert [entry.record.about.source for entry in gate.store.browse("default")] == ["crm"]

    def test_a_route(self, oncegate: Run, tmp_path: Path) -> None:
        """The key of a route is used with its namespace. Without a namespace, the choices are named."""
        file = lines(tmp_path / "old.jsonl", {"case": "1"})
        (tmp_path / "oncegate.toml").write_text('[route.crm]\nsignature = "none"\nkey = \'fields("case")\'\n')
        code, _, err = oncegate("seed", file, "--source", "plain")
        assert code == exit_codes.USAGE
        assert "several namespaces (crm, default); choose one with --namespace" in err
        assert oncegate("seed", file, "--source", "plain", "--namespace", "crm")[0] == 0
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate:
            assert [entry.namespace for entry in gate.store.browse()] == ["crm"]

    @pytest.mark.parametrize("table", ['dedup"; DROP TABLE dedup; --', "dedup WHERE 1=1", "sqlite_master; x", "'"])
    def test_injection(self, table: str, oncegate: Run, tmp_path: Path) -> None:
        """The name of a table is never SQL."""
        with closing(sqlite3.connect(tmp_path / "old.db")) as db, db:
            db.execute("CREATE TABLE dedup (id)")
        code, _, err = oncegate("seed", "sqlite:///old.db", "--table", table, "--source", "plain")
        assert code == exit_codes.STORE
        assert "there is no table" in err
        with closing(sqlite3.connect(tmp_path / "old.db")) as db:
            assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("dedup",)]


class TestOutput:
    def test_explain_and_show(self, oncegate: Run, rows: str) -> None:
        """`explain` and `keys show` say that a record was seeded, and what the row tells about its event."""
        oncegate("seed", rows, "--key", PAIR, "--source", "genesys")
        _, out, _ = oncegate("explain", "c-1")
        assert re.search(r"Seeded \d+ m?s ago from an earlier deduplication table: earlier code processed the", out)
        key = re.search(r"key +([0-9a-f]{32})", out)
        assert key
        _, shown, _ = oncegate("keys", "show", key[1])
        assert "content unknown. Until" in shown
        assert "every further delivery with this key, whatever its content, is a duplicate." in shown
        assert re.search(r"entity +c-1", shown)
        assert re.search(r"source +genesys", shown)

    def test_json(self, oncegate: Run, rows: str) -> None:
        """The figures for programs."""
        code, out, _ = oncegate("seed", rows, "--key", PAIR, "--source", "plain", "--output", "json")
        assert code == 0
        assert json.loads(out) == {
            "read": 3,
            "seeded": 3,
            "already_there": 0,
            "same_key": 0,
            "expired": 0,
            "unreadable": 0,
            "invalid_expiry": 0,
            "written": True,
            "problems": [],
        }

    def test_the_old_program_has_stopped(self, oncegate: Run, tmp_path: Path) -> None:
        """`--stopped` prints the last expiry of the rows. Without it, no time is printed: the old program may go on."""
        file = lines(tmp_path / "old.jsonl", {"id": "1", "ttl": LATER - 5}, {"id": "2", "ttl": LATER})
        command = ("seed", file, "--source", "plain", "--dry-run")
        assert len(oncegate(*command)[1].splitlines()) == 1
        last = datetime.fromtimestamp(LATER, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        out = oncegate(*command, "--stopped")[1]
        assert out.endswith(f"\nThe last row expires at {last}. After this time, remove the setting previous.\n")
        assert json.loads(oncegate(*command, "--stopped", "--output", "json")[1])["until"] == last
        unending = lines(tmp_path / "other.jsonl", {"id": "1", "ttl": LATER}, {"id": "2"})
        out = oncegate("seed", unending, "--source", "plain", "--dry-run", "--stopped")[1]
        assert out.endswith("\n1 row without an expiry: there is no time after which previous can be removed.\n")

    def test_on_a_terminal(self, rows: str, tmp_path: Path) -> None:
        """A terminal shows the same sentences after the progress bar is gone."""
        shown = on_terminal(["seed", rows, "--key", PAIR, "--source", "plain"], tmp_path, COLUMNS="50")
        assert "Read 3 rows: 3 seeded, 0 already there, 0 expired, 0 unreadable." in " ".join(shown.split())

    def test_a_store_that_fails(self, oncegate: Run, rows: str, tmp_path: Path) -> None:
        """A store that cannot be used ends the command with its exit code."""
        (tmp_path / "oncegate.db").write_bytes(b"not a database" * 100)
        code, _, err = oncegate("seed", rows, "--key", PAIR, "--source", "plain")
        assert code == exit_codes.STORE
        assert "is not an SQLite file" in err
