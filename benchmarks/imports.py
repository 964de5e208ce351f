"""Compare the import of oncegate with that of a well-known idempotency library, each in a new process."""

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.measure import Sizes, by_turns, median, timed
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row

_STATEMENTS = {
    "bare": "pass",
    "ours": "from oncegate import Gate, keys, open_store, read",
    "theirs": "import aws_lambda_powertools.utilities.idempotency",
}


def rows(sizes: Sizes, _folder: Path, progress: Progress) -> list[Row]:
    if importlib.util.find_spec("aws_lambda_powertools") is None:
        raise SystemExit("this part needs Powertools for comparison: pip install aws-lambda-powertools boto3")
    progress.stage("imports")
    # The round to warm up writes the bytecode and is not counted.
    turns = {name: partial(started, statement) for name, statement in _STATEMENTS.items()}
    rounds = by_turns(turns, sizes.imports, sizes.warm_ups, progress)
    return [
        Row(
            "import, bare interpreter subtracted",
            "ms",
            median(rounds, lambda took: 1e3 * (took["ours"] - took["bare"])),
            median(rounds, lambda took: 1e3 * (took["theirs"] - took["bare"])),
            "Powertools idempotency",
            median(rounds, lambda took: (took["ours"] - took["bare"]) / (took["theirs"] - took["bare"])),
            Aim("at most", 0.35),
        )
    ]


def started(statement: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return timed(lambda: subprocess.run([sys.executable, "-c", statement], check=True, env=environment))
