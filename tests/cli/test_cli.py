"""The command line: what a person types, sees, and gets as exit code."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.claims import Claim, Complete, EventSummary, Release
from oncegate.cli import exit_codes
from oncegate.text import clean
from tests.cli.conftest import Run, on_terminal


def fail(event: Event) -> None:
    raise ValueError(f"no case \x1b[31m{event.id}")


class TestKeys:
    def test_show(self, oncegate: Run, gate: Gate) -> None:
        """A key is shown with one sentence on what it means, then its fields."""
        outcome = gate.run({"id": "evt-1", "type": "call.ended"}, lambda event: {"case": 7})
        code, out, err = oncegate("keys", "show", str(outcome.key))
        assert (code, err) == (exit_codes.OK, "")
        assert re.match(r"It was processed \d+ (ms|s) ago; a copy delivered now is a duplicate, until 20", out)
        facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines()[1:])
        assert (facts["key"], facts["state"], facts["event_id"]) == (str(outcome.key), "completed", "evt-1")
        assert json.loads(facts["result"]) == {"case": 7}

    def test_show_json(self, oncegate: Run, gate: Gate) -> None:
        """As JSON the same can be read by a program."""
        outcome = gate.run({"id": "evt-1"}, lambda event: [1])
        code, out, _ = oncegate("keys", "show", str(outcome.key), "--output", "json")
        shown = json.loads(out)
        assert code == exit_codes.OK
        assert (shown["state"], shown["result"], shown["attempts"]) == ("completed", [1], 1)
        assert (shown["lost"], shown["handed_to"], shown["unavailable_since"]) == (0, None, None)

    def test_show_what_was_counted(self, oncegate: Run, gate: Gate) -> None:
        """Lost attempts, since when something is unavailable, and where an event was handed on."""
        key, about = b"k" * 16, EventSummary("plain", delivery_id="evt-1")
        (granted,) = gate.store.claim([Claim("default", key, b"a" * 16, b"h" * 16, 1, 10**12, about)])
        assert json.loads(oncegate("keys", "show", key.hex(), "--output", "json")[1])["lost"] == 0
        (granted,) = gate.store.claim([Claim("default", key, b"b" * 16, b"h" * 16, 10**10, 10**12, about)])
        assert json.loads(oncegate("keys", "show", key.hex(), "--output", "json")[1])["lost"] == 1
        assert "at its first attempt, with 1 attempt lost before it" in oncegate("explain", key.hex())[1]
        proof = ("default", key, b"b" * 16, granted.record.fence)
        gate.store.settle([Release(*proof, "ConnectionError: refused", unavailable=True)])
        code, out, _ = oncegate("keys", "show", key.hex())
        assert (code, "what its handler calls has been unavailable for" in out) == (exit_codes.OK, True)
        assert "unavailable_since" in out
        assert "Run and held up: what evt-1 needs has been unavailable for" in oncegate("explain", key.hex())[1]
        (granted,) = gate.store.claim([Claim("default", key, b"c" * 16, b"h" * 16, 10**10, 10**12, about)])
        proof = ("default", key, b"c" * 16, granted.record.fence)
        gate.store.settle([Complete(*proof, 10**12, b"null", handed_to="sqs://queue")])
        assert "It was published to sqs://queue" in oncegate("keys", "show", key.hex())[1]
        assert "evt-1 was published to sqs://queue at" in oncegate("explain", key.hex())[1]

    def test_reset(self, oncegate: Run, gate: Gate) -> None:
        """A key that is reset is new again; a second reset finds nothing."""
        outcome = gate.run({"id": "evt-1"}, lambda event: None)
        assert oncegate("keys", "reset", str(outcome.key), "--yes")[0] == exit_codes.OK
        assert gate.run({"id": "evt-1"}, lambda event: None).status == "processed"
        oncegate("keys", "reset", str(outcome.key), "--yes")
        code, _, err = oncegate("keys", "reset", str(outcome.key), "--yes")
        assert code == exit_codes.NOT_FOUND
        assert "there is no record of" in err

    def test_reset_asks(self, oncegate: Run, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a yes nothing is forgotten."""
        outcome = gate.run({"id": "evt-1"}, lambda event: None)
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        code, out, _ = oncegate("keys", "reset", str(outcome.key))
        assert code == exit_codes.FAILED
        assert out.endswith("Nothing was changed.\n")
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        code, _, err = oncegate("keys", "reset", str(outcome.key))
        assert code == exit_codes.USAGE
        assert err == "Error: there is no terminal to ask on; add --yes to go on without being asked\n"
        assert gate.run({"id": "evt-1"}, lambda event: None).status == "duplicate"

    def test_several_namespaces(self, oncegate: Run, gate: Gate) -> None:
        """A key that is in several namespaces must be asked for in one."""
        other = Gate(gate.store, namespace="other")
        outcome = gate.run({"id": 1}, lambda event: None)
        other.run({"id": 1}, lambda event: None)
        code, _, err = oncegate("keys", "show", str(outcome.key))
        assert code == exit_codes.USAGE
        assert "several namespaces (default, other)" in err
        assert oncegate("keys", "show", str(outcome.key), "--namespace", "other")[0] == exit_codes.OK


