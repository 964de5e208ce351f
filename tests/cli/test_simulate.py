"""`oncegate simulate` and `oncegate verify`, with a running service and its log."""

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate import Gate, read
from oncegate import keys as oncegate_keys
from oncegate.cli import exit_codes
from oncegate.cli.event_files import raw_documents
from oncegate.gate.observers import fields_of
from tests.cli.conftest import Run, on_terminal
from tests.stores.servers import free_port, until


class Service:
    """A service process whose log is a file of effects."""

    def __init__(self, folder: Path) -> None:
        self._effects = folder / "effects.jsonl"
        with self._effects.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "oncegate", "serve", "--port", "0", "--handler", "log", "--lease", "1s"],
                cwd=folder,
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert self._process.stderr is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = self._process.stderr.readline()
            assert line, said
            said += line
        self.url = f"{found[0]}/events"

    def work_off(self, events: int) -> None:
        """Wait until so many that were accepted have run."""
        until(lambda: self._effects.read_text().count('"status":"processed"') >= events, "events to run")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=30)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.stop()


class TestTheService:
    def test_exactly_once(self, service: Service, oncegate: Run) -> None:
        """Traffic with every kind of copy takes effect exactly once behind the service; refused invalid events are not
        a failure."""
        sending = ["--truth", "truth.jsonl", "--events", "80", "--rate", "1000", "--delay", "100ms", "--parallel", "4"]
        sending += ["--conflict", "0.2", "--invalid", "0.1"]
        code, out, err = oncegate("simulate", "--to", service.url, *sending, "--output", "json")
        assert (code, err) == (exit_codes.OK, "")
        summary = json.loads(out)
        kinds = {each["kind"]: each for each in summary["kinds"]}
        assert summary["events"] == kinds["first"]["taken"] == 80
        assert kinds["invalid"]["refused"] == kinds["invalid"]["deliveries"] > 0
        service.work_off(80)
        service.stop()
        code, out, err = oncegate("verify", "--truth", "truth.jsonl", "--effects", "effects.jsonl")
        assert (code, err) == (exit_codes.OK, "")
        assert out.startswith("Exactly once: 80 events, 80 effects; ")


@pytest.fixture
def truth(oncegate: Run) -> str:
    """Traffic in a file, and its truth file."""
    traffic = ("--to", "file://traffic.jsonl", "--events", "30", "--seed", "5", "--echo", "0.5")
    assert oncegate("simulate", *traffic, "--truth", "truth.jsonl")[0] == exit_codes.OK
    return "truth.jsonl"


def effects(folder: Path) -> list[str]:
    """One effect for each event of the truth file, in order."""
    lines = map(json.loads, (folder / "truth.jsonl").read_text().splitlines())
    return [json.dumps({"key": line["keys"]["auto"]}) for line in lines if line["line"] == "event"]


