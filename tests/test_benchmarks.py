"""The benchmarks run. The tests do not check the figures: a busy machine would fail them."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.__main__ import PARTS, main

ROOT = Path(__file__).parent.parent
HAS_STATM = Path("/proc/self/statm").exists()  # without it the memory of a key is not measured


ROWS = {
    "sqlite": 1,
    "postgres": 2,
    "memory": 1 + HAS_STATM,
    "reading": 1,
    "gate": 3,
    "redis": 9,
    "sqs": 1,
    "service": 4,
    "inbox": 1,
    "journal": 3,
    "console": 1,
    "analysis": 2,
    "imports": 1,
    "lambda": 1,
}


@pytest.mark.filterwarnings("ignore:RedisCachePersistenceLayer:DeprecationWarning")
@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_measured(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A quick run of a part prints its rows, with positive figures."""
    with patch.dict(os.environ):  # the parts set variables for the processes that they start
        assert measured(part, capsys) == ROWS[part]


def test_the_large_store_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """So does a quick run of the benchmark on many keys."""
    assert measured("--scale", capsys) == 2


def measured(option: str, capsys: pytest.CaptureFixture[str]) -> int:
    """The number of rows that a quick run prints. Each has positive figures."""
    gc.freeze()  # a benchmark collects garbage before each turn; the objects of all other tests would take long
    try:
        main(["--quick", "--output", "json", option])
    finally:
        gc.unfreeze()
    table = json.loads(capsys.readouterr().out)
    assert all(row["ours"] > 0 and row["other"] > 0 and row["ratio"] > 0 for row in table)
    return len(table)


def test_the_command() -> None:
    """`python -m benchmarks` prints a table."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "sqlite"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "SQLite" in run.stdout
