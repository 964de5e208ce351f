"""Hostile requests over raw sockets, which a client library would not send."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import open_store
from tests.service.running import Service, receive_all, until

POST = b"POST /events HTTP/1.1\r\nHost: x\r\n"
LARGEST = 100_000
EVENT = b'{"id": "evt-1"}'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    toml = f'[serve]\nmode = "inline"\nrequest_within = "1s"\nmax_body = {LARGEST}\nproxies = ["127.0.0.1"]\n'
    with Service(tmp_path_factory.mktemp("hostile"), "--max-in-hand", "100", toml=toml) as service:
        yield service


def code_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def problem_of(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    found: dict[str, object] = json.loads(body)
    return found


class TestRequests:
    @pytest.mark.parametrize(
        "head",
        [
            b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Length: 15\r\n\r\n",
            b"Content-Length: 15\r\nContent-Length: 16\r\n\r\n",
            b"Content-Length: +15\r\n\r\n",
            b"Content-Length: 15,15\r\n\r\n",
            b"Content-Length : 15\r\n\r\n",
            b"Transfer-Encoding: chunked, identity\r\n\r\n",
            b"Transfer-Encoding: gzip, chunked\r\n\r\n",
            b"Transfer-Encoding: xchunked\r\n\r\n",
            b"X-A: b\r\n Content-Length: 15\r\n\r\n",
            b"X-A: b\nX-B: c\0\r\nContent-Length: 15\r\n\r\n",
        ],
    )
    def test_ambiguous_length(self, service: Service, head: bytes) -> None:
        """A request that two servers could frame differently is rejected, and the connection is closed."""
        answer = service.raw(POST + head + b"f\r\n" + EVENT + b"\r\n0\r\n\r\n" + POST + b"Content-Length: 2\r\n\r\n{}")
        assert code_of(answer) == 400
        assert answer.count(b"HTTP/1.1") == 1
        assert service.effects() == []

    @pytest.mark.parametrize(
        "sent", [b"\x16\x03\x01\x02\x00\x01", b"GARBAGE\r\n\r\n", b"POST /events HTTP/9.9\r\n\r\n"]
    )
    def test_not_http(self, service: Service, sent: bytes) -> None:
        """Bytes that are not HTTP get a problem with 400."""
        assert problem_of(service.raw(sent))["status"] == 400

    @pytest.mark.parametrize(
        ("sent", "detail"),
        [
            (b"GET /healthz\r\n\r\n", "HTTP/0.9"),
            (b"GET /healthz HTTP/0.9\r\nHost: x\r\n\r\n", "HTTP/0.9"),
            (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", "HTTP/2.0"),
            (b"GET /healthz HTTP/1.1\r\n\r\n", "one Host header, and has 0"),
            (b"GET /healthz HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n", "one Host header, and has 2"),
            (b"GET /healthz HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", "one Host header, and has 2"),
        ],
    )
    def test_version_and_host(self, service: Service, sent: bytes, detail: str) -> None:
        """Another HTTP version is rejected, and so is a request without a Host header or with two."""
        refused = problem_of(service.raw(sent))
        assert refused["status"] == 400
        assert detail in str(refused["detail"])

    @pytest.mark.parametrize(
        "headers",
        [
            b"X-A: b\r\n" * 101,
            b"X-A: " + b"b" * 40_000 + b"\r\n",
            b"".join(b"X-%d: %s\r\n" % (number, b"b" * 1_000) for number in range(50)),
        ],
        ids=["many", "long", "both"],
    )
    def test_too_many_headers(self, service: Service, headers: bytes) -> None:
        """Too many headers, or too large ones, get 431."""
        answer = service.raw(POST + headers + b"Content-Length: 15\r\n\r\n" + EVENT)
        assert problem_of(answer)["status"] == 431

    def test_endless_header(self, service: Service) -> None:
        """A header that never ends gets 431 long before it fills the memory."""
        with service.connect() as connection:
            connection.sendall(POST + b"X-A: ")
            sent = _send_until_refused(connection, b"b" * 10_000, most=200)
            assert code_of(receive_all(connection)) == 431
            assert sent < 100

    def test_endless_trailer(self, service: Service) -> None:
        """A trailer that never ends gets 413 long before it fills the memory."""
        with service.connect() as connection:
            connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-A: ")
            sent = _send_until_refused(connection, b"b" * 10_000, most=500)
            assert code_of(receive_all(connection)) == 413
            assert sent < 200

    def test_long_url(self, service: Service) -> None:
        """The URL counts as part of the headers."""
        answer = service.raw(b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert code_of(answer) == 431

    def test_announced_body_too_large(self, service: Service) -> None:
        """A Content-Length that is too large is rejected before the body is sent, and without 100 Continue."""
        head = POST + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (LARGEST + 1)
        assert problem_of(service.raw(head))["status"] == 413

    def test_endless_body(self, service: Service) -> None:
        """A chunked body is rejected while it arrives."""
        chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
        with service.connect() as connection:
            connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
            sent = _send_until_refused(connection, chunk, most=1_000)
            assert code_of(receive_all(connection)) == 413
            assert sent < 100

    def test_largest_body(self, service: Service) -> None:
        """A body of exactly the maximum size is accepted."""
        body = b'{"id": "largest", "text": "%s"}'
        body = body % (b"x" * (LARGEST - len(body) + 2))
        assert len(body) == LARGEST
        assert service.post(body).json()["status"] == "processed"

    def test_too_many_pipelined(self, service: Service) -> None:
        """Pipelined requests are limited: one too many gets 429 after the responses to those before it, and the
        connection ends."""
        many = (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") * 2_000
        with service.connect() as connection:
            connection.sendall(many)
            *taken, refused = _codes(receive_all(connection))
        assert 17 <= len(taken) <= 100
        assert (set(taken), refused) == ({200}, 429)
        assert service.client.get("/healthz").status_code == 200

    def test_pipelined(self, service: Service) -> None:
        """A few pipelined requests are answered in order."""
        paths = ["/healthz", "/nothing", "/healthz"]
        sent = b"".join(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode() for path in paths)
        answer = service.raw(sent + b"GET /nothing HTTP/1.0\r\n\r\n")
        assert _codes(answer) == [200, 404, 200, 404]

    def test_upgrade_is_ignored(self, service: Service) -> None:
        """A request with an Upgrade header, as some clients always send, is answered in HTTP/1.1."""
        head = POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        with service.connect() as connection:
            connection.sendall(head + b'Content-Length: 17\r\n\r\n{"id": "upgrade"}')
            answer = _one_answer(connection)
        assert code_of(answer) == 200
        assert b'"processed"' in answer

    @pytest.mark.parametrize("coding", ["gzip", "br", "identity", "x"])
    def test_content_encoding(self, service: Service, coding: str) -> None:
        """A content encoding gets 415: the service decompresses nothing."""
        assert service.post(EVENT, headers={"content-encoding": coding}).status_code == 415

    def test_rejected_requests_store_nothing(self, service: Service) -> None:
        """None of the rejected requests has stored or run an event."""
        with closing(open_store(f"sqlite:///{service.folder}/oncegate.db")) as store:
            kept = {entry.record.about.delivery_id for entry in store.browse()}
        assert kept <= {"largest", "upgrade"}
        assert set(service.effects()) <= {"largest", "upgrade"}


class TestFraming:
    """Where one request ends and the next begins, wherever the segments are split."""

    @pytest.mark.parametrize("cut", [1, 2, 3, 4])
    def test_split_at_the_end_of_the_head(self, service: Service, cut: int) -> None:
        """A body is as long as its Content-Length, whatever it contains and wherever a segment ends."""
        hidden = POST + b"Content-Length: 18\r\n\r\n" + b'{"id": "smuggled"}'
        assert len(hidden) % 2 == 0
        body = b"\r\nupgrade:" * (len(hidden) // 2) + hidden
        head = POST + b"Content-Length: %d\r\n\r\n" % len(body)
        answer = _in_pieces(service, head[:-cut], head[-cut:] + body, b"GET / HTTP/1.0\r\n\r\n")
        assert _codes(answer) == [400, 404]
        assert "smuggled" not in service.effects()

    @pytest.mark.parametrize("connection", ["Upgrade, HTTP2-Settings", "Upgrade, close"])
    @pytest.mark.parametrize("chunked", [True, False])
    def test_upgrade_byte_by_byte(self, service: Service, connection: str, chunked: bool) -> None:
        """An Upgrade header does not change where its request ends, and the next request is answered too."""
        head = POST + b"Connection: %s\r\nUpgrade: h2c\r\nupgrade: h3\r\n" % connection.encode()
        body = b'{"id": "offer %s %d"}' % (connection.encode(), chunked)
        framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        sent = (
            head + b"Transfer-Encoding: chunked\r\n\r\n" + framed
            if chunked
            else head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        following = b"GET /healthz HTTP/1.0\r\n\r\n"
        assert _codes(_in_pieces(service, sent + following)) == ([200] if "close" in connection else [200, 200])
        bytewise = _in_pieces(service, *(sent[place : place + 1] for place in range(len(sent))), following, every=0.001)
        assert _codes(bytewise) == ([200] if "close" in connection else [200, 200])
        assert b'"duplicate"' in bytewise

    @pytest.mark.parametrize(
        ("refused", "code"),
        [
            (b"GARBAGE\r\n\r\n", 400),
            (POST + b"Content-Length: 1000000\r\n\r\n", 413),
            (POST + b"X-A: b\r\n" * 101 + b"\r\n", 431),
            (POST + b"X-A: b\r\n" * 101, 431),
            (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nx\r\n", 400),
            (POST + b"Content-Length: 2\r\n\r\n{", 408),
            (POST[:9], 408),
        ],
        ids=["no HTTP", "large", "headers", "unfinished headers", "a chunk", "a slow body", "a slow head"],
    )
    def test_earlier_requests_are_answered(self, service: Service, refused: bytes, code: int) -> None:
        """Complete requests before a rejected one are answered first, even if they wait or take long."""
        body = b'{"id": "before %d %d", "do": "wait"}' % (code, len(refused))
        sent = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        (service.folder / "go").unlink(missing_ok=True)
        with service.connect() as connection:
            connection.sendall(sent + refused)
            time.sleep(1.2 if code == 408 else 0.1)
            (service.folder / "go").touch()
            answers = receive_all(connection)
        assert _codes(answers) == [200, 200, code]
        assert b'"processed"' in answers

    def test_trailers(self, service: Service) -> None:
        """Trailers are not headers: they change neither the event nor the sender's address."""
        late = (
            b"ce-specversion: 1.0\r\nce-id: spoofed\r\nce-type: a\r\nce-source: b\r\nX-Forwarded-For: 203.0.113.9\r\n"
        )
        sent = POST + b"Transfer-Encoding: chunked\r\n\r\n11\r\n" + b'{"id": "trailed"}' + b"\r\n0\r\n%s\r\n" % late
        following = b"GET /trailed HTTP/1.0\r\n\r\n"
        answers = _in_pieces(service, sent + following)
        assert _codes(answers) == [200, 404]
        assert b'"event_id":"trailed"' in answers
        until(lambda: "trailed" in (service.folder / "log").read_text())
        assert "203.0.113.9" not in (service.folder / "log").read_text()

    def test_connect_method(self, service: Service) -> None:
        """CONNECT is rejected."""
        assert code_of(service.raw(b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n")) == 400


class TestSlowSenders:
    @pytest.mark.parametrize(
        ("start", "piece"),
        [
            (b"POST /", b"a"),
            (b"", b"\r\n"),
            (POST, b"X-A: b\r\n"),
            (POST + b"Content-Length: 1000\r\n\r\n", b"x"),
            (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        ],
        ids=["address", "blank lines", "headers", "body", "chunks"],
    )
    def test_slow_request(self, service: Service, start: bytes, piece: bytes) -> None:
        """A request that arrives too slowly is closed when its time is over, wherever it is split."""
        began = time.monotonic()
        with service.connect() as connection:
            connection.sendall(start)
            _send_until_refused(connection, piece, most=100, every=0.1)
            answer = receive_all(connection)
        assert 0.5 < time.monotonic() - began < 4
        assert answer == b"" or code_of(answer) in (400, 408)

    def test_silent_client(self, service: Service) -> None:
        """A client that connects and sends nothing is disconnected without a response."""
        with service.connect() as connection:
            assert receive_all(connection) == b""

    def test_slow_clients_delay_nobody(self, service: Service) -> None:
        """With more slow clients than the in-flight limit allows, other requests are answered at once."""
        slow = [service.connect() for _ in range(200)]
        for connection in slow:
            connection.sendall(POST + b"Content-Length: 1000\r\n\r\n{")
        began = time.monotonic()
        assert service.client.get("/healthz").status_code == 200
        assert time.monotonic() - began < 1
        assert service.post({"id": "beside the slow"}).status_code == 200
        for connection in slow:
            connection.close()

    def test_slow_second_request(self, service: Service) -> None:
        """Each request on a connection has its own deadline."""
        ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        with service.connect() as connection:
            for _ in range(3):
                connection.sendall(ask)
                assert code_of(_one_answer(connection)) == 200
                time.sleep(0.5)
            connection.sendall(POST)
            assert code_of(receive_all(connection)) == 408


DEEP = b'{"id": "%d", "a": %s%s}'


class TestBodies:
    @pytest.mark.parametrize(
        "body",
        [
            b"\xef\xbb\xbf" + EVENT,
            b'{"id": "a", "text": "\xff"}',
            b'{"id": "a", "text": "\xc0\xaf"}',
            b'{"id": "a", "text": "\xed\xa0\x80"}',
            '{"id": "a"}'.encode("utf-16"),
            b'{"id": "a", "text": "\\ud800"}',
            b'{"id": "\\udfff"}',
            b'{"id": "a", "n": NaN}',
            b'{"id": "a", "n": Infinity}',
            b'{"id": "a", "n": -Infinity}',
            b'{"id": "a", "n": 1e999}',
            b'{"id": "a", "n": -1e999}',
            b'{"id": 1.5}',
            b'{"id": 1e2000}',
            b'{"id": 100000000000000000000}',
            b'{"id": "%s"}' % (b"x" * 257),
            b'{"id": "a\\u0000b"}',
            b'{"id": true}',
            b'{"id": {"a": 1}}',
            b'{"id": ["a"]}',
            b'"text"',
            b"1",
            b"null",
            b"[[]]",
            b"[1]",
            b'{"id": "a"} x',
            b"{'id': 'a'}",
            b'{"id": "a",}',
            DEEP % (65, b"[" * 64, b"]" * 64),
            b"[" * 50_000,
            b'{"a":' * 10_000,
        ],
    )
    def test_invalid_bodies(self, service: Service, body: bytes) -> None:
        """A body that is not strict JSON in strict UTF-8, or has an ambiguous id, gets 400 and never runs."""
        answer = service.post(body)
        assert (answer.status_code, answer.json()["outcome"]) == (400, "invalid")
        assert answer.headers["content-type"] == "application/problem+json"

    @pytest.mark.parametrize(
        ("body", "event_id"),
        [
            (DEEP % (64, b"[" * 63, b"]" * 63), "64"),
            (b'{"id": 99999999999999999999}', "9" * 20),
            (b'{"id": 1e2}', "100"),
            (b'{"id": "%s"}' % (b"x" * 256), "x" * 256),
            (b'{"id": "%s", "n": 1e308}' % "😀".encode(), "😀"),
            (b'{"id": "\\ud83d\\ude00!"}', "😀!"),
        ],
    )
    def test_bodies_at_the_limits(self, service: Service, body: bytes, event_id: str) -> None:
        """A body that is just within the limits is an event."""
        answer = service.post(body)
        assert (answer.status_code, answer.json()["event_id"]) == (200, event_id)

    def test_too_many_events(self, service: Service) -> None:
        """A request with very many small events is rejected as a whole."""
        answer = service.post(b"[" + b"1," * 49_000 + b"1]")
        assert (answer.status_code, answer.json()["title"]) == (413, "Content Too Large")
        assert "more than 1000 events (serve.max_events)" in answer.text

    def test_ids_are_unambiguous(self, service: Service) -> None:
        """Different ids and types never make the same key."""
        bodies = [
            {"id": "a:b", "type": "c"},
            {"id": "a", "type": "b:c"},
            {"id": "a\u001fb"},
            {"id": "a", "eventId": "b"},
            {"id": '"a"'},
            {"id": "['a']"},
        ]
        keys = [service.post(body).json()["key"] for body in bodies]
        assert len(set(keys)) == len(bodies) - 1  # the second and the fourth have the same id and different content
        assert keys[1] == keys[3]


class TestLogs:
    def test_control_characters(self, service: Service) -> None:
        """Whatever an event calls itself, a line of the log stays one line of printable ASCII."""
        name = 'a\n{"status":"processed"}\r\x1b[2J\u2028\u202e\x7f'
        service.post({"id": name, "do": "fail"})
        service.client.get("/no%0Asuch%1Bplace")
        until(lambda: "[2J" in (service.folder / "log").read_text())
        for line in (service.folder / "log").read_text().splitlines():
            assert json.loads(line)["status"]
            assert line.isascii()
            assert line.isprintable()

    def test_stderr(self, tmp_path: Path) -> None:
        """On stderr every line is JSON in printable ASCII, without text of payloads or exceptions."""
        with Service(tmp_path, "--serve-mode", "inline", "--log", "off") as service:
            service.post({"id": "b\n\x1b[2J", "do": "fail", "secret": "hunter2"})
            until(lambda: "the handler failed at event 'b" in service.stderr())
        levels = [json.loads(line)["level"] for line in service.stderr().splitlines()]
        assert levels == ["info"] + ["warning"] * (len(levels) - 1)
        for line in service.stderr().splitlines():
            assert line.isascii()
            assert line.isprintable()
        assert "hunter2" not in service.stderr()


class TestAnswers:
    @pytest.mark.parametrize("do", ["nothing", "fail"])
    def test_control_characters(self, service: Service, do: str) -> None:
        """An answer has no character that steers a terminal or ends a line; it says the same as JSON."""
        name = "\x1b[2J\u202e\u2066\u2028\u2029\x7f\x85\u200f" + do
        answer = service.post({"id": name, "do": do})
        assert answer.json()["event_id"] == name
        assert answer.text.isascii()
        assert answer.text.isprintable()

    def test_failures_hide_details(self, service: Service) -> None:
        """A 503 says that the event failed and should be sent again, but neither the error nor its place."""
        answer = service.post({"id": "inside", "do": "fail"})
        assert answer.status_code == 503
        assert all(word not in answer.text for word in ("boom", "ValueError", "app.py", str(service.folder)))

    def test_exit_is_no_acknowledgement(self, service: Service) -> None:
        """A handler that exits gets 503 with Retry-After."""
        answer = service.post({"id": "exits", "do": "exit"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def _in_pieces(service: Service, *pieces: bytes, every: float = 0.05) -> bytes:
    """Send each piece as a separate segment. Returns all that is received until the service closes the connection."""
    with service.connect() as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(every)
        return receive_all(connection)


def _codes(answers: bytes) -> list[int]:
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


def _one_answer(connection: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"}"):
        found += connection.recv(65536)
    return found


def _send_until_refused(connection: socket.socket, piece: bytes, most: int, every: float = 0) -> int:
    """Send a piece repeatedly until the service responds or disconnects. Returns how often."""
    connection.setblocking(False)
    try:
        for sent in range(most):
            try:
                if connection.recv(1, socket.MSG_PEEK) is not None:
                    return sent
            except BlockingIOError:
                pass
            connection.setblocking(True)
            connection.sendall(piece)
            time.sleep(every)
            connection.setblocking(False)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    else:
        return most
    finally:
        connection.settimeout(10)
