"""The benchmarks run. The tests do not check the figures: a busy machine would fail them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import PARTS

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


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_measured(part: str) -> None:
    """A quick run of a part prints its rows, with positive figures."""
    assert measured(part) == ROWS[part]


def test_the_large_store_is_measured() -> None:
    """So does a quick run of the benchmark on many keys."""
    assert measured("--scale") == 2


def measured(option: str) -> int:
    """The number of rows that a quick run prints. Each has positive figures."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", "json", option]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    table = json.loads(run.stdout)
    assert all(row["ours"] > 0 and row["other"] > 0 and row["ratio"] > 0 for row in table)
    return len(table)