class TestDeadLetters:
    def test_empty(self, oncegate: Run, gate: Gate) -> None:
        """With none there is a sentence, and an empty list as JSON."""
        assert oncegate("dlq", "list")[:2] == (exit_codes.OK, "There are no dead letters.\n")
        assert json.loads(oncegate("dlq", "list", "--output", "json")[1]) == []

    def test_list(self, oncegate: Run, gate: Gate) -> None:
        """Each dead letter is a line with its key and error; hostile text is shown, not obeyed."""
        outcome = gate.run({"id": "evt-1", "type": "t"}, fail)
        _, out, _ = oncegate("dlq", "list")
        assert str(outcome.key) in out
        assert "ValueError: no case \\x1b[31mevt-1" in out
        assert "\x1b" not in out

    def test_limit(self, oncegate: Run, gate: Gate) -> None:
        """A long list is cut where it was asked to be, and says so."""
        gate.run_batch([{"id": number} for number in range(5)], fail)
        _, out, _ = oncegate("dlq", "list", "--limit", "2")
        assert len(out.splitlines()) == 4
        assert "more than these 2" in out

    @pytest.mark.parametrize(
        ("limit", "said"), [(2, "There are more than these 2; ask for them with --limit.\n"), (5, "")]
    )
    def test_limit_as_json(self, oncegate: Run, gate: Gate, limit: int, said: str) -> None:
        """As JSON, too, a list that is cut says so, where no program reads it."""
        gate.run_batch([{"id": number} for number in range(5)], fail)
        _, out, err = oncegate("dlq", "list", "--limit", str(limit), "--output", "json")
        assert (len(json.loads(out)), err) == (limit, said)

    def test_show(self, oncegate: Run, gate: Gate) -> None:
        """A dead letter is shown with its payload as it was delivered."""
        outcome = gate.run(b'{"id": "evt-1", "n": 1.0}', fail)
        code, out, _ = oncegate("dlq", "show", str(outcome.key))
        assert code == exit_codes.OK
        assert "dead letter after 1 attempt;" in out
        assert '{"id": "evt-1", "n": 1.0}' in out

    def test_redrive_waits_for_a_dispatcher(self, oncegate: Run, gate: Gate) -> None:
        """A redriven dead letter is no dead letter any more and waits to be run."""
        outcome = gate.run({"id": "evt-1"}, fail)
        assert oncegate("dlq", "redrive", str(outcome.key))[:2] == (exit_codes.OK, "1 redriven.\n")
        assert (
            "waits for the service or a worker of the inbox to run it" in oncegate("keys", "show", str(outcome.key))[1]
        )
        assert oncegate("dlq", "redrive", str(outcome.key))[:2] == (exit_codes.OK, "0 redriven.\n")
        done = gate.run({"id": "done"}, lambda event: None)
        code, _, err = oncegate("dlq", "redrive", str(done.key))
        assert code == exit_codes.NOT_FOUND
        assert "is no dead letter" in err

    def test_redrive_what_cannot_be_read(self, oncegate: Run, gate: Gate) -> None:
        """Of a dead letter that nobody can ever run it is said so, with what is wrong and what to do; of others not."""
        outcome = gate.run({"id": "evt-1"}, fail)
        (broken,) = gate.keep([gate.run(b"{", fail)])
        code, out, err = oncegate("dlq", "redrive", "--all")
        assert (code, err) == (exit_codes.OK, "")
        first, told, advice = out.splitlines()
        assert first == "2 redriven."
        assert told.startswith(
            f"1 event cannot be read and will be buried again, whatever the handler: {broken.kept} ("
        )
        assert "dlq drop" in advice
        assert str(outcome.key) not in out

    def test_redrive_a_call(self, oncegate: Run, gate: Gate) -> None:
        """Of the call of a guarded function it is said that no handler will be given it, and what to do instead."""
        with pytest.raises(ValueError, match="no case"):
            gate.once(name="pay")(fail)(Event(source="plain", id="1", body={}))
        code, out, err = oncegate("dlq", "redrive", "--all")
        assert (code, err) == (exit_codes.OK, "")
        first, told, advice = out.splitlines()
        assert first == "1 redriven."
        assert told.startswith("1 call will be buried again, whatever the handler: ")
        assert "dlq drop" in advice

    def test_redrive_with_a_handler(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """With a handler the dead letters run at once, each with its outcome."""
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
        """What was redriven before and still waits can be run from here too."""
        outcome = gate.run({"id": 1}, fail)
        oncegate("dlq", "redrive", str(outcome.key))
        (tmp_path / "later.py").write_text("def handler(event):\n    pass\n")
        code, out, _ = oncegate("dlq", "redrive", str(outcome.key), "--handler", "later:handler")
        assert code == exit_codes.OK
        assert "Processed at the first attempt." in out

    def test_drop(self, oncegate: Run, gate: Gate) -> None:
        """Dropped dead letters are gone; what is none is left alone."""
        done = gate.run({"id": "done"}, lambda event: None)
        gate.run_batch([{"id": 1}, {"id": 2}], fail)
        assert oncegate("dlq", "drop", str(done.key), "--yes")[0] == exit_codes.NOT_FOUND
        assert oncegate("dlq", "drop", "--all", "--yes")[:2] == (exit_codes.OK, "2 dropped.\n")
        assert gate.store.dead_letters() == []
        assert gate.run({"id": "done"}, fail).status == "duplicate"

    def test_many(self, oncegate: Run, gate: Gate) -> None:
        """All means all, over many pages."""
        gate.run_batch([{"id": number} for number in range(250)], fail)
        assert oncegate("dlq", "drop", "--all", "--yes")[1] == "250 dropped.\n"

    @pytest.mark.parametrize("arguments", [(), ("--all", "0" * 32)])
    def test_which(self, oncegate: Run, arguments: tuple[str, ...]) -> None:
        """Keys or all: one of the two must be said, before any store is looked for."""
        for command in ("redrive", "drop"):
            code, _, err = oncegate("dlq", command, *arguments)
            assert code == exit_codes.USAGE
            assert "name the keys of dead letters, or --all" in err


class TestErrors:
    def test_one_delivery(self, oncegate: Run) -> None:
        """One is not said to be several."""
        none = [word for name in ("reemit", "rewrap", "replay") for word in (f"--{name}", "0")]
        _, out, _ = oncegate("simulate", "--to", "file://t.jsonl", "--events", "1", "--copies", "1", *none)
        assert "Sent 1 delivery of 1 event in" in out

    def test_a_full_stdout(self, tmp_path: Path) -> None:
        """What cannot be written to stdout is said of stdout, also of the events of a simulation."""
        command = f"{sys.executable} -m oncegate simulate --to - --events 200 --rate 100000 >/dev/full"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)  # noqa: S607
        assert done.stderr.splitlines()[-1] == "Error: cannot write to stdout: No space left on device"

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("keys", "show", "xyz"), exit_codes.USAGE, "'xyz' is not a key; a key is 32 hexadecimal digits"),
            (("keys", "show", "0" * 32), exit_codes.STORE, "there is no store at oncegate.db"),
            (
                ("dlq", "list", "--store", "mysql://x"),
                exit_codes.USAGE,
                "use one of: memory, sqlite",
            ),
            (("dlq", "list", "--store", "memory://"), exit_codes.USAGE, "memory:// lives within one process"),
            (("serv",), exit_codes.USAGE, "No such command 'serv'"),
            (("serve", "--host", "0.0.0.0"), exit_codes.USAGE, "no signature is checked"),  # noqa: S104  # refused
            (("serve", "--lease", "30"), exit_codes.USAGE, "lease='30' is not a duration"),
            (("serve", "--handler", "nowhere"), exit_codes.USAGE, "must be written module:function"),
            (("serve", "--handler", "no_such_module:f"), exit_codes.USAGE, "importing no_such_module failed"),
            (("serve", "--handler", "json:nothing"), exit_codes.USAGE, "there is no nothing in json"),
            (("serve", "--handler", "json:__name__"), exit_codes.USAGE, "cannot be called"),
            (("dlq", "redrive", "--all", "--handler", "asyncio:sleep"), exit_codes.USAGE, "sleep is async"),
            (("serve", "--retention", "9" * 350 + "d"), exit_codes.USAGE, "is not a duration"),
            (
                ("serve", "--host", "nosuch.invalid", "--signature", "none"),
                exit_codes.FAILED,
                "choose another with --host",
            ),
            (("serve", "--host", "192.0.2.1", "--signature", "none"), exit_codes.FAILED, "choose another with --host"),
            (("serve", "--host", "a..b", "--signature", "none"), exit_codes.FAILED, "choose another with --host"),
            (
                ("simulate", "--to", "-", "--truth", "-"),
                exit_codes.USAGE,
                "what is true is written to a file, not to stdout",
            ),
            (("work", "foo"), exit_codes.USAGE, "'foo'"),
            (("simulate", "--to", "foo://x"), exit_codes.USAGE, "file://PATH or - (stdout)"),
            (
                ("dlq", "list", "--store", "dynamodb://x?region=y"),
                exit_codes.USAGE,
                "invalid table name 'x'; use 3 to 255",
            ),
            (("explain", ""), exit_codes.USAGE, "name one ID (a key, an event id, a conversation)"),
            (
                ("work", "inbox", "--handler", "json:dumps", "--store", "memory://"),
                exit_codes.USAGE,
                "--store: nothing can ever wait in memory:// of this process",
            ),
            (("serve", "--threads", "9" * 18), exit_codes.USAGE, "write at most 1000000000000"),
            (("serve", "--threads", "9" * 40), exit_codes.USAGE, "must be a whole number"),
            (("serve", "--store", "sqlite:///a%00b.db"), exit_codes.USAGE, "no file can have a NUL (%00) in its name"),
            (("dlq", "list", "--limit", "9" * 23), exit_codes.USAGE, "is not in the range 1<=x<=1000000"),
            (("explain", "x", "--scan", "9" * 20), exit_codes.USAGE, "is not in the range 1<=x<=1000000000"),
            (("read", "x", "--limit", "9" * 20), exit_codes.USAGE, "is not in the range 1<=x<=1000000000"),
            (("verify", "--limit", "9" * 20), exit_codes.USAGE, "is not in the range 0<=x<=1000000000"),
            (("simulate", "--events", "9" * 20), exit_codes.USAGE, "is not in the range 1<=x<=1000000000"),
            (("simulate", "--seed", "9" * 20), exit_codes.USAGE, "is not in the range 0<=x<="),
            (("simulate", "--rate", "nan"), exit_codes.USAGE, "nan is not in the range 0.001<=x<=1000000"),
            (("simulate", "--rate", "inf"), exit_codes.USAGE, "inf is not in the range"),
            (("simulate", "--rate", "1e-300"), exit_codes.USAGE, "is not in the range"),
            (("simulate", "--reemit", "nan"), exit_codes.USAGE, "nan is not in the range 0<=x<=1"),
            (("simulate", "--invalid", "-inf"), exit_codes.USAGE, "is not in the range 0<=x<=1"),
        ],
    )
    def test_one_sentence_and_a_code(self, oncegate: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
        """What cannot be done is said in a sentence, with a named exit code and no traceback."""
        actual, _, err = oncegate(*arguments)
        assert actual == code
        assert said in err
        assert "Traceback" not in err

    @pytest.mark.parametrize(
        "command", ["dlq list", "dlq drop --all --yes", f"keys show {'0' * 32}", "explain x", "doctor"]
    )
    def test_an_empty_file(self, oncegate: Run, tmp_path: Path, command: str) -> None:
        """An empty file is no store for those who look, and is left as it is."""
        (tmp_path / "oncegate.db").touch()
        code, out, err = oncegate(*command.split())
        said, expected = (out, exit_codes.OK) if command == "doctor" else (err, exit_codes.STORE)
        assert ("store.present" in said or "there is no store at" in said, code) == (True, expected)
        assert (tmp_path / "oncegate.db").stat().st_size == 0

    def test_a_file_that_is_no_store(self, oncegate: Run, tmp_path: Path) -> None:
        """A store that cannot be used is named with the remedy."""
        (tmp_path / "oncegate.db").write_text("not a database " * 100)
        code, _, err = oncegate("dlq", "list")
        assert code == exit_codes.STORE
        assert "is not an SQLite file" in err

    def test_without_the_extra(self, tmp_path: Path) -> None:
        """Where the command line's libraries are not installed it says what to install."""
        code = "import sys; sys.modules['click'] = None; from oncegate.__main__ import main; main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.endswith("pip install 'oncegate[cli]'\n")

    def test_a_reader_that_has_gone(self, gate: Gate, tmp_path: Path) -> None:
        """A pipe that closes early, as `head` does, makes no noise."""
        gate.run_batch([{"id": number} for number in range(300)], fail)
        command = f"{sys.executable} -m oncegate dlq list --limit 300 --output json | head -n 1"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)  # noqa: S607
        assert (done.stdout, done.stderr) == ("[\n", "")


