"""The connection limit: idle connections give way to new ones."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import httpx2
import pytest

from oncegate.service import protocol as module
from oncegate.service.protocol import BoundedProtocol, IdleConnections
from tests.service.protocols import RecordingApp, Server, in_a_loop, post, turns
from tests.service.running import INLINE, Service, receive_all, until

MOST = 20
POST = b"POST /events HTTP/1.1\r\nHost: x\r\n"
ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
WARNING = f"more than {MOST} connections are open"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("connections"), *INLINE, "--max-connections", str(MOST)) as service:
        yield service


@pytest.fixture
def many(service: Service) -> Iterator[ExitStack]:
    """Keeps the connections of a test open until its end."""
    service.client.close()
    service.client = httpx2.Client(base_url=service.url, timeout=30, trust_env=False, verify=False)
    with ExitStack() as stack:
        yield stack


def opened(service: Service, stack: ExitStack, count: int, start: bytes = b"") -> list[socket.socket]:
    found = [stack.enter_context(service.connect()) for _ in range(count)]
    for connection in found:
        connection.sendall(start)
    return found


def is_open(connection: socket.socket) -> bool:
    """Whether the connection is still open, after all received bytes are read."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    return False


def post_on_new_connection(service: Service, event_id: str) -> int:
    """The response code to an event on a new connection."""
    return httpx2.post(f"{service.url}/events", json={"id": event_id}, trust_env=False, verify=False).status_code


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
def test_idle_connections_are_closed(service: Service, many: ExitStack, start: bytes) -> None:
    """At the connection limit, idle connections of every kind are closed for new ones."""
    waiting = opened(service, many, MOST, start)
    assert [post_on_new_connection(service, f"{start!r} {number}"[-200:]) for number in range(5)] == [200] * 5
    waiting += opened(service, many, 2 * MOST, start)
    assert post_on_new_connection(service, f"{start!r} at last"[-200:]) == 200
    until(lambda: sum(map(is_open, waiting)) <= MOST)


def test_longest_idle_is_closed_first(service: Service, many: ExitStack) -> None:
    """The connection that has been idle longest is closed first; a response restarts its idle time."""
    first, *others, last = opened(service, many, MOST)
    for connection in (last, first):  # when the last one has its response, the service has accepted all before it
        connection.sendall(ASK)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    opened(service, many, 5)
    until(lambda: not any(map(is_open, others[:5])))
    assert all(map(is_open, [*others[5:], last, first]))


def test_requests_in_flight_keep_their_connection(service: Service, many: ExitStack) -> None:
    """A request in flight keeps its connection, no matter how many others are opened."""
    answers: list[httpx2.Response] = []
    (service.folder / "go").unlink(missing_ok=True)
    waiting = threading.Thread(target=lambda: answers.append(service.post({"id": "in-hand", "do": "wait"})))
    waiting.start()
    until(lambda: "in-hand" in service.effects())
    opened(service, many, 3 * MOST)
    (service.folder / "go").touch()
    waiting.join()
    assert answers[0].json()["status"] == "processed"


def test_all_connections_in_use(service: Service, many: ExitStack) -> None:
    """If no connection is idle, a new one gets 503 with Retry-After."""
    (service.folder / "go").unlink(missing_ok=True)
    for number in range(MOST):
        body = b'{"id": "all-%d", "do": "wait"}' % number
        opened(service, many, 1, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    until(lambda: sum(effect.startswith("all-") for effect in service.effects()) == MOST)
    for _ in range(3):
        answer = receive_all(opened(service, many, 1, ASK)[0])
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 5" in answer
    (service.folder / "go").touch()
    until(lambda: post_on_new_connection(service, "after all") == 200)


def test_rejected_request_is_idle(service: Service, many: ExitStack) -> None:
    """A connection whose request was rejected is idle, even while the client still sends the request."""
    waiting = opened(service, many, MOST, b"PUT /events HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
    for connection in waiting:
        assert connection.recv(65536).startswith(b"HTTP/1.1 405")
        connection.sendall(b"{}")
    assert [post_on_new_connection(service, f"beside refused {number}") for number in range(5)] == [200] * 5


@in_a_loop
async def test_client_that_does_not_read() -> None:
    """A connection with a request in flight keeps its place. A client that does not read its response counts as idle,
    and loses its place even with a request in flight."""
    answering = asyncio.Event()
    server = Server(RecordingApp(answering), most=1)
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


@in_a_loop
@pytest.mark.parametrize("is_stopping", [False, True])
async def test_reader_that_stops(is_stopping: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is aborted if its client reads nothing for some seconds. A client that reads slowly is served."""
    monkeypatch.setattr(BoundedProtocol, "_read_within", 0.1)
    monkeypatch.setattr(module, "_READ_WITHIN_AT_STOP", 0.1)
    server = Server(RecordingApp())
    (slow, read), (stuck, unread) = server.connected(), server.connected()
    for protocol, transport in ((slow, read), (stuck, unread)):
        transport.unsent = 100_000
        protocol.data_received(post(b"one"))
        protocol.pause_writing()
        if is_stopping:
            protocol.shutdown()
    while read.unsent > 0:
        await asyncio.sleep(0.04)
        read.unsent -= 20_000
    assert (read.closed, unread.closed) == (False, True)
    slow.resume_writing()
    await asyncio.sleep(0.3)
    assert read.closed is is_stopping  # a complete response ends a connection of a service that stops
    for protocol in (slow, stuck):
        protocol.connection_lost(None)


def test_warning_once_a_minute(service: Service, many: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line a minute about closed connections, not one per connection."""
    opened(service, many, 3 * MOST)
    until(lambda: WARNING in service.stderr())
    assert service.stderr().count(WARNING) < MOST
    line = IdleConnections()
    for now in (1_000.0, 1_001.0, 1_059.0, 1_060.0, 1_061.0):
        line.warn(MOST, now)
    assert caplog.text.count(WARNING) == 2
