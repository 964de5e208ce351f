"""Forwarding: events posted to a URL, over a real connection."""

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from oncegate import Event, Gate, read
from oncegate.errors import Bury, RetryLater, SettingError
from oncegate.gate.handlers import loggable_error
from oncegate.sinks import forward
from oncegate.sinks.forwarding import Forward
from tests.sinks.receiver import CA, CLIENT, SERVER_PIN, Receiver, receiving

EVENT = Event(source="plain", type="call.ended", body={"id": "evt-1"}, raw=b'{ "id": "evt-1" }', id="evt-1", attempt=1)
OTHER_PIN = "sha256//" + "A" * 43 + "="


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def to() -> Iterator[Callable[..., Forward]]:
    """Handlers that are closed after the test."""
    made = []

    def make(url: str, **options: Any) -> Forward:
        made.append(Forward(url, **{"allow_private": True, **options}))
        return made[-1]

    yield make
    for handler in made:
        handler.close()


def message(handler: Forward, error: type[Exception] = RetryLater) -> str:
    """The message of the exception that the handler raises, without ports."""
    return without_ports(str(raised(handler, error)))


def raised(handler: Forward, error: type[Exception] = RetryLater) -> Exception:
    with pytest.raises(error) as caught:
        handler(EVENT)
    return caught.value


def without_ports(text: str) -> str:
    return re.sub(r":\d{4,5}\b", "", text)


