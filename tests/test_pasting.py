"""Each block of the README and of the tutorial works in a fresh clone after the blocks that its text names."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from tests.stores.servers import free_port, missing

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")
_COMMANDS = ("make ", "curl ", ".venv/", "oncegate ", "pip ", ". ")
_SERVERS = ("make run", ".venv/bin/oncegate serve")
_REFERENCE = r"(?:`[^`]+`|\[[^\]]+\]\(#[^)]+\))"
_NEEDS = re.compile(rf"\b(?:[Aa]fter|[Ww]hile|needs(?: the [a-z ]+ of)?)\s({_REFERENCE}(?:,? and {_REFERENCE})*)")
_PATIENCE = 15.0  # seconds


class Block(NamedTuple):
    """A block of commands, or a program with the name of its file. `text` is what the reader reads before the block:
    the beginning of the section, and the text since the previous block. `shown` is the beginning of the output, if the
    output follows the commands directly."""

    section: str
    content: str
    text: str
    file: str | None = None
    shown: str = ""


def blocks(page: str) -> list[Block]:
    """The blocks of a page to paste. Blocks that show an output are left out."""
    found = []
    for section in re.split(r"^#+ ", page, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        parts = re.split(r"((?:^ {4}.+\n)+|^```\w*\n[\s\S]+?^```$)", body, flags=re.MULTILINE)
        for before, block, after, following in zip(
            parts[::2], parts[1::2], parts[2::2], [*parts[3::2], ""], strict=False
        ):
            text = " ".join((parts[0] if before is not parts[0] else "", before)).replace("\n", " ")
            if block.startswith("```python"):
                name = re.search(r"[Ss]ave (?:this|it) as `(\S+?)`", before.replace("\n", " "))
                found.append(Block(anchor, block[10:-3], text, name[1] if name else "case.py"))
            elif (content := re.sub(r"^ {4}", "", block.strip("\n"), flags=re.MULTILINE)).startswith(_COMMANDS):
                shown = " ".join(following.split()[:2]) if not after.strip() else ""
                found.append(Block(anchor, content, text, shown=shown))
    return found


def needed(block: Block, page: list[Block]) -> list[Block]:
    """The blocks that must run before this block, in the order of the page."""
    found: list[Block] = []
    earlier = page[: page.index(block)]
    for references in _NEEDS.findall(block.text):
        for command, anchor in re.findall(r"`([^`]+)`|\(#([^)]+)\)", references):
            if command:
                fits = [each for each in earlier if command == each.file or each.content.startswith(command)]
                assert fits, f"no block before this one is {command}:\n{block.content}"
                found += [*needed(fits[-1], page), fits[-1]]
            else:
                assert anchor in {each.section for each in earlier}, f"no block of {anchor} is before this block"
                found += [one for each in earlier if each.section == anchor for one in (*needed(each, page), each)]
    return [each for each in page if each in found]


class Clone:
    """The files of a clone that the commands use. `.venv` exists after the first `make`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._service: subprocess.Popen[bytes] | None = None
        self._env = {**os.environ, "ONCEGATE_SERVE_PORT": str(self._port)}
        for name in ("Makefile", "pyproject.toml", "requirements.lock"):
            shutil.copy(ROOT / name, folder)

    def run(self, block: Block) -> None:
        if block.file is not None:
            self.stop()  # the pages say so where a service runs
            (self._folder / block.file).write_text(block.content)
            return
        commands = block.content.replace("8080", str(self._port))
        if commands.startswith("make "):
            self._set_up()
        if commands.startswith(_SERVERS):
            self._serve(commands)
        else:
            self._execute(commands, block.shown)

    def _set_up(self) -> None:
        """Do what `make` does once, without a download: give the clone the environment of this process."""
        environment = self._folder / ".venv"
        environment.mkdir(exist_ok=True)
        for name in ("bin", "lib", "pyvenv.cfg"):
            if not (environment / name).exists():
                (environment / name).symlink_to(Path(sys.prefix) / name)
        (environment / ".ready").touch()

    def _serve(self, command: str) -> None:
        self.stop()
        self._service = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self._folder,
            env=self._env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            assert self._service.poll() is None, f"{command} ended"
            assert time.monotonic() < deadline, f"{command} did not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self._port}/healthz"
            return httpx2.get(url, trust_env=False, verify=False).status_code == 200
        except httpx2.TransportError:
            return False

    def _execute(self, commands: str, shown: str) -> None:
        """Run the commands until they succeed and print what is shown: a reader waits some seconds for the service."""
        deadline = time.monotonic() + (_PATIENCE if self._service else 0)
        while True:
            done = subprocess.run(
                ["/bin/sh", "-ec", commands],
                cwd=self._folder,
                env=self._env,
                capture_output=True,
                text=True,
                timeout=60,
            )
            if done.returncode == 0 and done.stdout.startswith(shown):
                return
            assert time.monotonic() < deadline, f"{commands}\n{done.stdout}{done.stderr}"
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop the service as Ctrl-C does: the signal goes to all processes of the terminal."""
        if self._service is not None:
            os.killpg(self._service.pid, signal.SIGINT)
            self._service.wait(_PATIENCE)
            self._service = None


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    for program in ("make", "curl"):
        if shutil.which(program) is None:
            missing(program, f"apt-get install {program}")
    clone = Clone(tmp_path)
    yield clone
    clone.stop()


ALL = {page.stem: blocks(page.read_text()) for page in PAGES}


def sequences(page: list[Block]) -> list[list[Block]]:
    """For each block of commands, the blocks that it needs and the block itself. A sequence with which another sequence
    begins is left out: the other runs it."""
    found = [[*needed(block, page), block] for block in page if block.file is None]
    return [each for each in found if not any(each == other[: len(each)] for other in found if other is not each)]


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, ALL[page].index(sequence[-1])) for page in ALL for sequence in sequences(ALL[page])],
)
def test_a_block_alone(page: str, number: int, clone: Clone) -> None:
    """The commands succeed after the blocks that the text before them names, and after no other blocks."""
    block = ALL[page][number]
    for each in (*needed(block, ALL[page]), block):
        clone.run(each)


def test_the_blocks_are_found() -> None:
    """The check reads each block of the two pages, and finds what the text before a block names."""
    assert [len(found) for found in ALL.values()] == [4, 16]
    assert [block.file for block in ALL["tutorial"] if block.file] == ["app.py", "app.py", "first.py"]
    page = blocks("## One\n\n    make run\n\nWhile `make run` runs:\n\n    curl x\n\nThen:\n\n    curl y\n")
    assert [len(needed(block, page)) for block in page] == [0, 1, 0]
    assert sequences(page) == [[page[0], page[1]], [page[2]]]
    for found in ALL.values():
        run = [block for sequence in sequences(found) for block in sequence]
        assert all(block in run for block in found if block.file is None)
