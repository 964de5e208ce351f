"""The benchmarks run. The tests do not check the figures: a busy machine would fail them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HAS_STATM = Path("/proc/self/statm").exists()  # without it the memory of a key is not measured


@pytest.mark.parametrize(("options", "rows"), [([], 29 + HAS_STATM), (["--scale"], 2)])
def test_every_row_is_measured(options: list[str], rows: int) -> None:
    """A quick run prints every row, with positive figures."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", "json", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    table = json.loads(run.stdout)
    assert len(table) == rows
    assert all(row["ours"] > 0 and row["other"] > 0 and row["ratio"] > 0 for row in table)
