"""The pages for operators and on single senders are true: names, figures and commands."""

import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Gate
from oncegate.gate import observers

DOCS = Path(__file__).parent.parent / "docs"
OPERATIONS = (DOCS / "operations.md").read_text()
SENDERS = ["genesys-open-messaging", "genesys-eventbridge", "cxone", "standard-webhooks"]


@pytest.mark.parametrize("sender", SENDERS)
def test_senders(sender: str) -> None:
    """The Python on the page of a sender runs, and prints what stands below it."""
    page = (DOCS / "guide" / f"{sender}.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.+?)```", page, re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    *_, shown = re.findall(r"^```\n\n((?:    [^\n]+\n)+)", page, re.MULTILINE)
    assert done.stdout == re.sub(r"^    ", "", shown, flags=re.MULTILINE)


def test_every_notice_is_listed() -> None:
    """Each name that a gate counts by is on the page, and no other."""
    drawn = re.findall(r"^    ([a-z]+\.[a-zA-Z_]+) ", observers.__doc__ or "", re.MULTILINE)
    policies = re.search(r"a policy was applied: ([a-z_, \n]+);", observers.__doc__ or "")
    assert policies
    names = {name for name in drawn if name not in ("event.STATUS", "policy.NAME")}
    names |= {f"policy.{name}" for name in re.findall(r"[a-z_]+", policies[1])} | set(observers._NAMES.values())
    table = OPERATIONS.partition("## What is counted")[2].partition("At `/metrics`")[0]
    assert set(re.findall(r"`([a-z]+\.[a-z_]+)`", table)) - {"gate.counts"} == names


def test_backup(tmp_path: Path) -> None:
    """The statement on the page backs a file up while it is written to, and a gate goes on from the copy."""
    (statement,) = re.findall(r'sqlite3 oncegate.db "(VACUUM .+)"', OPERATIONS)
    begun, enough = threading.Event(), threading.Event()

    def work() -> None:
        with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate:
            number = 0
            while not enough.is_set():
                gate.run_batch([{"id": f"evt-{number + each}"} for each in range(100)], lambda event: None)
                number += 100
                begun.set()

    worker = threading.Thread(target=work)
    worker.start()
    assert begun.wait(30)
    with closing(sqlite3.connect(tmp_path / "oncegate.db")) as db:
        db.execute(statement.replace("/backup/oncegate-2026-02-03.db", f"{tmp_path}/copy.db"))
    enough.set()
    worker.join()
    with closing(Gate(f"sqlite:///{tmp_path}/copy.db", remember=None)) as copy:
        assert copy.run({"id": "evt-0"}, lambda event: None).status == "duplicate"
        assert copy.run({"id": "evt-new"}, lambda event: None).status == "processed"


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the lines on the page need the program sqlite3")
def test_saving_a_damaged_file(tmp_path: Path) -> None:
    """The lines on the page save what can be read of a damaged file, and a gate goes on from what they saved."""
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db")) as gate:
        gate.run_batch([{"id": f"evt-{number}"} for number in range(1_000)], lambda event: None)
    content = bytearray((tmp_path / "oncegate.db").read_bytes())
    content[-8192:] = b"x" * 8192
    (tmp_path / "oncegate.db").write_bytes(content)
    (lines,) = re.findall(r"```sh\n(   umask .+?)   ```", OPERATIONS, re.DOTALL)
    subprocess.run(["/bin/sh", "-c", lines], cwd=tmp_path, check=True, timeout=60, capture_output=True)
    with closing(Gate(f"sqlite:///{tmp_path}/saved.db", remember=None)) as gate:
        outcomes = gate.run_batch([{"id": f"evt-{number}"} for number in range(1_000)], lambda event: None)
    assert {outcome.status for outcome in outcomes} == {"duplicate", "processed"}
    assert oct((tmp_path / "saved.db").stat().st_mode)[-3:] == "600"
