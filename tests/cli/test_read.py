"""`oncegate read`: the events of a file, their keys, and the comparison of strategies."""

import io
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from oncegate import Gate, keys, read
from oncegate.cli import exit_codes
from oncegate.cli.event_files import documents
from oncegate.cli.output import Progress
from oncegate.times import microseconds_of, rfc3339
from tests.cli.conftest import Run, on_terminal

SAMPLES = [each["document"] for each in json.loads((Path(__file__).parents[1] / "data" / "events.json").read_text())]

ONE = {"id": "evt-1", "type": "call.ended", "conversationId": "c-1", "timestamp": "2026-02-03T04:05:06.100Z"}
AGAIN = ONE | {"id": "evt-2"}
ECHO = ONE | {"id": "evt-3", "timestamp": "2026-02-03T04:05:06.300Z"}
OTHER = ONE | {"id": "evt-1", "conversationId": "c-2"}
HELD = ONE | {"type": "call", "state": "held", "agent": "a"}
ROOT = Path(__file__).parents[2]


def lines(*documents: Any) -> str:
    return "\n".join(map(json.dumps, documents))


@pytest.fixture
def shown(oncegate: Run, tmp_path: Path) -> Any:
    """The JSON output of `read` for these documents and options."""

    def call(*documents: Any, options: tuple[str, ...] = ()) -> Any:
        (tmp_path / "events.jsonl").write_text(lines(*documents))
        code, out, err = oncegate("read", "events.jsonl", "--output", "json", *options)
        assert (code, err) == (exit_codes.OK if documents else exit_codes.FAILED, "")
        return json.loads(out)

    return call


