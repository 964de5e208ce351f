"""The log: writing never blocks the service, and clients cannot flood it."""

import asyncio
import fcntl
import logging
import os
import re
from pathlib import Path

import pytest

from oncegate.service.log import RateLimitedWarning, handler_for
from tests.service.protocols import in_a_loop
from tests.service.running import Service
from tests.signatures.sending import whsec


def test_dropped_lines_are_counted() -> None:
    """A full pipe blocks no caller; when it is read again, the log has the number of dropped lines."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(reads), os.fdopen(writes, "w") as stream:
        handler = handler_for(stream)
        for number in range(2_000):
            handler.handle(logging.LogRecord("x", logging.WARNING, "x", 0, "line %d", (number,), None))
        handler.flush()
        read = b""
        while read.count(b'"line ') + dropped_in(read) < 2_000:
            read += os.read(reads, 65536)
    numbers = [int(number) for number in re.findall(rb'"line (\d+)"', read)]
    assert numbers == list(range(len(numbers)))
    assert 1_000 <= len(numbers) == 2_000 - dropped_in(read) < 1_500


@in_a_loop
async def test_repeated_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Of repeated warnings a few are written, then the number of the others, and a few again in the next interval."""
    warn = RateLimitedWarning(logging.getLogger("x"), most=2, every=0.05)
    for number in range(10):
        warn("refused %d", number)
    while len(caplog.messages) < 3:
        await asyncio.sleep(0.001)
    warn("refused %d", 10)
    assert caplog.messages == ["refused 0", "refused 1", "refused 9 (8 more like it within 0.05 s)", "refused 10"]


def test_rejected_signatures(tmp_path: Path) -> None:
    """Requests with an invalid signature write a few log lines, no matter how many there are."""
    toml = '[route.crm]\nsignature = "standard-webhooks"\nsecret_env = "CRM_SECRET"\n'
    with Service(tmp_path, toml=toml, environ={"CRM_SECRET": whsec(1)}) as service:
        assert {service.post("{}", "/events/crm").status_code for _ in range(50)} == {401}
        assert service.stderr().count("rejected a request from 127.0.0.1") == 5


def dropped_in(read: bytes) -> int:
    """How many lines these say were dropped."""
    return sum(int(count) for count in re.findall(rb"the log was not read: lines were dropped \((\d+)\)", read))
