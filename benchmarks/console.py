"""Measure what an open console costs the webhooks of a service."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Sizes
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from benchmarks.service import LoadResult, load, started

_SERVE = ["-m", "oncegate", "serve", "--port", "0", "--handler", "log", "--log", "off"]
_STORE = ["--store", "sqlite:///console.db"]
_TOKEN = "a token of the benchmark"  # noqa: S105  # the service listens on 127.0.0.1 only


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    """One service gets the same load in turns, with a viewer of the console and without."""
    progress.stage("webhooks with an open console")
    os.environ["ONCEGATE_CONSOLE_TOKEN"] = _TOKEN
    rounds: list[dict[str, LoadResult]] = []
    try:
        with started(folder, "console", [*_SERVE, *_STORE]) as url:
            for number in range(1 - sizes.warm_ups, sizes.rounds + 1):
                progress.step(f"round {number} of {sizes.rounds}" if number > 0 else "warming up")
                closed = load(url, sizes.http_requests)
                with _viewer(url):
                    rounds.append({"closed": closed, "open": load(url, sizes.http_requests)})
    finally:
        del os.environ["ONCEGATE_CONSOLE_TOKEN"]
    counted = rounds[sizes.warm_ups :]
    return [
        Row(
            "webhooks stored and run, p99, console and live tail open",
            "ms",
            statistics.median(1e3 * result["open"]["p99"] for result in counted),
            statistics.median(1e3 * result["closed"]["p99"] for result in counted),
            "console closed",
            statistics.median(result["open"]["p99"] / result["closed"]["p99"] for result in counted),
            Aim("at most", 1.5),
        )
    ]


@contextmanager
def _viewer(url: str) -> Iterator[None]:
    """Run a viewer of the console. Fails if the viewer has loaded no page or has read nothing of the live tail."""
    command = [sys.executable, "-m", "benchmarks.viewer", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as viewer:
        assert viewer.stdin is not None
        assert viewer.stdout is not None
        assert viewer.stdout.readline() == "logged in\n"
        yield
        viewer.stdin.close()
        seen = json.loads(viewer.stdout.readline())
        assert seen["pages"] > 0, seen
        assert seen["tail"] > 0, seen
