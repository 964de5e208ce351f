"""Run the command of a guide that publishes events to a bus."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.service.running import Service


@contextmanager
def publishing(guide: str, folder: Path, places: Mapping[str, str]) -> Iterator[None]:
    """Run the command `oncegate serve --publish …` of a guide on a free port, and post one event to it. `places` maps
    the address and the names in the command to those of the test."""
    (command,) = re.findall(r"^    (oncegate serve --publish .*)$", guide, re.MULTILINE)
    for written, real in places.items():
        assert written in command
        command = command.replace(written, real)
    with Service(folder, *shlex.split(command)[2:], handled=False) as service:
        assert service.post({"id": "evt-1", "type": "call.ended"}).status_code == 200
        yield
        assert service.stop() == 0, service.stderr()