class TestRequest:
    def test_through_a_gate(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """The receiver gets each event once, unchanged, with its key as `Idempotency-Key`."""
        gate = Gate("memory://")
        body = b'{ "id": "evt-1", "type": "call.ended" }'
        outcomes = gate.run_batch([body, body], to(receiver.url("/hook?a=1")))
        assert [outcome.status for outcome in outcomes] == ["processed", "duplicate"]
        ((path, headers, sent),) = receiver.received
        assert (path, sent) == ("/hook?a=1", body)
        assert headers["Idempotency-Key"] == str(outcomes[0].key)
        assert headers["Content-Type"] == "application/json"
        assert (headers["Oncegate-Source"], headers["Oncegate-Type"], headers["Oncegate-Attempt"]) == (
            "plain",
            "call.ended",
            "1",
        )

    def test_from_many_threads(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """One handler serves many threads, and connections are reused."""
        handler = to(receiver.url())
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: handler(EVENT), range(80)))
        assert len(receiver.received) == 80
        assert receiver.connections <= 16

    def test_extra_headers(self, receiver: Receiver, to: Callable[..., Forward], tmp_path: Path) -> None:
        """Configured headers are sent, and a file of headers is read again for each event."""
        file = tmp_path / "headers"
        file.write_text("Authorization: Bearer one\n\nX-Api-Key: k:1\n")
        handler = to(receiver.url(), headers=file)
        handler(EVENT)
        file.write_text("Authorization: Bearer two\n")
        handler(EVENT)
        (_, first, _), (_, second, _) = receiver.received
        assert (first["Authorization"], first["X-Api-Key"]) == ("Bearer one", "k:1")
        assert (second["Authorization"], second.get("X-Api-Key")) == ("Bearer two", None)
        file.unlink()
        assert message(handler).endswith("cannot be read: No such file or directory")

    def test_header_injection(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """A type with a line break is left out of the headers, but not of the body."""
        (event,) = read({"id": "1", "type": "x\r\nX-Admin: 1"})
        to(receiver.url())(event)
        ((_, headers, body),) = receiver.received
        assert "X-Admin" not in headers
        assert "Oncegate-Type" not in headers
        assert body == event.raw

    @pytest.mark.parametrize(
        ("headers", "problem"),
        [
            ({"X-A": "one\r\nX-B: two"}, "the header X-A must be printable ASCII on one line; its value is not shown"),
            ({"X-A": "s3cret\n"}, "its value is not shown"),
            ({"X A": "1"}, "'X A' is not a valid header name"),
            ({"X-A\r\nB": "1"}, "is not a valid header name"),
            ({"Host": "elsewhere"}, "Oncegate sets the header Host itself; remove it"),
            ({"transfer-encoding": "chunked"}, "Oncegate sets the header transfer-encoding itself"),
            ({"Idempotency-Key": "1"}, "Oncegate sets the header Idempotency-Key itself"),
        ],
    )
    def test_invalid_headers(self, headers: dict[str, str], problem: str) -> None:
        """A header that would change the request is rejected at the start, and the error has no header value."""
        with pytest.raises(SettingError) as caught:
            forward("https://crm.example", headers=headers)
        assert problem in str(caught.value)
        assert "s3cret" not in str(caught.value)

    def test_an_invalid_file_of_headers(self, tmp_path: Path) -> None:
        """A file with a line that is not a header is rejected at the start, and the error does not repeat the line."""
        (tmp_path / "headers").write_text("Bearer s3cret")
        with pytest.raises(SettingError, match=r"each line of .* must be a header in the form Name: value") as caught:
            forward("https://crm.example", headers=tmp_path / "headers")
        assert "s3cret" not in str(caught.value)


class TestAnswers:
    @pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
    def test_success(self, receiver: Receiver, to: Callable[..., Forward], status: int) -> None:
        """Every 2xx is a success."""
        receiver.status, receiver.body = status, b""
        assert to(receiver.url())(EVENT) is None

    @pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 599])
    def test_retry(self, receiver: Receiver, to: Callable[..., Forward], status: int) -> None:
        """A temporary failure is raised as RetryLater after one request. The message has the path of the receiver and
        the answer, but no query. The part for the log has only the host."""
        receiver.status, receiver.body = status, b"try later"
        said = "forward to http://127.0.0.1{} failed: it answered {}"
        failure = raised(to(receiver.url("/token-1?token=2")))
        assert without_ports(str(failure)) == said.format("/token-1", status) + "; the answer: try later"
        assert without_ports(loggable_error(failure)) == said.format("", status)
        assert len(receiver.received) == 1

    def test_the_answer_is_stored(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """The dead letter has the first 500 characters of the answer, with control characters escaped. The log has
        none of them."""
        receiver.status, receiver.body = 422, b"\x1b[2Jno\ntenant " + "é".encode() * 600
        gate = Gate("memory://")
        outcome = gate.run({"id": "evt-1"}, to(receiver.url("/v1/events?token=s3cret-1")))
        (dead,) = gate.store.dead_letters()
        start = "\\x1b[2Jno\\ntenant " + "é" * 486 + "…"
        assert dead.record.error == outcome.error
        assert str(outcome.error).endswith(f"; the answer: {start}")
        assert "/v1/events failed: it answered 422: the receiver rejects this event" in str(outcome.error)
        assert "s3cret-1" not in str(outcome.error)
        assert ("tenant" in outcome.discreet, "/v1" in outcome.discreet) == (False, False)

    def test_an_answer_that_repeats_secrets(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """Values of headers and of the query that an answer repeats are masked."""
        receiver.status = 401
        receiver.body = b"bad token s3cret-1 (Bearer s3cret-1), signature=s3cret-2, tenant 12"
        headers = {"Authorization": "Bearer s3cret-1", "X-Tenant": "12"}
        failure = raised(to(receiver.url("/hook?signature=s3cret-2"), headers=headers), Bury)
        assert str(failure).endswith("; the answer: bad token *** (***), ***, tenant 12")

    @pytest.mark.parametrize(
        "repeated",
        [
            'to"k/e\\n+&=<1> x',
            r"to\"k/e\\n+&=<1> x",
            r"to\"k\/e\\n+&=<1> x",
            r"to\"k/e\\n+\u0026=\u003c1\u003e x",
            "to%22k/e%5Cn%2B%26%3D%3C1%3E%20x",
            "to%22k%2Fe%5Cn%2B%26%3D%3C1%3E%20x",
            "to%22k%2fe%5cn%2b%26%3d%3c1%3e%20x",
            "to%22k%2Fe%5Cn%2B%26%3D%3C1%3E+x",
        ],
        ids=["plain", "json", "json-slash", "json-html", "url", "url-slash", "url-lower", "url-form"],
    )
    @pytest.mark.parametrize("place", ["header", "query"])
    def test_encoded_secrets(self, receiver: Receiver, to: Callable[..., Forward], repeated: str, place: str) -> None:
        """A secret is also masked if the answer repeats it in a JSON string or in a URL."""
        value = 'to"k/e\\n+&=<1> x'
        receiver.status, receiver.body = 401, f"bad value [{repeated}]".encode()
        if place == "header":
            handler = to(receiver.url("/hook"), headers={"X-Key": value})
        else:
            handler = to(receiver.url(f"/hook?a=1&sig={quote_plus(value)}"))
        assert str(raised(handler, Bury)).endswith("; the answer: bad value [***]")

    def test_no_text_in_the_answer(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """An empty answer adds nothing to the message."""
        receiver.status, receiver.body = 500, b" "
        assert message(to(receiver.url())).endswith("it answered 500")

    @pytest.mark.parametrize(
        ("written", "after"),
        [
            ("30", 30.0),
            (" 0 ", 0.0),
            ("86400", 3_600.0),
            ("Thu, 01 Jan 1970 00:02:00 GMT", 60.0),
            ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),
            ("soon", None),
            ("-3", None),
            ("1.5", None),
            (None, None),
        ],
    )
    def test_retry_after(
        self, receiver: Receiver, to: Callable[..., Forward], written: str | None, after: float | None
    ) -> None:
        """Retry-After is a number of seconds or a date, at most an hour. Any other value is ignored."""
        receiver.status = 503
        receiver.headers = {} if written is None else {"Retry-After": written}
        with pytest.raises(RetryLater) as caught:
            to(receiver.url(), clock=lambda: 60_000_000)(EVENT)
        assert caught.value.after == after

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
    def test_rejected(self, receiver: Receiver, to: Callable[..., Forward], status: int) -> None:
        """An event that the receiver rejects is buried at once."""
        receiver.status = status
        outcome = Gate("memory://").run({"id": "evt-1"}, to(receiver.url()))
        assert (outcome.status, outcome.event.attempt) == ("buried", 1)
        assert f"answered {status}: the receiver rejects this event" in outcome.reason
        assert f"answered {status}: the receiver rejects this event" in outcome.discreet

    def test_no_redirects(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """A redirect is not followed, and is a failure of the receiver, not of the event."""
        receiver.status, receiver.headers = 307, {"Location": receiver.url("/other")}
        assert message(to(receiver.url())).endswith(
            "redirects are not followed; configure the new address; the answer: {}"
        )
        assert [path for path, _, _ in receiver.received] == ["/hook"]

    def test_a_large_answer(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """A large answer is read in part only."""
        receiver.body = b"x" * 5_000_000
        to(receiver.url())(EVENT)

    def test_an_answer_that_is_not_http(self, to: Callable[..., Forward]) -> None:
        """An answer that is not HTTP, or no answer, is a failure."""
        for answer in (b"220 mail.example ESMTP\r\n", b""):
            with _Speaker(answer) as port:
                assert message(to(f"http://127.0.0.1:{port}")).endswith(
                    "closed the connection, or did not answer in HTTP"
                )

    def test_an_answer_that_breaks_off(self, to: Callable[..., Forward]) -> None:
        """After a status of 200 the event is accepted, even if the rest of the answer is missing."""
        with _Speaker(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc") as port:
            to(f"http://127.0.0.1:{port}")(EVENT)

    def test_slow(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """A receiver that does not answer within the timeout is a failure, and the handler does not wait longer."""
        receiver.hold.clear()
        started = time.monotonic()
        assert (
            message(to(receiver.url(), timeout="200ms"))
            == "forward to http://127.0.0.1/hook failed: it did not answer in time"
        )
        assert time.monotonic() - started < 2

    def test_a_slow_stream(self, to: Callable[..., Forward]) -> None:
        """The timeout covers the whole request: single bytes do not extend it."""
        with _Speaker(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1_000, pause=0.05) as port:
            started = time.monotonic()
            assert message(to(f"http://127.0.0.1:{port}", timeout="300ms")).endswith("did not answer in time")
            assert time.monotonic() - started < 2

    def test_unreachable(self, to: Callable[..., Forward]) -> None:
        """A closed port and an unknown name are reported in words."""
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port = listener.getsockname()[1]
        refused = message(to(f"http://127.0.0.1:{port}"))
        assert refused == "forward to http://127.0.0.1 failed: it cannot be reached: Connection refused"
        unknown = message(to("https://sink.invalid", timeout="5s"))
        assert unknown == "forward to https://sink.invalid failed: it cannot be reached: the name cannot be resolved"


class TestAddresses:
    def test_private_addresses(self, receiver: Receiver) -> None:
        """A name that resolves to a private address is not connected to, unless that is allowed."""
        for host in ("127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]"):
            handler = Forward(f"https://{host}:{receiver.server_address[1]}")
            assert "which is a private address; set allow_private to allow it" in message(handler)
        assert receiver.connections == 0

    def test_no_dns_rebinding(
        self, receiver: Receiver, to: Callable[..., Forward], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name is resolved once for each connection, so a second, different result has no effect."""
        asked = []
        resolve = socket.getaddrinfo

        def rebinding(host: str, *rest: Any, **named: Any) -> Any:
            asked.append(host)
            return resolve("127.0.0.1" if asked.count("sink.example") <= 1 else "127.0.0.2", *rest, **named)

        monkeypatch.setattr("socket.getaddrinfo", rebinding)
        to(receiver.url(host="sink.example"))(EVENT)
        assert asked.count("sink.example") == 1
        assert len(receiver.received) == 1

    @pytest.mark.parametrize("host", ["127.0.0.1", "sink.example", "[fd00::1]"])
    def test_host_header(
        self, receiver: Receiver, to: Callable[..., Forward], monkeypatch: pytest.MonkeyPatch, host: str
    ) -> None:
        """The Host header is the host of the URL, whatever its address is."""
        resolve = socket.getaddrinfo
        monkeypatch.setattr("socket.getaddrinfo", lambda _host, *rest, **named: resolve("127.0.0.1", *rest, **named))
        to(receiver.url(host=host))(EVENT)
        assert receiver.received[0][1]["Host"] == f"{host}:{receiver.server_address[1]}"

    def test_one_private_address_among_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If one address of a name is private, none of them is connected to."""
        found = [(2, 1, 6, "", (address, 443)) for address in ("93.184.215.14", "169.254.169.254")]
        monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_named: found)
        assert "169.254.169.254, which is a private address" in message(Forward("https://sink.example"))

    def test_http_to_a_public_address(self, to: Callable[..., Forward], monkeypatch: pytest.MonkeyPatch) -> None:
        """Without TLS nothing is sent to a public address, whatever is allowed."""
        monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_named: [(2, 1, 6, "", ("93.184.215.14", 80))])
        assert "which is a public address; use https://" in message(to("http://sink.example"))

    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            (
                "ftp://crm.example",
                "invalid URL to forward to; use https://, ASCII and no spaces: https://crm.example/events",
            ),
            ("https://", "invalid URL to forward to; use https://"),
            ("https://crm.example/a b", "no spaces"),
            ("https://crm.example/\r\nX: 1", "invalid URL to forward to; use https://"),
            ("https://crm.exämple", "ASCII"),
            ("https://crm.example:99999", "check its host and its port"),
            ("https://user:s3cret/@crm.example", "check its host and its port"),
            ("https://:443/", "it needs a host"),
            ("https://crm.example/#a", "must have no #fragment"),
            ("https://me:s3cret@crm.example", "must not contain a password; send it in a header, from a file"),
            ("http://crm.example", "http://crm.example is not encrypted; use https://, or allow_private"),
            (7, "invalid URL to forward to; use https://"),
        ],
    )
    def test_invalid_urls(self, url: Any, problem: str) -> None:
        """An invalid URL is rejected at the start, and the error repeats no secret part of it."""
        with pytest.raises(SettingError) as caught:
            forward(url)
        assert problem in str(caught.value)
        assert "s3cret" not in str(caught.value)

    def test_hosts(self) -> None:
        """With `hosts`, no other host is accepted. `*.example` allows every name below it, but not the name itself."""
        for url in ("https://crm.example", "https://CRM.example:8443/x", "https://a.b.corp.example"):
            forward(url, hosts=["crm.example", "*.corp.example"])
        for url in ("https://evil.example", "https://corp.example", "https://crm.example.evil.example"):
            with pytest.raises(SettingError, match="is not among the allowed hosts"):
                forward(url, hosts=["crm.example", "*.corp.example"])


class TestTls:
    def test_verified(self, to: Callable[..., Forward]) -> None:
        """A certificate of a trusted authority for the right name is accepted."""
        with receiving("server") as receiver:
            to(receiver.url(), ca=CA)(EVENT)
            to(receiver.url(host="localhost"), ca=CA, hosts=["localhost"])(EVENT)
            assert len(receiver.received) == 2

    def test_not_trusted(self, to: Callable[..., Forward]) -> None:
        """With an untrusted authority or another name, nothing is sent."""
        with receiving("server") as receiver:
            assert "its certificate is not trusted: unable to get local issuer" in message(to(receiver.url()))
            assert receiver.received == []
        with receiving("elsewhere") as receiver:
            assert "certificate is not valid for '127.0.0.1'" in message(to(receiver.url(), ca=CA))
            assert receiver.received == []

    @pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
    def test_old_tls(self, to: Callable[..., Forward]) -> None:
        """TLS 1.1 is rejected."""
        with receiving("server", newest=ssl.TLSVersion.TLSv1_1) as receiver:
            assert "the TLS handshake failed" in message(to(receiver.url(), ca=CA))
            assert receiver.received == []

    def test_pinned(self, to: Callable[..., Forward]) -> None:
        """A pin is the SHA-256 of the public key, as other tools print it. One matching pin is enough."""
        with receiving("server") as receiver:
            to(receiver.url(), ca=CA, pins=[OTHER_PIN, SERVER_PIN])(EVENT)
            assert len(receiver.received) == 1

    def test_not_pinned(self, to: Callable[..., Forward]) -> None:
        """Nothing is sent to a trusted receiver whose key is not pinned, and the error has its pin."""
        with receiving("server") as receiver:
            text = message(to(receiver.url(), ca=CA, pins=[OTHER_PIN]))
            assert text.endswith(f"the pin of its certificate is {SERVER_PIN}, which is not among the pins")
            assert receiver.received == []

    def test_a_pin_does_not_replace_trust(self, to: Callable[..., Forward]) -> None:
        """A pinned certificate must be trusted, too."""
        with receiving("server") as receiver:
            assert "not trusted" in message(to(receiver.url(), pins=[SERVER_PIN]))

    def test_client_certificate(self, to: Callable[..., Forward]) -> None:
        """A receiver that requires a client certificate gets it, and rejects a connection without one."""
        with receiving("server", mutual=True) as receiver:
            assert "the TLS handshake failed" in message(to(receiver.url(), ca=CA))
            assert receiver.received == []
            to(receiver.url(), ca=CA, certificate=CLIENT)(EVENT)
            assert len(receiver.received) == 1

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"pins": ["abc"]}, "is not the SHA-256 of a public key; use curl's form, sha256//…"),
            ({"ca": "nowhere.pem"}, "in nowhere.pem cannot be used: No such file or directory"),
            ({"ca": __file__}, "cannot be used: it is not a valid PEM file"),
            ({"certificate": "nowhere.pem"}, "the client certificate in nowhere.pem cannot be used: No such file"),
            ({"certificate": CA}, "cannot be used: it is not a valid PEM file"),
            (
                {"certificate": CLIENT, "certificate_key": CLIENT.with_name("server.pem")},
                "the key belongs to another",
            ),
            ({"certificate_key": CLIENT}, "certificate_key needs certificate: set both"),
            ({"timeout": "0s"}, "timeout='0s' must be longer than 0"),
        ],
    )
    def test_invalid_options(self, options: Any, problem: str) -> None:
        """Invalid options are rejected at the start."""
        with pytest.raises(SettingError) as caught:
            forward("https://crm.example", **options)
        assert problem in str(caught.value)

    def test_a_key_with_a_passphrase(self, tmp_path: Path) -> None:
        """A key with a passphrase is rejected, and OpenSSL does not ask for the passphrase."""
        (tmp_path / "locked.pem").write_text(_LOCKED)
        with pytest.raises(SettingError, match="its key has a passphrase"):
            forward("https://crm.example", certificate=CLIENT, certificate_key=tmp_path / "locked.pem")


class _Speaker:
    """A server that sends the same bytes to every client."""

    def __init__(self, answer: bytes, pause: float = 0.0) -> None:
        self._answer = answer
        self._pause = pause
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._speak)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._listener.close()

    def _speak(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65_536)
            for byte in [self._answer[i : i + 1] for i in range(len(self._answer))] if self._pause else [self._answer]:
                if self._stop.wait(self._pause):
                    return
                try:
                    connection.sendall(byte)
                except OSError:
                    return


_LOCKED = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhMcr24JfAIjwICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEELKfZ4xrs48wSRysZIMER3kEgZAl
XDVhB5LMqY9cHnsrwHcKdXSWKArK+yo2cX1Gq08LX5LPLwbYI/MC8SqRtZqjrxFg
DEf64bF6OkG/dKnYoVNqQUVxY+k7Sbo+xlhiShCB6EzEReR04AyoEh/SQkCa8QAI
TPRU9d189UfsqTUJRYLLU8YV9Qbbqvl+VHAlmdPN5aVqN6YsZfNlYJX07TOpnLM=
-----END ENCRYPTED PRIVATE KEY-----
"""
