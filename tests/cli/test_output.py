"""Tables, text and JSON on a terminal and in a pipe."""

import json
import re
from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.cli.output import print_error, print_note, print_text, show_plain_table, show_table
from oncegate.text import clean, on_one_line
from tests.cli.conftest import RecordedGate, Run, on_terminal


class TestTerminal:
    def test_colour_and_table(self, gate: Gate, tmp_path: Path) -> None:
        """On a terminal a table has bold headers and whole keys; NO_COLOR turns off colour, bold and dim text."""
        outcome = gate.run({"id": "evt-1"}, lambda event: 1 / 0)
        shown = on_terminal(["dlq", "list"], tmp_path)
        assert "\x1b[1m" in shown
        assert str(outcome.key) in shown
        assert "ZeroDivisionError" in shown
        for command in (["dlq", "list"], ["dlq", "show", str(outcome.key)], ["dlq", "show", "0" * 32], ["doctor"]):
            assert "\x1b" in on_terminal(command, tmp_path)
            assert "\x1b" not in on_terminal(command, tmp_path, NO_COLOR="1")
        assert "\x1b" not in on_terminal(["dlq", "list"], tmp_path, NO_COLOR="1", COLUMNS="60")

    @pytest.mark.parametrize("columns", [200, 100, 60, 50, 42, 33])
    def test_keys_are_whole(self, gate: Gate, tmp_path: Path, columns: int) -> None:
        """A key is never cut: columns that do not fit are left out, and no line is wider than the terminal."""
        outcome = gate.run({"id": "an-event-with-a-long-name"}, lambda event: 1 / 0)
        shown = on_terminal(["dlq", "list"], tmp_path, COLUMNS=str(columns), NO_COLOR="1")
        lines = [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in shown.splitlines()]
        assert lines[1].split()[0] == str(outcome.key)
        assert max(map(len, lines)) <= columns

    def test_nothing_is_cut(self, gate: Gate, tmp_path: Path) -> None:
        """Long cells are folded, and columns that are left out are named."""

        def fail(event: Event) -> None:
            raise ValueError("a reason that is too long for the rest of a line of eighty characters")

        gate.run({"id": "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10", "type": "call.ended"}, fail)
        shown = on_terminal(["dlq", "list"], tmp_path, COLUMNS="80", NO_COLOR="1")
        cells = [re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()[1:-1]]
        assert "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10" in "".join(row[-2] for row in cells if len(row) > 1)
        assert "too long for the rest of a line of eighty characters" in " ".join(row[-1] for row in cells)
        said = " ".join(re.sub(r"\x1b\[\d*m", "", shown).split())
        assert "Columns not shown: namespace, type, attempts, dead since. Use a wider terminal or a pipe." in said

    @pytest.mark.parametrize(
        ("columns", "headers"),
        [(120, ["key", "event", "id", "entity", "state"]), (100, ["key", "type", "entity", "state"]), (70, None)],
    )
    def test_ids_are_whole(self, gate: Gate, tmp_path: Path, columns: int, headers: list[str] | None) -> None:
        """Less important columns are left out before an id is folded. Types are folded after dots, and an id that must
        be folded is folded after hyphens."""
        entity, type_ = "7c9e6679-7425-40de-944b-e07fc1f90ae7", "v2.detail.events.conversation.customer.start"
        body = {"id": "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10", "type": type_, "conversationId": entity}
        gate.run(body, lambda event: None)
        shown = on_terminal(["keys", "list"], tmp_path, COLUMNS=str(columns), NO_COLOR="1")
        assert max(map(len, shown.splitlines())) <= columns
        if headers is None:
            assert re.search(r"completed\s*\n", shown)
            assert re.search(r"7c9e6679-7425-40de-944b-\s", shown)
            return
        assert shown.splitlines()[0].split() == headers
        assert entity in shown
        assert ("type" not in headers) or re.search(r"[a-z]\.\s", shown)

    def test_an_indent(self, tmp_path: Path) -> None:
        """On a terminal, the groups of `oncegate read` are folded with a small indent."""
        events = [{"id": "1", "type": "t", name: 1} for name in ("a_long_name_of_a_member", "another_long_name")]
        (tmp_path / "events.json").write_text(json.dumps(events))
        shown = on_terminal(["read", "events.json"], tmp_path, COLUMNS="50", NO_COLOR="1").splitlines()
        start = next(number for number, line in enumerate(shown) if "share a key" in line)
        assert shown[start].startswith("    1 and 2 share a key: ")
        assert shown[start + 1].startswith("      ")
        assert max(map(len, shown[start : start + 3])) <= 50

    def test_the_error_of_a_dead_letter_is_shown(self, gate: Gate, tmp_path: Path) -> None:
        """At 50 columns, the list of dead letters has the key and the error; the event id is left out."""
        outcome = gate.run({"id": "an-event-with-a-long-name"}, lambda event: 1 / 0)
        shown = on_terminal(["dlq", "list"], tmp_path, COLUMNS="50", NO_COLOR="1")
        header, row, *_ = (re.sub(r"\x1b\[\d*m", "", line).split() for line in shown.splitlines())
        assert (header, row[0]) == (["key", "error"], str(outcome.key))
        assert "ZeroDivisionError" in "".join(shown.split())

    def test_required_columns(self, gate: Gate, tmp_path: Path) -> None:
        """If a required column does not fit beside the key, each row is printed with one column per line."""
        for id_ in ("evt-1", "evt-2"):
            gate.run({"id": id_, "conversationId": "c-1"}, lambda event: 1 / 0)
        shown = on_terminal(["explain", "c-1"], tmp_path, COLUMNS="50", NO_COLOR="1")
        lines = [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in shown.splitlines()]
        start = lines.index(next(line for line in lines if line.startswith("key ")))
        assert [line.split()[0] if line else "" for line in lines[start : start + 8]] == [
            *("key", "event", "state", "error", "", "key", "event", "state")
        ]
        assert lines[start + 2] == "state     dead letter"
        assert "Columns not shown: namespace, entity, attempts," in " ".join(lines)

    @pytest.mark.parametrize("columns", [80, 50])
    @pytest.mark.parametrize("command", [["explain", "evt-1"], ["events", "show", "evt-1"], ["events", "list"]])
    def test_the_reason_is_shown(
        self, recorded: RecordedGate, tmp_path: Path, command: list[str], columns: int
    ) -> None:
        """The reasons of rows are shown on narrow terminals, and columns without any text are not."""
        for body in ({"id": "evt-1", "n": 1}, {"id": "evt-1", "n": 1}, {"id": "evt-1", "n": 2}):
            recorded.run(body)
        shown = on_terminal(command, tmp_path, COLUMNS=str(columns), NO_COLOR="1")
        assert max(map(len, shown.splitlines())) <= columns
        rows = shown[shown.index(" (UTC)") :].split("\r\n\r\n")[0].splitlines()[1:]
        headers = rows[0].split() if columns == 80 else [row.split()[0] for row in rows]
        assert "reason" in headers
        assert not {"delivery", "entity", "state"} & set(headers)

    def test_sentences_are_folded_between_words(self, recorded: RecordedGate, tmp_path: Path) -> None:
        """Sentences and facts are folded between words; the lines of a fact have the indent of its value."""
        body = {"id": "evt-1", **{f"a_long_name_of_member_{number}": 1 for number in range(5)}}
        recorded.run(body)
        recorded.run(dict.fromkeys(body, 2) | {"id": "evt-1"})
        shown = on_terminal(["explain", "evt-1"], tmp_path, COLUMNS="60", NO_COLOR="1").splitlines()
        start = next(number for number, line in enumerate(shown) if line.startswith("difference "))
        assert shown[start : start + 2] == [
            f"difference{' ' * 8}a_long_name_of_member_0,",
            f"{' ' * 18}a_long_name_of_member_1,",
        ]
        assert shown[0] == "Not run: evt-1 has the key of another event but different"

    def test_a_line_shorter_than_a_key(self, gate: Gate, tmp_path: Path) -> None:
        """On a terminal narrower than a key, the key is folded."""
        outcome = gate.run({"id": "evt-1"}, lambda event: 1 / 0)
        shown = on_terminal(["dlq", "list"], tmp_path, COLUMNS="20", NO_COLOR="1")
        assert str(outcome.key) in "".join(shown.split())


