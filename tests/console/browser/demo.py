"""The demo as the service under test: its store and journal have traffic of every kind."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from msgspec import Struct

from tests.examples.readme import EXAMPLES
from tests.stores.servers import stop, until

# A hundred contact-centre events, with copies of every kind.
_TRAFFIC = ("--seconds", "1", "--rate", "100", "--seed", "30")
_PATIENCE = 300.0


class Demo(Struct, frozen=True):
    """A running service. `url` is the address of the service, and `console` the address of its first page. `folder` has
    the files of the service."""

    url: str
    token: str
    folder: Path

    @property
    def console(self) -> str:
        return f"{self.url}/console"

    def send(self, *bodies: object, route: str = "invoices") -> list[dict[str, Any]]:
        """Send events of plain JSON, or raw bytes. Returns the answers."""
        answers: list[dict[str, Any]] = []
        with httpx2.Client(base_url=self.url, timeout=30, trust_env=False) as client:
            for body in bodies:
                path = f"/events/{route}"
                answer = client.post(path, content=body) if isinstance(body, bytes) else client.post(path, json=body)
                assert answer.status_code in (httpx2.codes.OK, httpx2.codes.BAD_REQUEST), answer.text
                answers.append(answer.json())
        return answers


@contextmanager
def running_demo(folder: Path, *options: str) -> Iterator[Demo]:
    """Run the demo until its traffic has ended, and yield the service that stays."""
    output = folder / "output"
    command = [sys.executable, str(EXAMPLES / "demo" / "demo.py"), *_TRAFFIC, *options]
    with output.open("wb") as file:
        process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(folder)}, stdout=file, stderr=file)
    try:
        until(
            lambda: "runs until Ctrl-C" in output.read_text() or process.poll() is not None,
            "the traffic of the demo",
            _PATIENCE,
        )
        found = re.match(r"Console  (http://\S+)/console\nToken    (\S+)\n", output.read_text())
        assert found, output.read_text()
        assert process.poll() is None, output.read_text()
        yield Demo(found[1], found[2], next(folder.glob("oncegate-demo-*")))
    finally:
        stop(process)
