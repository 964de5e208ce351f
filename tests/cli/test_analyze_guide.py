"""The guide to the analysis: its output, its commands and its queries are real, and so is the example."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from oncegate.cli.main import cli
from tests import test_docs, test_guide
from tests.cli.conftest import Run
from tests.test_guide import DOCS

PAGE = DOCS / "guide" / "choose-a-key.md"
TEXT = PAGE.read_text()
EXAMPLE = DOCS.parent / "examples" / "choose_a_key"
SQL = re.findall(r"^```sql\n(.+?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return Path(shutil.copy(EXAMPLE / "recording.jsonl", tmp_path))


def test_the_output(oncegate: Run, recording: Path) -> None:
    """The output in the guide is that of its command."""
    shown = re.search(r"<!-- output: oncegate (.+?) -->\n```text\n(.*?)```", TEXT, re.DOTALL)
    assert shown
    code, out, _ = oncegate(*shown[1].split())
    assert code == 0
    assert out == shown[2]


def test_the_costs(oncegate: Run, recording: Path) -> None:
    """The numbers that the guide names below the output are those of the recording."""
    found = json.loads(oncegate("analyze", "recording.jsonl", "--output", "json")[1])
    judged = {each["strategy"]: each for each in found["strategies"]}
    assert judged["entity + type + time"]["lost"] == 5
    assert found["possible_copies"] == judged["content"]["may_be_lost"] == 2
    assert judged["envelope id"]["lost"] == 16
    assert judged["envelope id"]["missed"] > 0
    assert judged["auto"]["inferred_caught"] + 4 == found["inferred_copies"]


def test_commands_exist() -> None:
    """Every command in the guide exists, with its options."""
    typed = re.findall(r"^ {4}(oncegate [a-z].+)$", TEXT, re.MULTILINE)
    assert len(typed) >= 6
    for command in typed:
        test_docs.test_commands_exist(command)


def test_every_option_is_in_the_guide() -> None:
    """The guide has all options, except those of every command."""
    options = {each for parameter in cli.commands["analyze"].params for each in parameter.opts if "read" not in each}
    assert options - {"files", "--redact"} <= set(re.findall(r"--[a-z]+(?:-[a-z]+)*", TEXT))


def test_links_lead_somewhere() -> None:
    """The links of the guide have targets."""
    test_guide.test_links_lead_somewhere(PAGE)


def test_the_query(oncegate: Run, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query of the guide counts over two parts what the command counts over the whole recording; a body that is
    published twice without an event time counts once, and an echo has another body."""
    lines = recording.read_text().splitlines(keepends=True)
    for part, some in (("1", lines[:100]), ("2", lines[100:])):
        (tmp_path / f"part-{part}.jsonl").write_text("".join(some))
        assert oncegate("analyze", f"part-{part}.jsonl", "--export", f"part-{part}.parquet")[0] == 0
    monkeypatch.chdir(tmp_path)
    copies, caught, lost = duckdb.execute(SQL[0]).fetchall()[0]
    assert copies == 140
    assert (caught, lost) == counted_by_hand(oncegate, tmp_path)
    assert lost > 5


def counted_by_hand(oncegate: Run, folder: Path) -> tuple[int, int]:
    """The same counts, made by SQLite from one export of the whole recording as CSV."""
    assert oncegate("analyze", "recording.jsonl", "--export", "all.csv")[0] == 0
    rows = duckdb.read_csv(str(folder / "all.csv"), all_varchar=True).select("entity_time, certain, body").fetchall()
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("create table digests (key, certain, body)")
        db.executemany("insert into digests values (?, ?, ?)", rows)
        # The query for Athena, in the functions that SQLite shares with it.
        query = (
            SQL[1]
            .partition("with keyed")[2]
            .replace("select entity_time as key, certain, body from digests", "select * from digests")
        )
        query = re.sub(r"if\(key is null, null, (key \|\| \w+)\)", r"\1", query)
        _, caught, lost = db.execute(f"with keyed{query}").fetchone()
    return caught, lost


def test_the_example(oncegate: Run, recording: Path, tmp_path: Path) -> None:
    """The recording is that of its seed, and the report is that of the recording."""
    command = re.search(r"oncegate (simulate .+)", (EXAMPLE / "README.md").read_text())
    assert command
    assert oncegate(*command[1].replace("recording.jsonl", "again.jsonl").split())[0] == 0
    assert (tmp_path / "again.jsonl").read_bytes() == recording.read_bytes()
    assert oncegate("analyze", "recording.jsonl", "--html", "report.html")[0] == 0
    assert (tmp_path / "report.html").read_text() == (EXAMPLE / "report.html").read_text()