class TestSimulate:
    def test_the_start(self, oncegate: Run, tmp_path: Path) -> None:
        """`--start` is the time of the first event. Another start makes other events."""
        starts = {"utc": "2026-10-31T08:00:00Z", "zone": "2026-10-31 09:00+01:00", "later": "2026-10-31T08:00:01Z"}
        for name, start in starts.items():
            traffic = ("--to", f"file://{name}", "--events", "5", "--seed", "5", "--start", start)
            assert oncegate("simulate", *traffic)[0] == exit_codes.OK
        sent = {name: (tmp_path / name).read_text() for name in starts}
        assert "2026-10-31T08:00:00" in sent["utc"]
        assert (sent["zone"] == sent["utc"], sent["later"] == sent["utc"]) == (True, False)

    def test_an_invalid_start(self, oncegate: Run) -> None:
        """The message names the value and shows a valid one."""
        code, _, err = oncegate("simulate", "--to", "file://t", "--start", "soon")
        assert code == exit_codes.USAGE
        assert "'soon' is not a time; write it like 2026-01-31T09:30:00Z" in " ".join(err.split())

    def test_the_summary(self, oncegate: Run) -> None:
        """The output ends with the number of deliveries by kind, and with the seed."""
        code, out, err = oncegate("simulate", "--to", "file://traffic.jsonl", "--events", "30", "--seed", "5")
        assert (code, err) == (exit_codes.OK, "")
        assert out.splitlines()[0].split() == ["kind", "deliveries", "taken", "refused", "gave", "up"]
        assert re.search(r"^first +30 +30 +0 +0$", out, re.MULTILINE)
        assert re.search(
            r"^Sent \d+ deliveries of 30 events in \d\.\d s .* Repeat this traffic with --seed 5\.$", out, re.MULTILINE
        )

    def test_to_stdout(self, oncegate: Run) -> None:
        """Only the events go to stdout, so that they can be piped."""
        code, out, err = oncegate("simulate", "--to", "-", "--events", "10", "--copies", "2")
        assert code == exit_codes.OK
        assert all(json.loads(line) for line in out.splitlines())
        assert err.startswith("Sent ")
        assert oncegate("simulate", "--to", "-", "--output", "json")[0] == exit_codes.USAGE

    def test_a_reader_that_has_seen_enough(self, tmp_path: Path) -> None:
        """A closed pipe ends the command without an error."""
        command = f"{sys.executable} -m oncegate simulate --to - --events 20000 | head -n 1"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)  # noqa: S602
        assert len(done.stdout.splitlines()) == 1
        assert re.fullmatch(r"Sent .*\n", done.stderr)

    def test_not_taken(self, oncegate: Run) -> None:
        """If no server listens, there is one sentence."""
        code, out, err = oncegate("simulate", "--to", f"http://127.0.0.1:{free_port()}/events", "--events", "3")
        assert (code, out) == (exit_codes.FAILED, "")
        assert re.fullmatch(r"Error: cannot reach http://\S+ \(.+\); check the address and start the server\n", err)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--to", "kafka://x"), "unknown target 'kafka://x'; use eventbridge://BUS"),
            (("--to", "-", "--copies", "3..1"), "'3..1' is not a number of copies; write it like 2 or 1..3"),
            (("--to", "-", "--echo", "2"), "2.0 is not in the range"),
            (("--to", "-", "--delay", "5"), "--delay='5' is not a duration"),
            (("--to", "-", "--window", "10s"), "from 1ms to 5s"),
            ((), "Missing option '--to'"),
        ],
    )
    def test_invalid_options(self, oncegate: Run, options: tuple[str, ...], said: str) -> None:
        """An invalid option is refused before anything is sent."""
        code, out, err = oncegate("simulate", *options)
        assert (code, out) == (exit_codes.USAGE, "")
        assert said in err

    def test_files_that_cannot_be_written(self, oncegate: Run) -> None:
        """The error names the file."""
        for options in (("--to", "file://no/traffic"), ("--to", "file://traffic", "--truth", "no/truth")):
            code, _, err = oncegate("simulate", *options)
            assert code == exit_codes.FAILED
            assert re.fullmatch(r"Error: cannot write no/\w+: No such file or directory\n", err)
        code, _, err = oncegate("simulate", "--to", "file://traffic", "--truth", "/dev/full")
        assert (code, err) == (exit_codes.FAILED, "Error: cannot write /dev/full: No space left on device\n")

    def test_progress(self, tmp_path: Path) -> None:
        """On a terminal there is a progress bar, which is removed at the end."""
        shown = on_terminal(["simulate", "--to", "file://traffic", "--events", "400"], tmp_path)
        assert "sending" in shown
        assert "/400 events" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


EVENTS = [{"id": f"evt-{number}", "type": "call.ended", "text": "é"} for number in range(5)]
ENVELOPE = {"id": "1", "source": "x", "detail-type": "t", "detail": {"n": 1}}
RECORDINGS = {
    "lines": "\n".join(map(json.dumps, EVENTS)),
    "array": json.dumps(EVENTS, indent=2),
    "in a row": "\n".join(json.dumps(event, indent=2, ensure_ascii=False) for event in EVENTS),
}


