"""Connections: how a reply is waited for, interrupts and TLS."""

import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import exceptions as redis_errors

from oncegate import open_store
from oncegate.errors import StoreUnavailable
from oncegate.stores.redis import connection
from oncegate.stores.redis.connection import RedisConnection, execute_on_servers
from oncegate.stores.redis.connection import RedisServer as Server
from oncegate.stores.redis.errors import CommandFailed
from oncegate.stores.redis.settings import RedisSettings
from oncegate.testing.requests import complete, granted
from tests.stores.forking import run
from tests.stores.proxy import Proxy
from tests.stores.redis.helpers import assert_refused
from tests.stores.redis_server import RedisServer
from tests.stores.servers import free_port, missing

OK = b"+OK\r\n"


class FakeConnection:
    """A connection of redis-py whose other end belongs to the test."""

    def __init__(self) -> None:
        self.local, self.peer = socket.socketpair()

    def connect(self) -> None:
        """It is connected already."""

    def disconnect(self) -> None:
        self.local.close()
        self.peer.close()

    def _get_socket(self) -> socket.socket:
        return self.local


class FakePoll:
    """A poll object that finds data at the poll of this number, and counts the polls. A poll that may sleep finds
    data."""

    def __init__(self, data_at: float) -> None:
        self.data_at = data_at
        self.count = 0

    def poll(self, timeout: int) -> list[Any]:
        if timeout:
            return ["it"]
        self.count += 1
        return ["it"] if self.count >= self.data_at else []


@contextmanager
def connected(timeout: float = 5.0) -> Iterator[tuple[RedisConnection, socket.socket]]:
    fake = FakeConnection()
    opened = RedisConnection(fake, timeout)
    try:
        yield opened, fake.peer
    finally:
        opened.close()


def polls_before_reply(opened: RedisConnection, peer: socket.socket, data_at: float) -> int:
    """The number of polls without sleep before a reply was read."""
    polls: Any = FakePoll(data_at)
    opened._poll = polls
    peer.sendall(OK)
    assert opened.read() == b"OK"
    return int(polls.count)


def test_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spin lasts until data arrives, at most _SPIN_TIME. After a spin without data, twice as many replies as the last
    time are waited for without a spin, up to a bound."""
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(connection, "_now", lambda: next(ticks) * connection._SPIN_TIME / 10)
    with connected() as (opened, peer):
        assert [polls_before_reply(opened, peer, data_at) for data_at in (1, 5, 5)] == [1, 5, 5]
        for skips in (2, 4, 8, 16, 32, 64, 128, 256, 256):
            assert polls_before_reply(opened, peer, float("inf")) == 10
            assert [polls_before_reply(opened, peer, 5) for _ in range(skips)] == [0] * skips
        assert polls_before_reply(opened, peer, 5) == 5
        assert polls_before_reply(opened, peer, float("inf")) == 10
        assert [polls_before_reply(opened, peer, 5) for _ in range(3)] == [0, 0, 5]


def test_no_spin_for_large_requests() -> None:
    """There is no spin for the reply to a large request, and such a request does not change later spins."""
    with connected() as (opened, peer):
        assert polls_before_reply(opened, peer, 5) == 5
        for size, polls in (
            (connection._SPIN_REQUEST_SIZE, 5),
            (connection._SPIN_REQUEST_SIZE + 1, 0),
            (connection._SPIN_REQUEST_SIZE, 5),
        ):
            opened.send(bytes(size))
            assert polls_before_reply(opened, peer, 5) == polls


def test_slow_servers_cost_no_cpu_time() -> None:
    """Waiting for a slow server takes nearly no CPU time."""
    with connected() as (opened, peer):

        def answer_late() -> None:
            for _ in range(100):
                peer.recv(100)
                time.sleep(0.002)
                peer.sendall(OK)

        server = threading.Thread(target=answer_late)
        server.start()
        before = time.thread_time()
        for _ in range(100):
            opened.send(b"PING\r\n")
            opened.read()
        taken = time.thread_time() - before
        server.join()
    assert taken < 100 * connection._SPIN_TIME / 2


@pytest.mark.parametrize("skips", [False, True])
def test_signals_do_not_extend_the_timeout(skips: bool) -> None:
    """A server that hangs is given up after the timeout, however many signals arrive."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with connected(timeout=0.2) as (opened, peer):
            opened._spins_to_skip = int(skips)
            late = threading.Timer(2, peer.sendall, [OK])
            late.start()
            start = time.monotonic()
            with pytest.raises(redis_errors.TimeoutError):
                opened.read()
            assert 0.15 < time.monotonic() - start < 1.5
            late.cancel()
            late.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class TestExecute:
    def test_replies_and_errors(self, server: RedisServer) -> None:
        """Each command gets its reply or its error, in order, and the connection is used again."""
        with closing(Server(RedisSettings("127.0.0.1", server.port), "127.0.0.1", server.port)) as opened:
            for _ in range(2):
                first, failed, last = opened.execute([("SET", "a", "1"), ("INCR",), ("GET", "a")])
                assert (first, last) == (b"OK", b"1")
                assert isinstance(failed, CommandFailed)
                assert not failed.maybe_executed
            assert opened.execute_repeatable(("GET", "a")) == b"1"
            assert isinstance(opened.execute_repeatable(("INCR",)), CommandFailed)
            assert opened.execute_repeatable(("GET", "a")) == b"1"
            assert len(opened._idle) == 1

    def test_one_server_of_two_fails(self, server: RedisServer) -> None:
        """A server that cannot be reached fails its commands only, and they were certainly not executed."""
        settings = RedisSettings("127.0.0.1")
        ports = (server.port, free_port())
        here, gone = (Server(settings, "127.0.0.1", port) for port in ports)
        with closing(here), closing(gone):
            replies = execute_on_servers({gone: [("PING",), ("PING",)], here: [("PING",)]})
        assert replies[here] == [b"PONG"]
        assert [(type(reply), reply.maybe_executed) for reply in replies[gone]] == [(CommandFailed, False)] * 2


