"""The quickstart: one command, five deliveries of one event, one effect."""

import re
import subprocess
import sys
from pathlib import Path

from tests.examples.readme import EXAMPLES
from tests.stores.dynamo_server import executable


def test_it_does_what_it_says(tmp_path: Path) -> None:
    """Four of five deliveries are duplicates in any wrapping, and the last line is the one on the page."""
    executable()
    command = [sys.executable, str(EXAMPLES / "quickstart" / "run.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("created  ") == 6
    assert len(re.findall(r"^sent: ", done.stdout, re.MULTILINE)) == 5
    acked = re.findall(r"^(processed|duplicate)  ", done.stdout, re.MULTILINE)
    assert sorted(acked) == ["duplicate"] * 4 + ["processed"]
    page = (EXAMPLES / "quickstart" / "README.md").read_text()
    assert done.stdout.splitlines()[-1] in [line.strip() for line in page.splitlines()]