class TestReplay:
    @pytest.mark.parametrize("form", RECORDINGS)
    def test_to_a_file(self, form: str, oncegate: Run, tmp_path: Path) -> None:
        """Each document of a recording is sent once and as it is, whatever the form of the file."""
        (tmp_path / "mine.json").write_text(RECORDINGS[form])
        code, out, err = oncegate("simulate", "--replay", "mine.json", "--to", "file://sent.jsonl")
        assert (code, err) == (exit_codes.OK, "")
        assert re.search(
            r"^document +5 +5 +0 +0\nSent 5 deliveries of 5 documents from mine\.json in", out, re.MULTILINE
        )
        assert "--seed" not in out
        assert [json.loads(line) for line in (tmp_path / "sent.jsonl").read_text().splitlines()] == EVENTS

    def test_to_the_service(self, service: Service, oncegate: Run, tmp_path: Path) -> None:
        """A recording is posted at a rate and with copies; the answers are counted, and a refused document is named."""
        (tmp_path / "mine.json").write_text(RECORDINGS["lines"] + '\n{"eventId": 0.5, "eventObject": "Case"}\n')
        options = ("--copies", "2", "--rate", "50", "--parallel", "2", "--output", "json")
        code, out, err = oncegate("simulate", "--replay", "mine.json", "--to", service.url, *options)
        assert (code, err) == (exit_codes.FAILED, "")
        summary = json.loads(out)
        assert (summary["replay"], summary["events"], summary["deliveries"]) == ("mine.json", 6, 12)
        assert summary["kinds"] == [
            {"kind": "first", "deliveries": 6, "taken": 5, "refused": 1, "gave_up": 0},
            {"kind": "redelivery", "deliveries": 6, "taken": 5, "refused": 1, "gave_up": 0},
        ]
        assert summary["reasons"] == {"HTTP 400": 2}
        assert summary["seconds"] >= 0.1  # five pauses of 20 ms
        service.work_off(5)

    def test_a_refused_document(self, service: Service, oncegate: Run, tmp_path: Path) -> None:
        """The line of the first refused document and the reason in the answer are printed."""
        (tmp_path / "mine.json").write_text('{"id": "1", "type": "t"}\n\n{"id": "2" "type": "t"}\nnone\n')
        code, out, _ = oncegate("simulate", "--replay", "mine.json", "--to", service.url)
        assert code == exit_codes.FAILED
        assert re.search(r"^Not accepted: HTTP 400 \(2\), first at line 3: .*the text is not JSON: ", out, re.MULTILINE)

    @pytest.mark.parametrize("before", [b"", b"\n\n", b'{\n"id":  0}\n'])
    def test_the_bytes_of_a_document(self, before: bytes) -> None:
        """A document that spans lines keeps its white space."""
        text = b'{\r\n    "id":   "1",\n\n\t"type": "t"  \n  }'
        sent = [raw for raw, _ in raw_documents(io.BytesIO(before + text + b"\n"))]
        assert sent[-1].strip() == text
        items = list(raw_documents(io.BytesIO(b"[\n  %b,\n  {}\n]" % text)))
        assert items == [(text, "item 1"), (b"{}", "item 2")]

    def test_from_stdin(self, tmp_path: Path) -> None:
        """A recording can come from a pipe, and its events can go to a pipe."""
        command = [sys.executable, "-m", "oncegate", "simulate", "--replay", "-", "--to", "-"]
        given = RECORDINGS["array"]
        done = subprocess.run(command, cwd=tmp_path, input=given, capture_output=True, text=True, timeout=60)
        assert done.returncode == exit_codes.OK
        assert [json.loads(line) for line in done.stdout.splitlines()] == EVENTS
        assert done.stderr.startswith("Sent 5 deliveries of 5 documents from - in ")

    def test_a_share(self, oncegate: Run) -> None:
        """A number is still the share of replayed events."""
        code, out, _ = oncegate("simulate", "--replay", "1", "--to", "file://t", "--events", "30", "--seed", "5")
        assert code == exit_codes.OK
        assert re.search(r"^replay +[1-9]", out, re.MULTILINE)

    @pytest.mark.parametrize(
        ("options", "code", "text"),
        [
            (("--replay", "7"), exit_codes.USAGE, "7 is not a share from 0 to 1; write ./7 to name a file"),
            (("--replay", "nan"), exit_codes.USAGE, "nan is not a share from 0 to 1"),
            (("--replay", "none.json"), exit_codes.USAGE, "cannot read none.json: No such file or directory"),
            (("--replay", "empty"), exit_codes.FAILED, "there is no document in empty"),
            (("--replay", "empty", "--echo", "0.1"), exit_codes.USAGE, "--echo changes only generated traffic; remove"),
            (
                ("--replay", "empty", "--truth", "t"),
                exit_codes.USAGE,
                "it is not known which documents are the same event",
            ),
            (("--replay", "empty", "--events", "3"), exit_codes.USAGE, "--events changes only generated traffic"),
        ],
    )
    def test_refused(self, options: tuple[str, ...], code: int, text: str, oncegate: Run, tmp_path: Path) -> None:
        """A file without events and options that make no sense for a recording are refused."""
        (tmp_path / "empty").write_text("[]\n")
        actual, out, err = oncegate("simulate", "--to", "file://sent.jsonl", *options)
        assert (actual, out) == (code, "")
        assert text in err

    def test_progress(self, tmp_path: Path) -> None:
        """On a terminal the number of sent documents is shown."""
        (tmp_path / "mine.json").write_text((RECORDINGS["lines"] + "\n") * 100)
        shown = on_terminal(["simulate", "--replay", "mine.json", "--to", "file://sent"], tmp_path)
        assert re.search(r"\d/\? documents", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))


