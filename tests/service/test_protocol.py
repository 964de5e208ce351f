"""The fast path of the protocol: a request in one segment gets the same response as one in parts, with one write."""

import asyncio
import re
import time
from collections.abc import Iterator

import pytest

from tests.service.protocols import RecordingApp, connected, connections, in_a_loop, post, turns
from tests.service.running import INLINE, Service, receive_all

CLOSE = b"Connection: close\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("whole"), *INLINE) as service:
        yield service


def undated(answer: bytes) -> bytes:
    """The response without the parts that depend on the time."""
    answer = re.sub(rb"\d+ m?s ago", b"just now", answer)
    return re.sub(rb"(?<=content-length: )\d+|(?<=date: )[^\r]+", b"", answer)


def in_parts(service: Service, sent: bytes, at: int) -> bytes:
    """The response to a request that is sent with a pause after `at` bytes."""
    with service.connect() as connection:
        connection.sendall(sent[:at])
        time.sleep(0.05)
        connection.sendall(sent[at:])
        return receive_all(connection)


@pytest.mark.parametrize(
    "body", [b'{"id": "known", "type": "a"}', b"not JSON", b"[]", b'{"id": "bad", "do": "fail"}'], ids=repr
)
def test_same_response(service: Service, body: bytes) -> None:
    """The response does not depend on the number of segments in which a request arrives, except the order of its
    headers."""
    sent = post(body, CLOSE)
    service.raw(sent), service.raw(sent)  # from the second request on, the event is a duplicate or buried
    whole, *parted = [service.raw(sent), in_parts(service, sent, len(sent) - 5), in_parts(service, sent, 30)]
    expected_head, _, expected_body = undated(whole).partition(b"\r\n\r\n")
    assert b"\r\ndate: \r\n" in expected_head
    for each in parted:
        head, _, rest = undated(each).partition(b"\r\n\r\n")
        assert (sorted(head.split(b"\r\n")), rest) == (sorted(expected_head.split(b"\r\n")), expected_body)


def test_keep_alive(service: Service) -> None:
    """The connection stays open after a response, unless the request, or its HTTP version, asks to close it."""
    with service.connect() as connection:
        for number in range(3):
            connection.sendall(post(b'{"id": "on-%d"}' % number))
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(post(b'{"id": "last"}', CLOSE))
        last = receive_all(connection)
    assert last.startswith(b"HTTP/1.1 200")
    assert last.count(b"connection: close") == 1
    old = service.raw(post(b'{"id": "old"}').replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert b"connection: close" in old


def test_pipelined_in_order(service: Service) -> None:
    """Requests that arrive together are answered in order, also if the last one is late."""
    first, second, third = (post(b'{"id": "in-order-%d"}' % number) for number in range(3))
    last = post(b'{"id": "in-order-last"}', CLOSE)
    answers = in_parts(service, first + second + third + last, len(first + second + third) + 120)
    assert re.findall(rb'"event_id":"in-order-(\w+)"', answers) == [b"0", b"1", b"2", b"last"]


def test_rejection_after_complete_request(service: Service) -> None:
    """A rejected request does not affect the complete request before it."""
    answers = service.raw(post(b'{"id": "before"}') + b"POST /events HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"400"]
    assert b'"event_id":"before"' in answers


@in_a_loop
async def test_fast_path() -> None:
    """A POST in one segment goes to `respond` and gets one write; every other request goes to ASGI."""
    app = RecordingApp()
    protocol, transport = connected(app)
    protocol.data_received(post(b"one"))
    await turns()
    assert len(transport.written) == 1
    protocol.data_received(post(b"two")[:-1])
    protocol.data_received(b"o")
    await turns()
    protocol.data_received(b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n")
    await turns()
    assert app.requests == ["whole /events one", "parts /events", "parts /other"]
    protocol.connection_lost(None)


@in_a_loop
async def test_written_together(caplog: pytest.LogCaptureFixture) -> None:
    """Responses of one event loop iteration are written together; one that fails does not affect the others."""
    app = RecordingApp()
    first, broken, last = connections(app, 3)
    broken[1].write = None  # type: ignore[assignment,method-assign]
    for protocol, _ in (first, broken, last):
        protocol.data_received(post(b"one"))
    await asyncio.sleep(0)
    assert len(app.requests) == 3
    assert first[1].written == last[1].written == []
    await turns()
    assert len(first[1].written) == len(last[1].written) == 1
    assert "a response could not be sent" in caplog.text
    for protocol, _ in (first, broken, last):
        protocol.connection_lost(None)


@in_a_loop
async def test_application_error(caplog: pytest.LogCaptureFixture) -> None:
    """If the application raises, the client gets 503 and the log has the error."""
    protocol, transport = connected(RecordingApp())
    protocol.data_received(post(b"break"))
    await turns()
    assert transport.written[0].startswith(b"HTTP/1.1 503")
    assert "RuntimeError: broken" in caplog.text
    protocol.connection_lost(None)


@in_a_loop
async def test_closed_connections_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """No response is written to a connection that is lost or closing; a paused connection is waited for."""
    gate = asyncio.Event()
    gone, leaving, silent = (connected(RecordingApp(gate)) for _ in range(3))
    for protocol, _ in (gone, leaving, silent):
        protocol.data_received(post(b"one"))
    await turns()
    gone[0].connection_lost(None)
    leaving[1].close()
    silent[0].pause_writing()
    gate.set()
    await turns()
    assert gone[1].written == leaving[1].written == silent[1].written == []
    silent[0].resume_writing()
    await turns()
    assert len(silent[1].written) == 1
    assert caplog.text == ""
    for protocol, _ in (leaving, silent):
        protocol.connection_lost(None)
