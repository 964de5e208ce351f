"""What the service says of itself: never at the cost of events, and never as often as strangers like."""

import fcntl
import logging
import os
import re

from oncegate.service.log import handler_for


def test_lines_that_are_not_read_are_counted() -> None:
    """A full pipe holds up nobody; when it is read again, the log says how many lines were dropped."""
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


def dropped_in(read: bytes) -> int:
    """How many lines these say were dropped."""
    return sum(int(count) for count in re.findall(rb"the log was not read: lines were dropped \((\d+)\)", read))
