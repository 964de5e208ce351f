"""`oncegate analyze`: what it reads, what it answers, and what it writes."""

import base64
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from oncegate.settings import load
from oncegate.simulate.copies import CopyOptions
from oncegate.simulate.traffic import Plan, deliveries
from tests.cli.conftest import RecordedGate, Run

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CALL = "5d1f0a52-3c1e-4f57-9a6e-0c2b7f3e1a10"
TOPIC = "v2.detail.events.conversation.{id}.attributes"


def delivered(number: str, **attributes: str) -> dict[str, Any]:
    body = {"eventTime": 1_770_091_506_123, "conversationId": CALL, "participantId": "p", "attributes": attributes}
    detail = {"topicName": TOPIC.replace("{id}", CALL), "eventBody": body, "timestamp": "2026-02-03T04:05:06.300Z"}
    return {"id": number, "detail-type": TOPIC, "source": "aws.partner/genesys.com/x", "detail": detail}


# Two updates in one millisecond, each delivered twice, and the first published again with another id.
UPDATES = [delivered("1", vip="yes"), delivered("1", vip="yes"), delivered("2", vip="no"), delivered("2", vip="no")]
UPDATES.append(delivered("3", vip="yes"))


def lines(documents: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(document)}\n" for document in documents)


def sqs(place: int, document: dict[str, Any]) -> dict[str, str]:
    return {"messageId": str(place), "receiptHandle": "r", "body": json.dumps(document), "eventSource": "aws:sqs"}


def boto3(place: int, document: dict[str, Any]) -> dict[str, str]:
    return {"MessageId": str(place), "ReceiptHandle": "r", "Body": json.dumps(document)}


def logged(document: dict[str, Any]) -> dict[str, Any]:
    return {"logStreamName": "s", "timestamp": 1_770_091_506_000, "message": json.dumps(document)}


IN_A_ROW = "".join(map(json.dumps, UPDATES))
KINESIS = {"kinesis": {"data": base64.b64encode(IN_A_ROW.encode()).decode()}, "eventSource": "aws:kinesis"}
FORMS = {
    "array": json.dumps(UPDATES),
    "indented": json.dumps(UPDATES, indent=2),
    "lines": lines(UPDATES),
    "in a row": IN_A_ROW,
    "blank lines": "\n\n".join(json.dumps(each, indent=1) for each in UPDATES),
    "Lambda event of SQS": json.dumps({"Records": [sqs(*each) for each in enumerate(UPDATES)]}),
    "answer of boto3": json.dumps({"Messages": [boto3(*each) for each in enumerate(UPDATES)]}),
    "log export": "".join(f"2026-02-03T04:05:0{place}.000Z {json.dumps(each)}\n" for place, each in enumerate(UPDATES)),
    "log subscription": json.dumps({"messageType": "DATA_MESSAGE", "logEvents": list(map(logged, UPDATES))}),
    "filter-log-events": json.dumps({"events": list(map(logged, UPDATES))}),
    "Kinesis": json.dumps({"Records": [KINESIS]}),
}


def answer(run: tuple[int, str, str]) -> dict[str, Any]:
    assert run[0] in (0, 12), run[2]
    found: dict[str, Any] = json.loads(run[1])
    return found


def simulated(path: Path, **options: Any) -> None:
    plan = Plan(events=120, seed=5, untimed=0.4, copy_options=CopyOptions(echo=0.2))
    path.write_bytes(b"".join(each.copy.raw + b"\n" for each in deliveries(plan)))


