"""Compare webhooks that are stored durably and run with the same server and an endpoint that only parses."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Sizes
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row

_START_WITHIN = 30.0
_CONNECTIONS = 64

# The result of one run of the load generator.
LoadResult = dict[str, Any]


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    progress.stage(f"webhooks, {_CONNECTIONS} connections")
    serve = ["-m", "oncegate", "serve", "--port", "0", "--handler", "log", "--log", "off"]
    serve += ["--store", "sqlite:///webhooks.db"]
    bare_server, keeping_server = ["-m", "benchmarks.bare"], ["-m", "benchmarks.bare", "--keeping"]
    with (
        started(folder, "bare", bare_server) as bare,
        started(folder, "keeping", keeping_server) as keeping,
        started(folder, "service", serve) as service,
    ):
        rounds: list[dict[str, LoadResult]] = []
        for number in range(1 - sizes.warm_ups, sizes.rounds + 1):
            progress.step(f"round {number} of {sizes.rounds}" if number > 0 else "warming up")
            rounds.append(
                {
                    "bare": load(bare, sizes.http_requests),
                    "new": load(service, sizes.http_requests),
                    "stored": load(keeping, sizes.http_requests),
                    "storm": load(service, sizes.http_requests, "--storm"),
                }
            )
    counted = rounds[sizes.warm_ups :]
    return [
        _rate("webhooks stored and run, SQLite FULL", "new", counted, Aim("at least", 0.35)),
        _rate("webhooks stored, not run", "stored", counted),
        _latency(counted),
        _rate("webhooks, storm of duplicates", "storm", counted, Aim("at least", 0.5)),
    ]


def _rate(name: str, ours: str, rounds: Sequence[dict[str, LoadResult]], aim: Aim | None = None) -> Row:
    return Row(
        name,
        "requests/s",
        _median(rounds, lambda result: result[ours]["rate"]),
        _median(rounds, lambda result: result["bare"]["rate"]),
        "parsed only",
        _median(rounds, lambda result: result[ours]["rate"] / result["bare"]["rate"]),
        aim,
    )


def _latency(rounds: Sequence[dict[str, LoadResult]]) -> Row:
    return Row(
        "webhooks stored and run, p99",
        "ms",
        _median(rounds, lambda result: 1e3 * result["new"]["p99"]),
        _median(rounds, lambda result: 1e3 * result["bare"]["p99"]),
        "parsed only",
        _median(rounds, lambda result: result["new"]["p99"] / result["bare"]["p99"]),
        Aim("at most", 3),
    )


def _median(rounds: Sequence[dict[str, LoadResult]], figure: Callable[[dict[str, LoadResult]], float]) -> float:
    return statistics.median(figure(result) for result in rounds)


def load(url: str, requests: int, *options: str) -> LoadResult:
    command = [sys.executable, "-m", "benchmarks.load", url, "--requests", str(requests), *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: LoadResult = json.loads(done.stdout)
    assert result["codes"] == {"200": requests}, result["codes"]
    return result


@contextmanager
def started(folder: Path, name: str, command: list[str]) -> Iterator[str]:
    """Start a server in its own process. Returns its address, which is the first line that it prints."""
    output = folder / f"{name}.out"
    root = Path(__file__).parent.parent
    with output.open("w") as out, _running([sys.executable, *command], folder, out, root) as process:
        deadline = time.monotonic() + _START_WITHIN
        while "http://" not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)
        yield "http://" + output.read_text().partition("http://")[2].split()[0].partition("/")[0]


@contextmanager
def _running(command: list[str], folder: Path, out: Any, root: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(command, cwd=folder, stderr=out, stdout=subprocess.DEVNULL, env=_with(root))
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _with(root: Path) -> dict[str, str]:
    """The environment with a path on which the benchmarks are found from any folder."""
    return {**os.environ, "PYTHONPATH": str(root)}