def test_clean() -> None:
    """Control characters are escaped; other text is unchanged."""
    assert clean("a\x1b[2J\r\n\u202eb é 😀") == "a\\x1b[2J\\r\\n\\u202eb é 😀"


def test_json_cannot_steer_a_terminal(oncegate: Run, gate: Gate) -> None:
    """In JSON all control and direction characters are escaped, and its value is unchanged."""
    hostile = "a\u202eb\u009b\U000e0041"
    outcome = gate.run({"id": hostile}, lambda event: None)
    _, out, _ = oncegate("keys", "show", str(outcome.key), "--output", "json")
    assert out.replace("\n", "").isprintable()
    assert json.loads(out)["event_id"] == hostile


def test_line_breaks() -> None:
    """A line break becomes a blank, and other control characters are escaped."""
    assert on_one_line("  two lines:\n    here \r\n\n and\u2028there\x1b\n") == "  two lines: here and there\\x1b"


def test_no_line_break_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Sentences and tables have one line for each text, without an escaped line break."""
    text = "first\n  second"
    print_text(text)
    print_note(text)
    print_error(text)
    show_table(("a", "b"), [(text, text)], essential=("a",))
    show_plain_table(("a", "b"), [(text, text)])
    out, err = capsys.readouterr()
    table = "a             b\nfirst second  first second\n"
    assert (out, err) == (f"first second\n{table}{table}", "first second\nError: first second\n")


@pytest.mark.parametrize(
    "command",
    [
        *("dlq list", "dlq redrive --all --handler app:fail", "dlq redrive --all --handler raises_lines:handler"),
        *(
            "serve --handler raises_lines:handler",
            "work inbox --handler raises_lines:handler",
            "config check",
            "doctor",
        ),
        *("verify --truth truth.jsonl --effects x", "doctor --store postgresql://127.0.0.1:9/x"),
        "dlq list --store postgresql://127.0.0.1:9/x",
    ],
)
def test_no_command_shows_one(command: str, gate: Gate, oncegate: Run, tmp_path: Path) -> None:
    """No command shows an escaped line break: not of an exception, an id, a setting, or an error of a server."""
    (tmp_path / "app.py").write_text("def fail(event): raise ValueError('first\\n    second')\n")
    (tmp_path / "raises_lines.py").write_text("raise ValueError('first\\n    second')\n")
    (tmp_path / "truth.jsonl").write_text("a\nb\n")
    (tmp_path / "oncegate.toml").write_text('[serve]\nhandler = "raises_lines:handler"\n' * (command == "config check"))

    def fail(event: Event) -> None:
        raise ValueError("first\n    second")

    gate.run({"id": "evt\n1", "type": "a\nb"}, fail)
    _, out, err = oncegate(*command.split(" "))
    assert out + err
    assert "\\n" not in out + err