def test_interrupted_calls(server: RedisServer) -> None:
    """An exception that a signal handler raises during a call leaves no reply behind that the next call would read."""
    done = run(
        f"""
        import signal, time
        from oncegate import open_store
        from oncegate.testing.requests import claim_of
        store = open_store("{server.url}")
        class Interrupt(Exception): ...
        def interrupt(*_): raise Interrupt
        signal.signal(signal.SIGALRM, interrupt)
        interrupts, wrong, number, end = 0, 0, 0, time.monotonic() + 2
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                for _ in range(100):  # a library may have swallowed the exception
                    number += 1
                    owner = number.to_bytes(16)
                    (verdict,) = store.claim([claim_of(key=owner, owner=owner)])
                    (again,) = store.claim([claim_of(key=owner, owner=owner)])
                    wrong += again.record.owner != owner
            except Interrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        print(interrupts > 50, wrong)
        """
    )
    assert done.stdout.split() == ["True", "0"], done


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    request = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    if shutil.which("openssl") is None:
        missing("openssl", "apt-get install openssl")
    command = ["openssl", *request.split(), "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


class TestEncryption:
    @pytest.fixture
    def port(self, certificate: Path, redis_server: RedisServer) -> Iterator[int]:
        redis_server.client.flushall()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        proxy = Proxy(redis_server.port, context)
        yield proxy.port
        proxy.close()

    def test_trusted(self, port: int, certificate: Path) -> None:
        """With rediss:// and a trusted certificate the store works."""
        with closing(open_store(f"rediss://localhost:{port}?ca_file={certificate}/cert.pem")) as store:
            assert complete(store, granted(store))

    def test_not_in_tls(self, port: int) -> None:
        """redis:// to a TLS server fails, and the message says to use rediss://."""
        assert_refused(f"redis://localhost:{port}", "if it requires TLS, use rediss://", StoreUnavailable)

    def test_not_trusted(self, port: int) -> None:
        """An untrusted certificate is assert_refused."""
        assert_refused(f"rediss://localhost:{port}", "its certificate is not trusted")

    def test_another_name(self, port: int, certificate: Path) -> None:
        """A trusted certificate for another host name is assert_refused."""
        assert_refused(f"rediss://127.0.0.1:{port}?ca_file={certificate}/cert.pem", "its certificate is not trusted")

    def test_no_tls(self, redis_server: RedisServer) -> None:
        """rediss:// to a server without TLS is given up after the timeout, and the message names the cause."""
        for option in ("timeout", "connect_timeout"):
            start = time.monotonic()
            url = redis_server.url.replace("redis://", "rediss://") + f"?{option}=200ms"
            assert_refused(url, "for rediss:// that it supports TLS", StoreUnavailable)
            assert time.monotonic() - start < 1.0