class TestFiles:
    @pytest.mark.parametrize(
        ("text", "places"),
        [
            ("", []),
            (" \n\n", []),
            ('{"id": 1}', [("1", None, 1)]),
            ('\ufeff{"id": 1}\r\n', [(None, None, 1)]),
            ('\ufeff{"id": 1}\n{"id": 2}', [(None, 1, 1), ("2", 2, 1)]),
            ('\ufeff[\n{"id": 1}\n]', [(None, None, 1)]),
            ('{\n"id": 1\n}\n', [("1", None, 1)]),
            ('[{"id": 1}, {"id": 2}]', [("1", None, 1), ("2", None, 2)]),
            ('[\n{"id": 1},\n{"id": 2}\n]', [("1", None, 1), ("2", None, 2)]),
            ('[\n{"id": 1}\n]', [("1", None, 1)]),
            ('\n{"id": 1}\r\n\r\n{"id": 2}\r\n', [("1", 2, 1), ("2", 4, 1)]),
            ('[{"id": 1}, {"id": 2}]\n{"id": 3}', [("1", 1, 1), ("2", 1, 2), ("3", 2, 1)]),
            ('{"id": 1}\n{"id": \n{"id": 3}', [("1", 1, 1), (None, 2, 1), ("3", 3, 1)]),
            ('{"id": "1\n{"id": 2}\n{"id": 3}', [(None, 1, 1), ("2", 2, 1), ("3", 3, 1)]),
            ('{"id":\n{"id": 2}\n{"id": 3}', [(None, 1, 1), ("2", 2, 1), ("3", 3, 1)]),
            ('{\n"id": 1\n}\n\n{\n"id": "ü"\n}', [("1", 1, 1), ("ü", 5, 1)]),
            ('{"id": 1}{"id": 2} {"id": 3', [("1", 1, 1), ("2", 1, 1), (None, 1, 1)]),
            ("{\nnothing\n}", [(None, None, 1)]),
            ("[" * 5000, [(None, None, 1)]),
        ],
    )
    def test_forms(self, oncegate: Run, tmp_path: Path, text: str, places: list[Any]) -> None:
        """Events are found with their places in every file format, also after a broken document."""
        (tmp_path / "f.json").write_bytes(text.encode())
        code, out, _ = oncegate("read", "f.json", "--output", "json")
        found = json.loads(out)["events"]
        assert code == (exit_codes.OK if any(event for event, _, _ in places) else exit_codes.FAILED)
        assert [(each["id"], each["line"], each["index"]) for each in found] == places
        assert all((each["problem"] is None) == (each["id"] is not None) for each in found)

    def test_a_byte_order_mark(self, oncegate: Run, gate: Gate, tmp_path: Path) -> None:
        """A byte order mark is refused, as in a delivery."""
        raw = b'\xef\xbb\xbf{"id": "1"}'
        (tmp_path / "f.json").write_bytes(raw)
        (event,) = read(raw)
        assert "byte order mark" in str(event.problem)
        assert str(event.problem) in oncegate("read", "f.json")[1]
        assert str(event.problem) in oncegate("explain", "--file", "f.json")[1]

    def test_lines_are_read_one_by_one(self) -> None:
        """A file with one document per line is read line by line."""
        taken = 0

        class Endless(io.BytesIO):
            def readline(self, size: int | None = -1, /) -> bytes:
                nonlocal taken
                taken += 1
                return b'{"id": %d}\n' % taken

            def __iter__(self) -> Any:
                return iter(self.readline, b"")

        found = documents(Endless())
        assert [next(found).raw for _ in range(5)] == [b'{"id": %d}' % number for number in range(1, 6)]
        assert taken == 5

    def test_an_array(self, oncegate: Run, tmp_path: Path) -> None:
        """The items of an array are read as in a delivered array."""
        items = [*SAMPLES, [ONE], "text", json.dumps(ONE), 5, None, {"Records": [{"body": "x", "receiptHandle": "r"}]}]
        (tmp_path / "f.json").write_text(json.dumps(items))
        events = json.loads(oncegate("read", "f.json", "--output", "json")[1])["events"]
        assert [(each["id"], each["type"], each["problem"]) for each in events] == [
            (event.id, event.type, event.problem) for event in read(items)
        ]

    def test_several_files(self, oncegate: Run, tmp_path: Path) -> None:
        """Events are numbered through all files, each with its own place."""
        (tmp_path / "a.json").write_text(json.dumps([ONE, OTHER]))
        (tmp_path / "b.jsonl").write_text(lines([ECHO, ECHO], AGAIN))
        _, out, _ = oncegate("read", "a.json", "b.jsonl")
        assert [line.split()[:2] for line in out.splitlines()[1:6]] == [
            ["1", "a.json#1"],
            ["2", "a.json#2"],
            ["3", "b.jsonl:1#1"],
            ["4", "b.jsonl:1#2"],
            ["5", "b.jsonl:2"],
        ]

    @pytest.mark.parametrize(("name", "said"), [("no.json", "No such file or directory"), (".", "Is a directory")])
    def test_a_file_that_cannot_be_read(self, oncegate: Run, tmp_path: Path, name: str, said: str) -> None:
        """A missing file is reported before anything is printed."""
        (tmp_path / "a.json").write_text("{}")
        assert oncegate("read", "a.json", name) == (exit_codes.USAGE, "", f"Error: cannot read {name}: {said}\n")

    def test_no_file(self, oncegate: Run) -> None:
        """At least one file is required."""
        assert oncegate("read")[0] == exit_codes.USAGE

    def test_stdin(self, tmp_path: Path) -> None:
        """A dash reads stdin."""
        command = [sys.executable, "-m", "oncegate", "read", "-"]
        done = subprocess.run(command, input=lines(ONE, OTHER), cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (exit_codes.OK, "")
        assert "1      -:1    plain" in done.stdout

    def test_a_pipe_with_a_name(self, tmp_path: Path) -> None:
        """A named pipe is read from its beginning."""
        (tmp_path / "f.jsonl").write_text(lines(ONE, OTHER))
        command = f"{sys.executable} -m oncegate read <(cat f.jsonl)"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)  # noqa: S607
        assert (done.returncode, done.stderr) == (exit_codes.OK, "")
        assert "auto treats 1 and 2 as one event but their content differs" in done.stdout


