"""Connections: how many there may be, and that those which only wait shut nobody out."""

import asyncio
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from oncegate.service.protocol import IdleConnections
from oncegate.service.server import max_connections
from tests.service.protocols import Both, Server, in_a_loop, post, turns
from tests.service.running import INLINE, Service, heard, until

MOST = 20
POST = b"POST /events HTTP/1.1\r\nHost: x\r\n"
ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
TOLD = f"more than {MOST} connections are open"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("connections"), *INLINE, "--max-connections", str(MOST)) as service:
        yield service


@pytest.fixture
def many(service: Service) -> Iterator[ExitStack]:
    """Holds the connections of a test until its end."""
    service.client.close()
    service.client = httpx.Client(base_url=service.url, timeout=30, trust_env=False)
    with ExitStack() as stack:
        yield stack


def opened(service: Service, stack: ExitStack, count: int, start: bytes = b"") -> list[socket.socket]:
    found = [stack.enter_context(service.connect()) for _ in range(count)]
    for connection in found:
        connection.sendall(start)
    return found


def is_open(connection: socket.socket) -> bool:
    """Whether, after all that it was told, the connection goes on."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    return False


def sent_anew(service: Service, event_id: str) -> int:
    """The answer to an event over a connection of its own."""
    return httpx.post(f"{service.url}/events", json={"id": event_id}, trust_env=False).status_code


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"POST /eve",
        POST + b"Content-Length: 1000\r\n\r\n{",
        ASK,
        ASK + POST + b"Content-Length: 1000\r\n\r\n{",
        b"PUT /events HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"X-A: b\r\n" * 101,
    ],
    ids=["silent", "half a head", "half a body", "answered", "half a second body", "refused", "too many headers"],
)
def test_who_waits_shuts_nobody_out(service: Service, many: ExitStack, start: bytes) -> None:
    """As many connections as may be, of any kind that waits for its sender, give way to those that send."""
    waiting = opened(service, many, MOST, start)
    assert [sent_anew(service, f"{start!r} {number}"[-200:]) for number in range(5)] == [200] * 5
    waiting += opened(service, many, 2 * MOST, start)
    assert sent_anew(service, f"{start!r} at last"[-200:]) == 200
    until(lambda: sum(map(is_open, waiting)) <= MOST)


def test_the_longest_wait_ends_first(service: Service, many: ExitStack) -> None:
    """It is the connection that has waited longest that is closed; to have been answered begins the wait anew."""
    first, *others, last = opened(service, many, MOST)
    for connection in (last, first):  # when the last was answered, all before it have come
        connection.sendall(ASK)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    opened(service, many, 5)
    until(lambda: not any(map(is_open, others[:5])))
    assert all(map(is_open, [*others[5:], last, first]))


def test_what_is_in_hand_stays(service: Service, many: ExitStack) -> None:
    """A request that is being handled keeps its connection, however many others come."""
    answers: list[httpx.Response] = []
    (service.folder / "go").unlink(missing_ok=True)
    waiting = threading.Thread(target=lambda: answers.append(service.post({"id": "in-hand", "do": "wait"})))
    waiting.start()
    until(lambda: "in-hand" in service.effects())
    opened(service, many, 3 * MOST)
    (service.folder / "go").touch()
    waiting.join()
    assert answers[0].json()["status"] == "processed"


def test_all_in_hand(service: Service, many: ExitStack) -> None:
    """If nobody waits, whoever comes is told to come again: with 503, as always when there is no room."""
    (service.folder / "go").unlink(missing_ok=True)
    for number in range(MOST):
        body = b'{"id": "all-%d", "do": "wait"}' % number
        opened(service, many, 1, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    until(lambda: sum(effect.startswith("all-") for effect in service.effects()) == MOST)
    for _ in range(3):
        answer = heard(opened(service, many, 1, ASK)[0])
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 5" in answer
    (service.folder / "go").touch()
    until(lambda: sent_anew(service, "after all") == 200)


def test_refused_while_it_arrives(service: Service, many: ExitStack) -> None:
    """Who has its answer already waits, whatever is still sent of the request."""
    waiting = opened(service, many, MOST, b"PUT /events HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
    for connection in waiting:
        assert connection.recv(65536).startswith(b"HTTP/1.1 405")
        connection.sendall(b"{}")
    assert [sent_anew(service, f"beside refused {number}") for number in range(5)] == [200] * 5


@in_a_loop
async def test_who_does_not_read() -> None:
    """Who waits for an answer keeps its place. Who does not read what it is told is waited for like who is silent, and
    another takes its place, whatever of it is in hand."""
    answering = asyncio.Event()
    server = Server(Both(answering), most=1)
    protocol, transport = server.connected()
    protocol.data_received(post(b"one"))
    _, refused = server.connected()
    assert refused.written[0].startswith(b"HTTP/1.1 503")
    protocol.pause_writing()
    other, heard = server.connected()
    assert transport.closed
    other.data_received(post(b"two"))
    answering.set()
    await turns()
    assert heard.written[0].startswith(b"HTTP/1.1 200")
    other.connection_lost(None)


def test_it_is_told_once(service: Service, many: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    """The log has a line about it, and not one for each connection."""
    opened(service, many, 3 * MOST)
    until(lambda: TOLD in service.said())
    assert service.said().count(TOLD) < MOST
    line = IdleConnections()
    for now in (1_000.0, 1_001.0, 1_059.0, 1_060.0, 1_061.0):
        line.warn(MOST, now)
    assert caplog.text.count(TOLD) == 2


def test_the_limit_of_files_is_raised(tmp_path: Path) -> None:
    """The service may open as many files as the system lets it, not only as many as its shell was given."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        service = Service(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with service:
        most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
        assert resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE) == (most, hard)


def test_half_of_the_files(caplog: pytest.LogCaptureFixture) -> None:
    """Connections never take more than half of the files, and if that is fewer than was asked for, it is said."""
    assert max_connections(500, 1_024) == 500
    assert caplog.text == ""
    assert max_connections(4_000, 1_024) == 512
    assert "serve.max_connections is 4000, but only 1024 files may be open: the limit is 512 connections" in caplog.text
