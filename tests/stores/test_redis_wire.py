"""The wire: how the answer of a server is waited for."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import exceptions as errors

from oncegate.stores.redis import connection
from oncegate.stores.redis.connection import RedisConnection

OK = b"+OK\r\n"


class Made:
    """A connection as redis-py makes it, of which one end is the test's."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def connect(self) -> None:
        """It is."""

    def disconnect(self) -> None:
        self.ours.close()
        self.theirs.close()

    def _get_socket(self) -> socket.socket:
        return self.ours

    def _get_parser(self) -> Any:
        return self

    def parse_error(self, said: str) -> Exception:
        return Exception(said)


class Looks:
    """Finds an answer at the look of this number, and counts the looks; who sleeps finds one."""

    def __init__(self, found_at: float) -> None:
        self.found_at = found_at
        self.count = 0

    def poll(self, timeout: int) -> list[Any]:
        if timeout:
            return ["it"]
        self.count += 1
        return ["it"] if self.count >= self.found_at else []


@contextmanager
def linked(timeout: float = 5.0) -> Iterator[tuple[RedisConnection, socket.socket]]:
    made = Made()
    link = RedisConnection(made, timeout)
    try:
        yield link, made.theirs
    finally:
        link.close()


def looked(link: RedisConnection, theirs: socket.socket, found_at: float) -> int:
    """How often it looked before it read an answer."""
    looks: Any = Looks(found_at)
    link._poll = looks
    theirs.sendall(OK)
    assert link.read() == b"OK"
    return int(looks.count)


def test_an_answer_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is looked for until it is here, at most for a moment; then the next ones are slept for, after every
    look in vain twice as many up to a bound, and after them it is looked for anew."""
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(connection, "_now", lambda: next(ticks) * connection._MOMENT / 10)
    with linked() as (link, theirs):
        assert [looked(link, theirs, found_at) for found_at in (1, 5, 5)] == [1, 5, 5]
        for sleeps in (2, 4, 8, 16, 32, 64, 128, 256, 256):
            assert looked(link, theirs, float("inf")) == 10
            assert [looked(link, theirs, 5) for _ in range(sleeps)] == [0] * sleeps
        assert looked(link, theirs, 5) == 5
        assert looked(link, theirs, float("inf")) == 10
        assert [looked(link, theirs, 5) for _ in range(3)] == [0, 0, 5]


def test_large_batches_are_slept_for() -> None:
    """The answer to much that was asked at once is not looked for, and those to little after it are as before."""
    with linked() as (link, theirs):
        assert looked(link, theirs, 5) == 5
        for size, looks in ((connection._SHORT, 5), (connection._SHORT + 1, 0), (connection._SHORT, 5)):
            link.send(bytes(size))
            assert looked(link, theirs, 5) == looks


def test_long_waits_are_slept() -> None:
    """To wait for a server that takes its time takes nearly no time of the processor."""
    with linked() as (link, theirs):

        def answer_late() -> None:
            for _ in range(100):
                theirs.recv(100)
                time.sleep(0.002)
                theirs.sendall(OK)

        server = threading.Thread(target=answer_late)
        server.start()
        before = time.thread_time()
        for _ in range(100):
            link.send(b"PING\r\n")
            link.read()
        taken = time.thread_time() - before
        server.join()
    assert taken < 100 * connection._MOMENT / 2


@pytest.mark.parametrize("sleeps", [False, True])
def test_signals_put_no_timeout_off(sleeps: bool) -> None:
    """A server that hangs is given up in time, however often a signal's handler runs meanwhile."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with linked(timeout=0.2) as (link, theirs):
            link._to_sleep = int(sleeps)
            late = threading.Timer(2, theirs.sendall, [OK])
            late.start()
            start = time.monotonic()
            with pytest.raises(errors.TimeoutError):
                link.read()
            assert 0.15 < time.monotonic() - start < 1.5
            late.cancel()
            late.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
