"""The demo: the service with its console, simulated traffic, and a verdict."""

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import httpx2

from tests.examples.readme import EXAMPLES
from tests.stores.servers import until

COMMAND = [sys.executable, str(EXAMPLES / "demo" / "demo.py")]


def test_it_ends_with_a_verdict(tmp_path: Path) -> None:
    """Every kind of traffic occurs, each event takes effect once, and no file is left."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "ONCEGATE_STORE": "memory://"}
    command = [*COMMAND, "--seconds", "3", "--rate", "40", "--once"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"Console  http://127\.0\.0\.1:\d+/console", lines[0])
    assert re.fullmatch(r"Token    \S{16}", lines[1])
    assert re.fullmatch(r"Exactly once: 120 events, 120 effects; in order for each of \d+ entities\.", lines[-1])
    counts = [line for line in lines if re.match(r" *\d+ s  ", line)][-1]
    assert re.search(r" [1-9]\d* processed +[3-9]\d\d duplicate +[1-9]\d* conflict +[1-9]\d* failed", counts)
    assert [line for line in lines if len(line) > 80] == []
    assert list(tmp_path.iterdir()) == []


def test_it_stays_until_ctrl_c(tmp_path: Path) -> None:
    """After the verdict, the service still answers. Ctrl-C stops the service and deletes its files."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "--seconds", "1"], env=environment, stdout=file, stderr=file, start_new_session=True
        )
    try:
        until(lambda: "runs until Ctrl-C" in output.read_text(), "the end of the traffic", 60)
        found = re.search(r"http://\S+/console", output.read_text())
        assert found
        assert httpx2.get(found[0], trust_env=False, verify=False).status_code == 401
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends the signal to all processes of the group
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert output.read_text().endswith("The service is stopped, and its files are deleted.\n")
    assert list(tmp_path.iterdir()) == [output]


def test_a_line_that_is_not_complete(tmp_path: Path) -> None:
    """The demo reads the log while the service writes it. The rest of a line is read with the next lines."""
    log = tmp_path / "log.jsonl"
    log.write_bytes('{"status":"accepted","key":"é'.encode()[:-1])
    with log.open("rb") as file:
        counts = runpy.run_path(COMMAND[1])["Log"](file)
        counts.read()
        assert counts.waiting == set()
        with log.open("ab") as end:
            end.write('é"}\n'.encode()[1:])
        counts.read()
        assert counts.waiting == {"é"}
