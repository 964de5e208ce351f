"""The programs of tutorials and the Oncegate files that replace them, as docs/guide/from-tutorials.md shows them."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.test_guide import DOCS

PAGE = DOCS / "guide" / "from-tutorials.md"
TEXT = PAGE.read_text()
SECTIONS: dict[str, str] = dict(re.findall(r"^## ([^\n]+)\n(.+?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))
LAMBDA, SQS, WEBHOOKS, LOGICAL, RACES = list(SECTIONS)[:5]
SAMPLES = {
    each["name"]: each["document"]
    for each in json.loads((Path(__file__).parents[1] / "data" / "events.json").read_text())
}
OURS = re.compile(r"```python\n(.+?)```", re.DOTALL)
THEIRS = re.compile(r"```py\n(.+?)```", re.DOTALL)


def file_of(section: str) -> str:
    """The Oncegate file of a section: its first block of Python."""
    return str(OURS.findall(SECTIONS[section])[0])


def examples() -> list[str]:
    """All other blocks of Python. Each of them is a program."""
    blocks = [block for text in SECTIONS.values() for block in OURS.findall(text)]
    return [block for block in blocks if block not in map(file_of, list(SECTIONS)[:5])]


def program_of(section: str, number: int = 0) -> str:
    """A program of a tutorial."""
    return str(THEIRS.findall(SECTIONS[section])[number])


def loaded(code: str, **names: Any) -> dict[str, Any]:
    """Run a program in this process. Returns its names. `names` are the names that the program does not define."""
    namespace = {"__name__": "program", **names}
    exec(compile(code, "<page>", "exec"), namespace)  # noqa: S102  # the code of our own documentation
    return namespace


def output_of(code: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a program as a process. Returns its output."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=dict(environment), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def event(name: str = "customer end", **members: Any) -> Any:
    """A copy of a sample, in an envelope with other members."""
    return deepcopy(SAMPLES[name]) | members


def failing_once(effects: list[Any]) -> Callable[[Any], None]:
    """An effect that fails the first time."""
    attempts: list[Any] = []

    def process(detail: Any) -> None:
        attempts.append(detail)
        if len(attempts) == 1:
            raise ValueError("boom")
        effects.append(detail)

    return process
