"""Run the commands in the README of an example, in a copy of its folder, on free ports."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.stores.dynamo_server import CREDENTIALS
from tests.stores.servers import free_port, stop

EXAMPLES = Path(__file__).parents[2] / "examples"


class Readme:
    """A copy of the folder of an example, in which its commands run. Commands that end with `&` run in the
    background."""

    def __init__(self, name: str, folder: Path, ports: tuple[int, ...]) -> None:
        self.folder = folder / name
        shutil.copytree(EXAMPLES / name, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self._text = (self.folder / "README.md").read_text()
        self.ports = {port: free_port() for port in ports}
        beside = str(Path(sys.executable).parent)
        self.env = {**os.environ, **CREDENTIALS, "PATH": f"{beside}:{os.environ['PATH']}"}
        self._started: list[subprocess.Popen[bytes]] = []

    def commands(self, heading: str) -> list[str]:
        """The commands of a section, with free ports."""
        section = re.search(rf"^## {heading}\n(.+?)(?=^## |\Z)", self._text, re.DOTALL | re.MULTILINE)
        assert section, heading
        found = re.findall(r"^ {4}(\S.*)$", section[1], re.MULTILINE)
        return [self._placed(command) for command in found if not command.startswith("export ")]

    def _placed(self, command: str) -> str:
        for written, free in self.ports.items():
            command = re.sub(rf"\b{written}\b", str(free), command)
        return command

    def start(self, command: str) -> None:
        """Start a command in the background."""
        shell = ["/bin/sh", "-c", f"exec env {command.removesuffix('&')}"]
        with (self.folder / "output.log").open("ab") as output:
            self._started.append(subprocess.Popen(shell, cwd=self.folder, env=self.env, stdout=output, stderr=output))

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        shell = ["/bin/sh", "-c", command]
        return subprocess.run(shell, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=90)

    def done(self, command: str) -> str:
        """Run a command that must succeed. Returns its output."""
        ran = self.run(command)
        assert (ran.returncode, ran.stderr) == (0, ""), ran
        return ran.stdout

    def effects(self) -> int:
        path = self.folder / "effects.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def log(self) -> str:
        """The last output of all background commands, for the message of a failed test."""
        return (self.folder / "output.log").read_text()[-3_000:]

    def close(self) -> None:
        for process in self._started:
            stop(process)
