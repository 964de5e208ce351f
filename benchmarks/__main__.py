"""`python -m benchmarks [PART…]`: print one table of ratios. `--scale`: measure SQLite with a file of ten million
keys."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import (
    analysis,
    console,
    gate,
    imports,
    inbox,
    journal,
    lambdas,
    memory,
    postgres,
    reading,
    redis,
    scale,
    service,
    sqlite,
    sqs,
)
from benchmarks.measure import Sizes
from benchmarks.progress import Progress
from benchmarks.report import Row, as_json, show

# In the repository, not in the temporary folder of the system: that may be in memory, where a sync costs nothing.
FOLDER = Path(__file__).parent.parent / ".bench"

PARTS: Mapping[str, Callable[[Sizes, Path, Progress], list[Row]]] = {
    "sqlite": sqlite.rows,
    "postgres": postgres.rows,
    "memory": memory.rows,
    "reading": reading.rows,
    "gate": gate.rows,
    "redis": redis.rows,
    "sqs": sqs.rows,
    "service": service.rows,
    "inbox": inbox.rows,
    "journal": journal.rows,
    "console": console.rows,
    "analysis": analysis.rows,
    "imports": imports.rows,
    "lambda": lambdas.rows,
}

FULL = Sizes(
    rounds=15,
    warm_ups=1,
    sqlite_events=20_000,
    postgres_events=10_000,
    memory_events=100_000,
    memory_keys=1_000_000,
    concurrent_events=10_000,
    read_events=20_000,
    redis_events=10_000,
    redis_singles=500,
    redis_keys=100_000,
    redis_concurrent=5_000,
    sqs_events=1_000,
    http_requests=20_000,
    inbox_seconds=20.0,
    journal_rows=1_000_000,
    analyzed_deliveries=1_000_000,
    imports=15,
    scale_keys=10_000_000,
)
QUICK = Sizes(
    rounds=1,
    warm_ups=0,
    sqlite_events=200,
    postgres_events=200,
    memory_events=500,
    memory_keys=5_000,
    concurrent_events=200,
    read_events=200,
    redis_events=200,
    redis_singles=20,
    redis_keys=500,
    redis_concurrent=100,
    sqs_events=20,
    http_requests=100,
    inbox_seconds=0.3,
    journal_rows=1_000,
    analyzed_deliveries=300,
    imports=1,
    scale_keys=2_000,
)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    sizes = QUICK if arguments.quick else FULL
    if arguments.rounds is not None:
        sizes = replace(sizes, rounds=arguments.rounds)
    if arguments.deliveries is not None:
        sizes = replace(sizes, analyzed_deliveries=arguments.deliveries)
    parts = arguments.parts or list(PARTS)
    if unknown := [part for part in parts if part not in PARTS]:
        sys.exit(f"unknown part {unknown[0]}; use {', '.join(PARTS)}")
    rows = _measured(sizes, Progress(sys.stderr), parts, scaled=arguments.scale, keep=not arguments.quick)
    if arguments.output == "json":
        print(as_json(rows))
    else:
        show(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("parts", metavar="PART", nargs="*", help=f"measure only these: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help="how many turns Oncegate and its competitor take")
    parser.add_argument("--deliveries", type=int, help="how many deliveries `analysis` reads (1.5 kB each, on disk)")
    parser.add_argument("--scale", action="store_true", help="measure SQLite on 10 M keys; the first run builds them")
    parser.add_argument("--quick", action="store_true", help="few events: checks that the benchmarks run")
    parser.add_argument("--output", choices=["table", "json"], default="table", help="the format (default: table)")
    return parser


def _measured(sizes: Sizes, progress: Progress, parts: Sequence[str], *, scaled: bool, keep: bool) -> list[Row]:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as passing, progress:
        folder = Path(passing)
        if scaled:
            return scale.rows(sizes, FOLDER if keep else folder, folder, progress)
        return [row for part in parts for row in PARTS[part](sizes, folder, progress)]


if __name__ == "__main__":
    main()