class TestReading:
    def check(self, found: dict[str, Any]) -> None:
        assert (found["deliveries"], found["certain_copies"], found["events"]) == (5, 3, 2)
        assert found["recommended"]["key"] == "auto"

    @pytest.mark.parametrize("form", FORMS)
    def test_forms(self, oncegate: Run, tmp_path: Path, form: str) -> None:
        """The same deliveries give the same answer in every form in which they are recorded."""
        (tmp_path / "f").write_text(FORMS[form])
        self.check(answer(oncegate("analyze", "f", "--output", "json")))

    @pytest.mark.parametrize("compress", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
    def test_compressed(self, oncegate: Run, tmp_path: Path, compress: Any) -> None:
        """Compressed files are recognized by their content. The offsets of examples are those of the text in them."""
        (tmp_path / "f.log").write_bytes(compress(lines(UPDATES).encode()))
        found = answer(oncegate("analyze", "f.log", "--output", "json"))
        self.check(found)
        (example,) = (each for each in found["types"][0]["strategies"] if each["strategy"] == "entity + time")
        offset = int(re.findall(r"at byte ([\d,]+)", example["lost_example"]["second"])[0].replace(",", ""))
        assert lines(UPDATES)[offset:].startswith(json.dumps(UPDATES[2]))

    def test_folder(self, oncegate: Run, tmp_path: Path) -> None:
        """A folder is read with all files below it, in the order of their names; hidden files are left out."""
        (tmp_path / "day" / "09").mkdir(parents=True)
        for place, each in enumerate(UPDATES):
            (tmp_path / "day" / "09" / f"{place}.json").write_text(json.dumps(each))
        (tmp_path / "day" / ".hidden").write_text("no JSON")
        self.check(answer(oncegate("analyze", "day", "--output", "json")))

    def test_stdin(self, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """- reads stdin, which can be read only once."""
        (tmp_path / "f").write_text(lines(UPDATES))
        with (tmp_path / "f").open() as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            self.check(answer(oncegate("analyze", "-", "--output", "json")))

    def test_own_export(self, oncegate: Run, tmp_path: Path) -> None:
        """The output of `oncegate events export` is a recording."""
        recorded = RecordedGate(tmp_path)
        for each in UPDATES:
            recorded.run(each)
        recorded.recorder.close()
        (tmp_path / "oncegate.toml").write_text('journal_payloads = "24h"\n')
        assert oncegate("events", "export", "recording.jsonl")[0] == 0
        found = answer(oncegate("analyze", "recording.jsonl", "--output", "json"))
        assert found["events"] == 2

    def test_unreadable_documents(self, oncegate: Run, tmp_path: Path) -> None:
        """Unreadable documents are counted and shown with their file and offset; the others are read."""
        first, *others = map(json.dumps, UPDATES)
        (tmp_path / "f").write_text(first + "\n{broken\n" + "\n".join(others))
        found = answer(oncegate("analyze", "f", "--output", "json"))
        self.check(found)
        assert found["unreadable"] == 1
        (shown,) = found["unreadable_documents"]
        assert (shown["file"], shown["offset"]) == ("f", len(first) + 1)
        assert f"f at byte {len(first) + 1:,}: the text is not JSON" in oncegate("analyze", "f")[1]

    def test_a_broken_document_in_a_row(self, oncegate: Run, tmp_path: Path) -> None:
        """A truncated document among documents in a row hides at most the document that follows it."""
        first, *others = map(json.dumps, UPDATES)
        (tmp_path / "f").write_text(first + first[:-40] + "".join(others))
        found = answer(oncegate("analyze", "f", "--output", "json"))
        assert (found["deliveries"], found["unreadable"]) == (4, 1)

    @pytest.mark.parametrize("compress", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
    def test_a_damaged_file(self, oncegate: Run, tmp_path: Path, compress: Any) -> None:
        """A compressed file without its end is read as far as possible, and does not stop the analysis."""
        (tmp_path / "day").mkdir()
        text = lines([delivered(str(number), note=f"{number * 7919:x}") for number in range(3_000)]).encode()
        (tmp_path / "day" / "a.gz").write_bytes(compress(text)[:-2_000])
        (tmp_path / "day" / "b.json").write_text(lines(UPDATES))
        code, out, err = oncegate("analyze", "day", "--output", "json")
        assert code == 0
        assert "a.gz is damaged and was read only up to the damage: " in err
        assert 1_000 < json.loads(out)["deliveries"] < 3_005

    @pytest.mark.parametrize("start", [b"\x1f\x8b", b"\x28\xb5\x2f\xfd"], ids=["gzip", "zstd"])
    def test_no_compressed_file(self, oncegate: Run, tmp_path: Path, start: bytes) -> None:
        """A file that only begins like a compressed file is one sentence."""
        (tmp_path / "f").write_bytes(start + b"no compressed data at all")
        code, _, err = oncegate("analyze", "f")
        assert code in (1, 2)
        assert "Traceback" not in err

    @pytest.mark.parametrize("name", ["nowhere/rows.parquet", "folder.csv"])
    def test_a_file_that_cannot_be_written(self, oncegate: Run, tmp_path: Path, name: str) -> None:
        """An export to a place that cannot be written is one sentence."""
        (tmp_path / "folder.csv").mkdir()
        (tmp_path / "f").write_text(lines(UPDATES))
        code, _, err = oncegate("analyze", "f", "--export", name)
        assert code == 1
        assert f"cannot write {name}: " in err

    def test_nothing_to_read(self, oncegate: Run, tmp_path: Path) -> None:
        """A missing file and an empty folder exit with 2, a recording without events with 1; none with a traceback."""
        (tmp_path / "empty").mkdir()
        (tmp_path / "none.json").write_text("[]")
        assert oncegate("analyze", "missing.json")[0] == 2
        assert oncegate("analyze", "empty") == (2, "", "Error: there is no file in empty\n")
        code, _, err = oncegate("analyze", "none.json")
        assert code == 1
        assert "there is no event in the recording" in err


class TestAnswer:
    def test_sentences(self, oncegate: Run, tmp_path: Path) -> None:
        """The answer says what to use, what a tutorial's key would lose and where, and the settings."""
        (tmp_path / "f.jsonl").write_text(lines(UPDATES))
        code, out, _ = oncegate("analyze", "f.jsonl")
        assert code == 0
        offset = len(lines(UPDATES[:2]))
        assert f"{TOPIC}  (5)" in out
        assert (
            "Use auto: it catches 3 of 3 duplicates, and merges nothing else; conversationId + type + timestamp would"
            f" lose 1 event, e.g. f.jsonl at byte {offset:,} (it differs at attributes.vip)." in out
        )
        assert out.endswith("key = 'auto'\nretention = \"7d\"\n")

    def test_the_settings_can_be_loaded(self, oncegate: Run, tmp_path: Path) -> None:
        """The recommended settings are valid, also with a strategy that contains quotes."""
        simulated(tmp_path / "f.jsonl")
        found = answer(oncegate("analyze", "f.jsonl", "--output", "json"))
        (tmp_path / "oncegate.toml").write_text(found["recommended"]["settings"])
        settings = load(tmp_path / "oncegate.toml", environ={})
        assert settings["key"] == found["recommended"]["key"] == 'first(state_change("500ms"), auto)'
        assert oncegate("analyze", "f.jsonl")[0] == 0

    @pytest.mark.parametrize(
        ("key", "said"),
        [
            ('\'fields("conversationId", "eventTime")\'', "would lose 1 event with the key of a different event"),
            ("'fields(\"missing\")'", "would lose 5 deliveries without a key"),
        ],
    )
    def test_settings_that_lose_events(self, oncegate: Run, tmp_path: Path, key: str, said: str) -> None:
        """Exit code 12 says that the current settings would lose events; a pipeline can stop there."""
        (tmp_path / "oncegate.toml").write_text(f"key = {key}\n")
        (tmp_path / "f.jsonl").write_text(lines(UPDATES))
        code, out, _ = oncegate("analyze", "f.jsonl")
        assert code == 12
        assert said in out
        assert answer(oncegate("analyze", "f.jsonl", "--output", "json"))["current"]["would_lose"] > 0

    def test_what_if(self, oncegate: Run, tmp_path: Path) -> None:
        """--key and --window judge the choice of the user beside the recommended one."""
        simulated(tmp_path / "f.jsonl")
        own = 'fields("conversationId")'
        code, out, _ = oncegate("analyze", "f.jsonl", "--key", own, "--window", "50ms")
        assert code == 0
        rows = {line.split("  ")[0]: line for line in out.splitlines()}
        assert rows["auto"].split()[1] == rows['first(state_change("500ms"), auto)'].rsplit(")", 1)[1].split()[0]
        found = answer(oncegate("analyze", "f.jsonl", "--key", own, "--window", "50ms", "--output", "json"))
        judged = {each["strategy"]: each for each in found["strategies"]}
        assert judged[own]["lost"] + judged[own]["without_key"] > 100
        narrow, chosen = judged['first(state_change("50ms"), auto)'], judged['first(state_change("500ms"), auto)']
        assert narrow["inferred_caught"] < chosen["inferred_caught"] == found["inferred_copies"]

    def test_without_the_extra(self, oncegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without DuckDB, the error has the command that installs it."""
        monkeypatch.setitem(sys.modules, "duckdb", None)
        (tmp_path / "f.jsonl").write_text(lines(UPDATES))
        code, _, err = oncegate("analyze", "f.jsonl")
        assert code == 1
        assert "pip install 'oncegate[analyze]'" in err

    @pytest.mark.parametrize("option", [("--key", "nonsense("), ("--window", "soon"), ("--export", "rows.xlsx")])
    def test_invalid_options(self, oncegate: Run, tmp_path: Path, option: tuple[str, str]) -> None:
        """An invalid option is refused before the recording is read."""
        (tmp_path / "f.jsonl").write_text(lines(UPDATES))
        code, _, err = oncegate("analyze", "f.jsonl", *option)
        assert code == 2
        assert option[1] in err


class TestReport:
    def report(self, oncegate: Run, tmp_path: Path, *options: str) -> str:
        hostile = delivered("4", vip="<script>alert(1)</script>", **{"<img src=x onerror=alert(2)>": "y"})
        (tmp_path / "f<b>.jsonl").write_text(lines([UPDATES[0], hostile, *UPDATES]))
        assert oncegate("analyze", "f<b>.jsonl", "--html", "report.html", *options)[0] == 0
        return (tmp_path / "report.html").read_text()

    def test_hostile_text_is_text(self, oncegate: Run, tmp_path: Path) -> None:
        """Text of payloads and names of files is escaped, and the page forbids scripts and the network."""
        page = self.report(oncegate, tmp_path, "--no-redact")
        assert "<script" not in page
        assert "<img" not in page
        assert "&lt;script&gt;alert(1)" in page
        assert "f&lt;b&gt;.jsonl" in page
        assert "default-src &#x27;none&#x27;" in page
        assert not re.search(r"<[^>]*(?:src|href)=|url\(|https?://|@import", page)

    def test_values_are_hidden(self, oncegate: Run, tmp_path: Path) -> None:
        """By default the report has the paths of the members that differ, but no value of a payload."""
        page = self.report(oncegate, tmp_path)
        assert "attributes.vip" in page
        assert "alert(1)" not in page
        assert CALL not in page
        assert (tmp_path / "report.html").stat().st_mode & 0o077 == 0


class TestExport:
    @pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
    def test_rows(self, oncegate: Run, tmp_path: Path, name: str) -> None:
        """Each delivery is a row with its digests as text; a query on them counts what the command counts."""
        simulated(tmp_path / "f.jsonl")
        own = 'fields("conversationId")'
        found = answer(oncegate("analyze", "f.jsonl", "--export", name, "--output", "json", "--key", own))
        rows = duckdb.read_parquet(name) if name.endswith(".parquet") else duckdb.read_csv(name, all_varchar=True)
        assert rows.aggregate("count(*), count(distinct certain), count(distinct likely)").fetchall() == [
            (
                found["deliveries"],
                found["deliveries"] - found["certain_copies"],
                found["deliveries"] - found["certain_copies"] - found["inferred_copies"],
            )
        ]
        assert rows.aggregate("min(length(auto)), max(length(auto))").fetchall() == [(16, 16)]
        assert rows.aggregate("count(yours_1) > 0").fetchall() == [(True,)]
        judged = {each["strategy"]: each for each in found["strategies"]}
        lost = rows.filter("entity_time is not null").aggregate("entity_time, count(distinct possible) - 1 as lost")
        assert sum(count for _, count in lost.fetchall()) == judged["entity + time"]["lost"] > 0