class TestVerify:
    def test_a_table_of_what_is_wrong(self, oncegate: Run, truth: str, tmp_path: Path) -> None:
        """The result is one line, followed by at most --limit problems."""
        lines = effects(tmp_path)
        (tmp_path / "done").write_text("\n".join([*lines[3:], lines[9], '{"key": "f00"}']))
        code, out, err = oncegate("verify", "--truth", truth, "--effects", "done", "--limit", "4")
        assert (code, err) == (exit_codes.NOT_ONCE, "")
        verdict, _, header, *rows, more = out.splitlines()
        assert verdict.startswith("Not exactly once: 30 events, 3 lost, 1 doubled, 1 effect of unknown events;")
        assert header.split() == ["wrong", "event", "type", "entity", "effects", "deliveries"]
        assert [row.split()[:2] for row in rows[:3]] == [["lost", "e-1"], ["lost", "e-2"], ["lost", "e-3"]]
        assert (len(rows), rows[3].split()[0]) == (4, "doubled")
        assert more == "Showing 4 of 5 problems; use --limit to see more."
        _, out, err = oncegate("verify", "--truth", truth, "--effects", "done", "--limit", "4", "--output", "json")
        assert (len(json.loads(out)["wrong"]), err) == (4, f"{more}\n")

    def test_a_store_that_has_seen_the_seed(self, oncegate: Run, tmp_path: Path) -> None:
        """If the log has duplicates only, the store processed the events before. The verdict says what to do."""
        truth, log = self.log_of_a_store_that_has_seen(30, oncegate, tmp_path)
        code, out, err = oncegate("verify", "--truth", truth, "--effects", log)
        assert (code, err) == (exit_codes.ALREADY_PROCESSED, "")
        assert out == (
            "Nothing to compare: this store has already processed this traffic (seed 5)."
            " 30 of 30 events took effect before the log begins; use another seed or an empty store.\n"
        )
        _, out, _ = oncegate("verify", "--truth", truth, "--effects", log, "--output", "json")
        assert {name: json.loads(out)[name] for name in ("lost", "already_processed", "exactly_once")} == {
            "lost": 0,
            "already_processed": 30,
            "exactly_once": False,
        }

    def test_a_store_that_has_seen_some_events(self, oncegate: Run, tmp_path: Path) -> None:
        """If the log has effects, an event with duplicates only counts as lost, and may have been processed before."""
        truth, log = self.log_of_a_store_that_has_seen(12, oncegate, tmp_path)
        code, out, err = oncegate("verify", "--truth", truth, "--effects", log)
        assert (code, err) == (exit_codes.NOT_ONCE, "")
        assert out.startswith("Not exactly once: 30 events, 12 lost; ")
        assert out.splitlines()[0].endswith(
            " The log has duplicates of 12 lost events, but no effect: lost, or processed before the log begins; use"
            " another seed or an empty store to be sure."
        )
        _, out, _ = oncegate("verify", "--truth", truth, "--effects", log, "--output", "json")
        found = json.loads(out)
        assert (found["lost"], found["already_processed"], found["exactly_once"]) == (12, 0, False)
        assert [(each["what"], each["only_duplicates"]) for each in found["wrong"]] == [("lost", True)] * 12

    def log_of_a_store_that_has_seen(self, already: int, oncegate: Run, tmp_path: Path) -> tuple[str, str]:
        """Simulate 30 events, `already` of which the store has processed before. Return the truth file and the log."""
        truth, traffic = "truth.jsonl", tmp_path / "traffic.jsonl"
        oncegate("simulate", "--to", "file://traffic.jsonl", "--events", "30", "--seed", "5", "--truth", truth)
        sent = traffic.read_text().splitlines()
        seen = {json.loads(line)["key"] for line in effects(tmp_path)[:already]}
        gate = Gate(f"sqlite:///{tmp_path}/seen.db", namespace="seen")
        gate.run_batch([line for line in sent if str(oncegate_keys.auto(read(line)[0])) in seen], lambda _event: None)
        outcomes = [outcome for line in sent for outcome in gate.run_batch([line], lambda _event: None)]
        gate.close()
        (tmp_path / "log").write_text("".join(json.dumps(fields_of(each, "seen")) + "\n" for each in outcomes))
        return truth, "log"

    def test_already_processed_and_lost(self, oncegate: Run, truth: str, tmp_path: Path) -> None:
        """Without any effect, a lost event is still reported besides events that the store processed before."""
        first, second, *rest = [json.loads(line)["key"] for line in effects(tmp_path)]
        lines = [{"key": key, "status": "duplicate"} for key in (first, *rest)]
        (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
        code, out, _ = oncegate("verify", "--truth", truth, "--effects", "log", "--limit", "2")
        assert code == exit_codes.NOT_ONCE
        assert out.startswith("Not exactly once: 30 events, 1 lost. ")
        assert "29 took effect before the log begins: this store has already processed this traffic (seed 5);" in out
        assert [line.split("  ")[0] for line in out.splitlines()[3:5]] == ["already processed", "lost"]
        assert second not in out

    def test_duplicates_beside_effects(self, oncegate: Run, truth: str, tmp_path: Path) -> None:
        """A duplicate of an effect in the log is no sign of earlier processing."""
        first, second, third, *rest = [json.loads(line)["key"] for line in effects(tmp_path)]
        lines = [{"key": first, "status": "duplicate"}, {"key": third, "status": "duplicate"}]
        lines += [{"key": key, "status": "processed"} for key in (third, *rest)]
        (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
        code, out, _ = oncegate("verify", "--truth", truth, "--effects", "log")
        assert code == exit_codes.NOT_ONCE
        assert out.startswith("Not exactly once: 30 events, 2 lost; ")
        assert "The log has duplicates of 1 lost event, but no effect: lost, or processed before the log begins;" in out
        assert [line.split("  ")[0] for line in out.splitlines()[3:]] == ["lost", "lost"]
        assert second not in out

    def test_no_effect(self, oncegate: Run, truth: str, tmp_path: Path) -> None:
        """Without any effect the verdict names the possible cause; warnings of a log are not effects."""
        (tmp_path / "log").write_text(effects(tmp_path)[0].replace("{", '{"warning": "lease.lost", ', 1))
        code, out, _ = oncegate("verify", "--truth", truth, "--effects", "log")
        assert code == exit_codes.NOT_ONCE
        assert "30 lost" in out.splitlines()[0]
        assert out.splitlines()[0].endswith(
            "There is no effect at all. If this store has already processed this traffic (seed 5), use another seed or"
            " an empty store."
        )

    def test_echoes(self, oncegate: Run, truth: str, tmp_path: Path) -> None:
        """If only echoes are doubled, the output names a key that merges them."""
        lines = map(json.loads, (tmp_path / "truth.jsonl").read_text().splitlines())
        echoes = [json.dumps(line) for line in lines if line.get("kind") == "state-echo"]
        keys = [json.dumps({"key": json.loads(line)["keys"]["auto"]}) for line in echoes]
        (tmp_path / "done").write_text("\n".join([*effects(tmp_path), *keys]))
        code, out, _ = oncegate("verify", "--truth", truth, "--effects", "done")
        assert code == exit_codes.NOT_ONCE
        assert 'first(state_change("500ms"), auto) treats a state change and its echo as one event' in out

    def test_as_json(self, oncegate: Run, truth: str, tmp_path: Path) -> None:
        """The JSON output has the result and the problems."""
        lines = effects(tmp_path)
        (tmp_path / "done").write_text("\n".join(lines[1:]))
        code, out, err = oncegate("verify", "--truth", truth, "--effects", "done", "--output", "json")
        assert (code, err) == (exit_codes.NOT_ONCE, "")
        told = json.loads(out)
        assert (told["exactly_once"], told["lost"], told["doubled"], told["extra"]) == (False, 1, 0, 0)
        assert (told["events"], told["effects"], told["in_order"]) == (30, 29, True)
        assert [(each["what"], each["event"]) for each in told["wrong"]] == [("lost", "e-1")]

    def test_from_stdin(self, oncegate: Run, truth: str, tmp_path: Path) -> None:
        """Effects can be read from a pipe."""
        command = [sys.executable, "-m", "oncegate", "verify", "--truth", truth, "--effects", "-"]
        given = "\n".join(effects(tmp_path))
        done = subprocess.run(command, cwd=tmp_path, input=given, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (exit_codes.OK, "")
        assert done.stdout.startswith("Exactly once: 30 events, 30 effects; in order for each of ")

    def test_files_that_cannot_be_read(self, oncegate: Run, truth: str, tmp_path: Path) -> None:
        """A missing or invalid file gives one sentence."""
        (tmp_path / "done").write_text("no JSON\n")
        for options, expected, said in (
            (("--truth", "none", "--effects", "done"), exit_codes.USAGE, "cannot read none: No such file or directory"),
            (("--truth", "done", "--effects", "done"), exit_codes.FAILED, "done is not a truth file of this version"),
            (("--truth", truth, "--effects", "done"), exit_codes.FAILED, "done:1: invalid line in an effects file"),
        ):
            code, out, err = oncegate("verify", *options)
            assert (code, out) == (expected, "")
            assert err.startswith(f"Error: {said}")