class TestTerminal:
    def test_colour_and_table(self, gate: Gate, tmp_path: Path) -> None:
        """A terminal gets a table with bold headers and whole keys, however narrow; NO_COLOR leaves out colour."""
        outcome = gate.run({"id": "evt-1"}, lambda event: 1 / 0)
        shown = on_terminal(["dlq", "list"], tmp_path)
        assert "\x1b[1m" in shown
        assert str(outcome.key) in shown
        assert "ZeroDivisionError" in shown
        assert "\x1b[3" not in on_terminal(["dlq", "list"], tmp_path, NO_COLOR="1")

    @pytest.mark.parametrize("columns", [200, 100, 60, 50, 42, 33])
    def test_keys_are_whole(self, gate: Gate, tmp_path: Path, columns: int) -> None:
        """A key is never cut: a table leaves out columns instead that have no room, and fills no more than its line."""
        outcome = gate.run({"id": "an-event-with-a-long-name"}, lambda event: 1 / 0)
        shown = on_terminal(["dlq", "list"], tmp_path, COLUMNS=str(columns), NO_COLOR="1")
        lines = [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in shown.splitlines()]
        assert lines[1].split()[0] == str(outcome.key)
        assert max(map(len, lines)) <= columns

    def test_nothing_is_cut(self, gate: Gate, tmp_path: Path) -> None:
        """What has no room in its line goes on in the next, and columns that have none are named."""

        def fail(event: Event) -> None:
            raise ValueError("a reason that is too long for the rest of a line of eighty characters")

        gate.run({"id": "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10", "type": "call.ended"}, fail)
        shown = on_terminal(["dlq", "list"], tmp_path, COLUMNS="80", NO_COLOR="1")
        cells = [re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()[1:-1]]
        assert "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10" in "".join(row[-2] for row in cells if len(row) > 1)
        assert "too long for the rest of a line of eighty characters" in " ".join(row[-1] for row in cells)
        said = " ".join(re.sub(r"\x1b\[\d*m", "", shown).split())
        assert "No room here for: namespace, type, attempts, first seen. A wider terminal or a pipe shows all." in said

    def test_a_line_shorter_than_a_key(self, gate: Gate, tmp_path: Path) -> None:
        """Where a key has no room in a line, it goes on in the next."""
        outcome = gate.run({"id": "evt-1"}, lambda event: 1 / 0)
        shown = on_terminal(["dlq", "list"], tmp_path, COLUMNS="20", NO_COLOR="1")
        assert str(outcome.key) in "".join(shown.split())


def test_clean() -> None:
    """Whatever could steer a terminal is shown by its escape; all other text stays."""
    assert clean("a\x1b[2J\r\n\u202eb é 😀") == "a\\x1b[2J\\r\\n\\u202eb é 😀"


def test_json_cannot_steer_a_terminal(oncegate: Run, gate: Gate) -> None:
    """JSON is printed with every control and direction character escaped, and is still the same JSON."""
    hostile = "a\u202eb\u009b\U000e0041"
    outcome = gate.run({"id": hostile}, lambda event: None)
    _, out, _ = oncegate("keys", "show", str(outcome.key), "--output", "json")
    assert out.replace("\n", "").isprintable()
    assert json.loads(out)["event_id"] == hostile