class TestEvents:
    def test_what_was_read(self, shown: Any) -> None:
        """Each sample is shown with the fields that its source reads."""
        events = shown(*SAMPLES)["events"]
        known = json.loads((Path(__file__).parents[1] / "data" / "events.json").read_text())
        assert len(events) == len(known)
        for event, sample in zip(events, known, strict=True):
            when = sample["read"].get("occurred_at")
            spelt = {"occurred_at": when and rfc3339(microseconds_of(datetime.fromisoformat(when)))}
            assert {name: event[name] for name in sample["read"]} | spelt == sample["read"] | spelt
            assert event["occurred_at"] == spelt["occurred_at"]

    @pytest.mark.parametrize("where", ["file", "variable", "flag"])
    def test_what_payloads_do_not_say(
        self, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        """The topic and the read paths of the settings apply, in text and in JSON."""
        body = {"id": "user-1", "routingStatus": {"status": "IDLE"}}
        (tmp_path / "f.jsonl").write_text(lines(body, {"nr": 5}))
        topic = "v2.users.{id}.routingStatus"
        if where == "file":
            (tmp_path / "oncegate.toml").write_text(f'[read]\ntopic = "{topic}"\nid = "nr"')
        elif where == "variable":
            monkeypatch.setenv("ONCEGATE_READ_TOPIC", topic)
            monkeypatch.setenv("ONCEGATE_READ_ID", "nr")
        flags = ("--read-topic", topic, "--read-id", "nr") if where == "flag" else ()
        first, other = json.loads(oncegate("read", "f.jsonl", "--output", "json", *flags)[1])["events"]
        assert (first["type"], first["state"], other["source"], other["id"]) == (topic, "IDLE", "plain", "5")
        (same,) = read({"topicName": "v2.users.user-1.routingStatus", "eventBody": body})
        assert first["keys"][0]["key"] == str(keys.auto(same))
        assert topic in oncegate("read", "f.jsonl", *flags)[1]

    def test_keys_and_parts(self, shown: Any) -> None:
        """Each strategy shows its key with the parts, or the missing parts."""
        document = {"id": "evt-1", "state": "on", "conversationId": "c"}
        (event,), (read_here,) = shown(document)["events"], read(document)
        found = {each["strategy"]: each for each in event["keys"]}
        assert list(found) == ["auto", "event_id", "content", 'state_change("500ms")']
        assert [found[name]["key"] for name in ("auto", "content")] == [
            str(keys.auto(read_here)),
            str(keys.content(read_here)),
        ]
        assert (found["event_id"]["parts"], found["event_id"]["binds"]) == (["evt-1"], True)
        assert found['state_change("500ms")']["missing"].startswith("the state_change key needs time,")

    def test_frames_and_problems(self, oncegate: Run, tmp_path: Path) -> None:
        """A heartbeat and a broken line are shown with the reason, have no key, and are not compared."""
        heartbeat = {"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}}
        (tmp_path / "f.jsonl").write_text(f"{lines(ONE, heartbeat)}\n{{\n{lines(OTHER)}")
        _, out, _ = oncegate("read", "f.jsonl")
        rows = out.splitlines()
        assert rows[0].split()[-1] == "problem"
        assert "f.jsonl:2" in rows[2]
        assert "not an event: " in rows[2]
        assert rows[3].endswith("the text is not JSON: Input data was truncated")
        assert "auto                   1 different event among 2" in out

    @pytest.mark.parametrize("output", ["text", "json"])
    def test_hostile_text(self, oncegate: Run, tmp_path: Path, output: str) -> None:
        """Control characters in a payload do not reach the terminal."""
        hostile = "\x1b[31m\u202e\x9b"
        document = dict.fromkeys(("id", "type", "conversationId", "state", "call"), hostile)
        (tmp_path / "f.jsonl").write_text(lines(document, document | {"id": "x"}))
        own = ("--key", 'fields("call")', "--key", 'first(fields("no"), event_id)')
        code, out, _ = oncegate("read", "f.jsonl", "--output", output, *own)
        assert code == exit_codes.OK
        assert "[31m" in out
        assert not {"\x1b", "\u202e", "\x9b"} & set(out)

    def test_limit(self, oncegate: Run, tmp_path: Path) -> None:
        """--limit limits the list; all events are compared."""
        (tmp_path / "f.jsonl").write_text(lines(ONE, OTHER, ECHO))
        _, out, _ = oncegate("read", "f.jsonl", "--limit", "1")
        assert "f.jsonl:2" not in out
        assert "Showing the first 1 of 3 events; use --limit to see more." in out
        assert "1 and 2 share a key" in out


class TestComparing:
    STRATEGIES = (
        "auto",
        "event_id",
        "content",
        'state_change("500ms")',
        'fields("conversationId")',
        'once_per("x", "conversationId")',
        'first(state_change("1h"), content(exclude="id"))',
    )

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_as_a_gate_would(self, shown: Any, strategy: str) -> None:
        """The result for each event is that of a gate with the same key: outcome, kind and conflict."""
        moved = [document | {"id": f"again-{number}"} for number, document in enumerate(SAMPLES)]
        replayed = [document | {"replay-name": "r"} for document in SAMPLES[:3]]
        delivered = [ONE, ECHO, OTHER, AGAIN, *SAMPLES, *moved, *replayed, ECHO, *SAMPLES]
        events = shown(*delivered, options=("--key", strategy))["events"]
        gate = Gate("memory://", key=eval(strategy, vars(keys)), remember=None)  # noqa: S307  # as in Python
        for event, document in zip(events, delivered, strict=True):
            (said,) = [each for each in event["keys"] if each["strategy"] == strategy]
            outcome = gate.run(document, lambda event: None)
            assert said["key"] == (None if outcome.key is None else str(outcome.key))
            assert (said["missing"] is not None) == (outcome.status == "invalid")
            assert said["conflict"] == (outcome.status in ("conflict", "buried"))
            assert said["kind"] == (outcome.kind if outcome.status == "duplicate" else None)
            assert said["stale"] == outcome.event.stale

    def test_groups(self, oncegate: Run, tmp_path: Path) -> None:
        """The output lists the events that share a key under each strategy, and whether their content differs."""
        (tmp_path / "f.jsonl").write_text(lines(ONE, ONE, ECHO, OTHER, {"note": 1}))
        out = oncegate("read", "f.jsonl")[1]
        assert out.split("\n\n")[2].splitlines() == [
            "auto                   3 different events among 5",
            "                         1, 2 and 4 share a key: different content, so 4 would be a conflict;"
            " the others have the same content (redelivery); they differ at conversationId",
            "event_id               2 different events among 4",
            "                         1, 2 and 4 share a key: different content, so 4 would be a conflict;"
            " the others have the same content (redelivery); they differ at conversationId",
            "                         5: the event_id key needs id, which the event does not have",
            "content                4 different events among 5",
            "                         1 and 2 share a key: same content (redelivery)",
            'state_change("500ms")  2 different events among 4',
            "                         1, 2 and 3 share a key: different content, treated as duplicates"
            " (redelivery, state-echo); they differ at id, timestamp",
            "                         5: the state_change key needs entity, state, time, which the event does not have",
        ]

    def test_a_path_from_the_document(self, shown: Any) -> None:
        """The path of a differing member starts at the document, as `content(exclude=…)` and `fields` take it."""
        one, two = (
            json.loads(line)
            for number, line in enumerate((ROOT / "docs" / "guide" / "events.jsonl").read_text().splitlines())
            if number in (0, 2)
        )
        paths = 'fields("conversationId", "eventTime")'
        column = shown(one, two, options=("--key", paths))["strategies"][4]
        (group,) = column["groups"]
        assert group["differs_in"] == ["detail.eventBody.attributes.vip"]
        excluding = f"content(exclude={group['differs_in']})"
        column = shown(one, two, options=("--key", excluding))["strategies"][4]
        assert [each["events"] for each in column["groups"]] == [[1, 2]]

    def test_one_state_in_two_events(self, oncegate: Run, shown: Any) -> None:
        """Two events with one entity and state that no strategy joins are listed, with the differing members."""
        found = shown(HELD, HELD | {"id": "evt-2", "timestamp": "2026-02-03T04:05:09Z", "agent": "b"})
        assert found["same_state"] == [{"events": [1, 2], "state": "held", "differs_in": ["agent", "id", "timestamp"]}]
        assert (
            "\n1 and 2 report the same state (held), 2 s apart; they differ at agent, id, timestamp\n"
            in oncegate("read", "events.jsonl")[1]
        )
        assert shown(HELD, HELD)["same_state"] == []
        assert shown(HELD, HELD | {"timestamp": "2026-02-03T04:05:06.2Z"})["same_state"] == []

    def test_one_state_with_two_names(self, oncegate: Run, shown: Any) -> None:
        """States that may be one state are listed with the key to set, and this key joins the events."""
        events = [HELD | {"state": "answered"}, HELD | {"id": "2", "state": "connected"}]
        found = shown(*events)
        strategy = 'first(state_change("500ms", aliases={"answered": "connected"}), auto)'
        assert (found["two_names"], found["suggested_key"]) == (
            [{"events": [1, 2], "states": ["answered", "connected"]}],
            strategy,
        )
        out = oncegate("read", "events.jsonl")[1]
        assert "1 and 2 report the states answered and connected of one entity, 0 ms apart\n" in out
        assert f"\n    key = '{strategy}'\n" in out
        found = shown(*events, options=("--key", strategy))
        assert [each["events"] for each in found["strategies"][4]["groups"]] == [[1, 2]]
        assert (found["two_names"], found["suggested_key"]) == ([], None)

    def test_the_key_function_of_a_user(self, oncegate: Run, tmp_path: Path) -> None:
        """The text of its exception is on one line."""
        (tmp_path / "f.jsonl").write_text(lines(ONE, OTHER))
        (tmp_path / "two_lines.py").write_text("def two_lines(event):\n    raise ValueError('no\\nkey')\n")
        out = oncegate("read", "f.jsonl", "--key", "two_lines:two_lines")[1]
        assert "the key function raised ValueError: no key" in out
        assert "\\n" not in out

    def test_split(self, shown: Any, oncegate: Run) -> None:
        """A state that arrives too late between two joined states is reported, as by a gate."""
        times = {"a": "00.000", "b": "00.400", "c": "00.200"}
        said = [
            {"conversationId": "c", "id": each, "state": "held" if each != "c" else "connected"}
            | {"timestamp": f"2026-02-03T04:05:{time}Z"}
            for each, time in times.items()
        ]
        column = shown(*said)["strategies"][3]
        assert (column["distinct"], column["splits"]) == (2, [3])
        assert (
            "3 arrived too late to separate two events that were joined (timeline.split)"
            in oncegate("read", "events.jsonl")[1]
        )

    def test_strategies_of_ones_own(self, shown: Any, tmp_path: Path) -> None:
        """The strategy of the settings and those of --key are compared too, each once."""
        (tmp_path / "oncegate.toml").write_text("key = 'fields(\"type\")'")
        (tmp_path / "mine.py").write_text("def parts(event):\n    return event.body['conversationId']\n")
        own = ("--key", "auto", "--key", "mine:parts", "--key", ' fields("type") ', "--key", 'once_per("x", "type")')
        columns = shown(ONE, OTHER, {"type": "call.ended"}, options=own)["strategies"]
        found = {
            each["strategy"]: (each["distinct"], [group["events"] for group in each["groups"]]) for each in columns
        }
        assert list(found)[4:] == ['fields("type")', "mine:parts", 'once_per("x", "type")']
        assert found['fields("type")'] == (1, [[1, 2, 3]])
        assert found["mine:parts"] == (2, [])
        assert columns[5]["missing"] == [
            {"reason": "the key function raised KeyError: 'conversationId'", "events": [3]}
        ]

    @pytest.mark.parametrize(
        ("strategy", "said"),
        [
            ("feilds('a')", "--key: there is no key strategy feilds; did you mean fields?"),
            ("json:nothing", "--key json:nothing: there is no nothing in json"),
            ("state_change('5')", "--key: key=state_change('5'): window='5' is not a duration"),
        ],
    )
    def test_a_strategy_that_is_none(self, oncegate: Run, strategy: str, said: str) -> None:
        """An invalid strategy is refused with the name of the flag."""
        code, out, err = oncegate("read", "no.json", "--key", strategy)
        assert (code, out) == (exit_codes.USAGE, "")
        assert err.startswith(f"Error: {said}")


class TestAdvice:
    DIFFERENT = ONE | {"id": "evt-9", "conversationId": "c-9", "type": "call.started"}

    @pytest.mark.parametrize(
        ("documents", "said"),
        [
            ([], "There is no event to read."),
            ([ONE], "There is only one event: add copies of it, or similar events,"),
            (
                [ONE, DIFFERENT],
                "auto treats all 2 as different events; every other strategy with keys for these events agrees.",
            ),
            ([ONE, ONE], "auto treats 1 and 2 as one event; every other strategy with keys for these events agrees."),
            ([ONE, ONE, DIFFERENT, DIFFERENT], "auto finds 2 different events among 4; every other"),
            (
                [ONE, ECHO],
                'auto treats all 2 as different events; state_change("500ms") treats 1 and 2 as one event but their'
                " content differs.",
            ),
            (
                [ONE, OTHER],
                "auto treats 1 and 2 as one event but their content differs; content treats 1 and 2 as different"
                ' events; state_change("500ms") treats 1 and 2 as different events.',
            ),
            (
                [ONE, ONE, OTHER],
                "auto treats 1, 2 and 3 as one event but their content differs; content treats 1 and 3 as different",
            ),
            (
                [{"id": 1}, {"n": 1, "id": 2}, {"n": 1, "id": 2}, {"n": 2, "id": 2}, {"id": 2}],
                "auto treats 2, 3, 4 and 5 as one event but their content differs; content treats 2, 4 and 5 as"
                " different events.",
            ),
        ],
    )
    def test_sentence(self, shown: Any, documents: list[Any], said: str) -> None:
        """One sentence describes the result of the default strategy, and each strategy that differs."""
        assert shown(*documents)["advice"].startswith(said)

    def test_own_strategies(self, shown: Any) -> None:
        """For a strategy of --key, the sentence lists the events without a key."""
        said = shown(ONE, self.DIFFERENT, {"id": 1}, options=("--key", 'fields("timestamp")'))["advice"]
        assert said == (
            'auto treats all 3 as different events; fields("timestamp") treats 1 and 2 as one event but their content'
            " differs, and has no key for 3."
        )

    def test_many(self, shown: Any) -> None:
        """Long lists are cut."""
        documents = [{"id": number, "call": number // 20} for number in range(60)]
        said = shown(*documents, options=("--key", 'once_per("x", "call")'))["advice"]
        assert said.endswith(
            "treats 1, 2, 3, 4, 5, 6, 7, 8 and 12 more as one event but their content differs (and 2 more)."
        )


class TestTerminal:
    def test_table(self, tmp_path: Path) -> None:
        """On a terminal keys are whole, other cells are folded, and no line is wider than the terminal."""
        (tmp_path / "f.jsonl").write_text(lines(*SAMPLES[:3]))
        shown = on_terminal(["read", "f.jsonl"], tmp_path, NO_COLOR="1", TERM="dumb")
        tables = shown.split("\r\n\r\n")[:2]
        assert all(len(line) <= 80 for table in tables for line in table.splitlines())
        assert str(keys.event_id(read(SAMPLES[0])[0])) in tables[1]
        assert "…" not in shown

    @pytest.mark.parametrize("columns", ["80", "50"])
    def test_state_and_problem_are_shown(self, tmp_path: Path, columns: str) -> None:
        """The state of an event and the problem of an unreadable event are shown on every terminal, not cut."""
        heartbeat = {"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}}
        (tmp_path / "f.jsonl").write_text(lines(HELD, *SAMPLES[:3], heartbeat))
        shown = on_terminal(["read", "f.jsonl"], tmp_path, COLUMNS=columns, NO_COLOR="1", TERM="dumb")
        table = shown.partition("\r\n\r\n")[0].split()
        problem = "not an event: a message of the notification channel itself (channel.metadata)"
        assert {"state", "held", "problem", *problem.split()} <= set(table)

    def test_all_that_has_room(self, tmp_path: Path) -> None:
        """Empty columns are left out."""
        (tmp_path / "e.json").write_text('{"id": "p1", "type": "x"}')
        shown = on_terminal(["read", "e.json"], tmp_path, COLUMNS="80", NO_COLOR="1")
        assert shown.splitlines()[1].split() == ["1", "e.json", "plain", "x", "p1"]
        assert "Columns not shown" not in shown

    def test_progress(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Slow reading shows a progress line on a terminal, and removes it at the end."""
        stream, now = io.StringIO(), 0
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr("oncegate.cli.output.since_boot", lambda: now)
        for terminal, said in ((True, "\r\x1b[K1,000 events read\r\x1b[K"), (False, "")):
            monkeypatch.setattr(stream, "isatty", lambda terminal=terminal: terminal)
            stream.seek(stream.truncate(0))
            with Progress("events") as progress:
                progress.update(1)
                now += 1_500_000
                progress.update(1_000)
                progress.update(1_001)
            assert stream.getvalue() == said
