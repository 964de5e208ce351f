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

import pytest

from oncegate import Event, Gate, read
from oncegate.errors import RetryLater, SettingError
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
    """Handlers that are closed at the end."""
    made = []

    def make(url: str, **wishes: Any) -> Forward:
        made.append(Forward(url, **{"allow_private": True, **wishes}))
        return made[-1]

    yield make
    for handler in made:
        handler.close()


def said(handler: Forward, error: type[Exception] = RetryLater) -> str:
    """What the handler says of an event that it could not hand on."""
    with pytest.raises(error) as caught:
        handler(EVENT)
    return re.sub(r":\d{4,5}\b", "", str(caught.value))


class TestWhatIsSent:
    def test_through_a_gate(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """The receiver gets each event once, as it came, with its key to be idempotent on."""
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
        """One handler serves many threads, and connections are used again."""
        handler = to(receiver.url())
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: handler(EVENT), range(80)))
        assert len(receiver.received) == 80
        assert receiver.connections <= 16

    def test_own_headers(self, receiver: Receiver, to: Callable[..., Forward], tmp_path: Path) -> None:
        """Headers of the operator's own are sent, and a file of them is read anew for each event."""
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
        assert said(handler).endswith("cannot be read: No such file or directory")

    def test_what_the_sender_wrote_ends_no_header(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """A type that would begin a header of its own is left out of the headers, not of the body."""
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
    def test_headers_that_cannot_be_meant(self, headers: dict[str, str], problem: str) -> None:
        """A header that would change the request is refused at the start, and no value is repeated."""
        with pytest.raises(SettingError) as caught:
            forward("https://crm.example", headers=headers)
        assert problem in str(caught.value)
        assert "s3cret" not in str(caught.value)

    def test_a_file_of_headers_that_is_none(self, tmp_path: Path) -> None:
        """A file with a line that is no header is refused at the start, and the line is not repeated."""
        (tmp_path / "headers").write_text("Bearer s3cret")
        with pytest.raises(SettingError, match=r"each line of .* must be a header in the form Name: value") as caught:
            forward("https://crm.example", headers=tmp_path / "headers")
        assert "s3cret" not in str(caught.value)


class TestAnswers:
    @pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
    def test_taken(self, receiver: Receiver, to: Callable[..., Forward], status: int) -> None:
        """Any 2xx is success."""
        receiver.status, receiver.body = status, b""
        assert to(receiver.url())(EVENT) is None

    @pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 599])
    def test_later(self, receiver: Receiver, to: Callable[..., Forward], status: int) -> None:
        """What may pass is to be tried again, once per attempt, and only the host of the sink is told."""
        receiver.status, receiver.body = status, b"s3cret"
        assert said(to(receiver.url("/token-1?token=2"))) == f"http://127.0.0.1 answered {status}"
        assert len(receiver.received) == 1

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
        """Retry-After counts in seconds or as a date, for an hour at most; what is neither counts for nothing."""
        receiver.status = 503
        receiver.headers = {} if written is None else {"Retry-After": written}
        with pytest.raises(RetryLater) as caught:
            to(receiver.url(), clock=lambda: 60_000_000)(EVENT)
        assert caught.value.after == after

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
    def test_never(self, receiver: Receiver, to: Callable[..., Forward], status: int) -> None:
        """An event that the receiver does not take is a dead letter at once."""
        receiver.status = status
        outcome = Gate("memory://").run({"id": "evt-1"}, to(receiver.url()))
        assert (outcome.status, outcome.event.attempt) == ("buried", 1)
        assert f"answered {status}: the receiver rejects this event" in outcome.reason
        assert outcome.discreet == outcome.reason

    def test_no_redirects(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """A redirect is followed nowhere, and is the receiver's fault rather than the event's."""
        receiver.status, receiver.headers = 307, {"Location": receiver.url("/other")}
        assert said(to(receiver.url())).endswith("redirects are not followed; configure the new address")
        assert [path for path, _, _ in receiver.received] == ["/hook"]

    def test_an_endless_answer(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """Of a long answer no more is read than is needed to know its status."""
        receiver.body = b"x" * 5_000_000
        to(receiver.url())(EVENT)

    def test_a_breach_of_http(self, to: Callable[..., Forward]) -> None:
        """What answers with something else, or not at all, has not taken the event."""
        for answer in (b"220 mail.example ESMTP\r\n", b""):
            with _Speaker(answer) as port:
                assert said(to(f"http://127.0.0.1:{port}")).endswith("closed the connection, or did not answer in HTTP")

    def test_an_answer_that_breaks_off(self, to: Callable[..., Forward]) -> None:
        """A receiver that has said 200 has taken the event, whatever becomes of the rest of its answer."""
        with _Speaker(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc") as port:
            to(f"http://127.0.0.1:{port}")(EVENT)

    def test_slow(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """A receiver that does not answer in time has failed, and the handler does not wait longer."""
        receiver.hold.clear()
        started = time.monotonic()
        assert said(to(receiver.url(), timeout="200ms")) == "http://127.0.0.1 did not answer in time"
        assert time.monotonic() - started < 2

    def test_dribbling(self, to: Callable[..., Forward]) -> None:
        """The time is for the whole request: a byte now and then does not make it longer."""
        with _Speaker(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1_000, pause=0.05) as port:
            started = time.monotonic()
            assert said(to(f"http://127.0.0.1:{port}", timeout="300ms")).endswith("did not answer in time")
            assert time.monotonic() - started < 2

    def test_nobody_there(self, to: Callable[..., Forward]) -> None:
        """A port that is closed and a name that leads nowhere are said in words."""
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port = listener.getsockname()[1]
        assert said(to(f"http://127.0.0.1:{port}")) == "http://127.0.0.1 cannot be reached: Connection refused"
        unknown = said(to("https://sink.invalid", timeout="5s"))
        assert unknown == "https://sink.invalid cannot be reached: the name cannot be resolved"


class TestPlaces:
    def test_private_addresses(self, receiver: Receiver) -> None:
        """A name that leads into the own network is not connected to, unless that is allowed."""
        for host in ("127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]"):
            handler = Forward(f"https://{host}:{receiver.server_address[1]}")
            assert "which is a private address; set allow_private to allow it" in said(handler)
        assert receiver.connections == 0

    def test_the_checked_address_is_the_one(
        self, receiver: Receiver, to: Callable[..., Forward], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name is resolved once for a connection: what it leads to at a second look does not matter."""
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
    def test_the_host_that_is_asked_for(
        self, receiver: Receiver, to: Callable[..., Forward], monkeypatch: pytest.MonkeyPatch, host: str
    ) -> None:
        """The receiver is told the host as it stands in the URL, whatever address that has."""
        resolve = socket.getaddrinfo
        monkeypatch.setattr("socket.getaddrinfo", lambda _host, *rest, **named: resolve("127.0.0.1", *rest, **named))
        to(receiver.url(host=host))(EVENT)
        assert receiver.received[0][1]["Host"] == f"{host}:{receiver.server_address[1]}"

    def test_one_private_address_among_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If any address of a name is private, none of them is tried."""
        found = [(2, 1, 6, "", (address, 443)) for address in ("93.184.215.14", "169.254.169.254")]
        monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_named: found)
        assert "169.254.169.254, which is a private address" in said(Forward("https://sink.example"))

    def test_plain_http_in_public(self, to: Callable[..., Forward], monkeypatch: pytest.MonkeyPatch) -> None:
        """Without TLS nothing is sent to the Internet, whatever is allowed."""
        monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_named: [(2, 1, 6, "", ("93.184.215.14", 80))])
        assert "which is a public address; use https://" in said(to("http://sink.example"))

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
    def test_urls_that_cannot_be_meant(self, url: Any, problem: str) -> None:
        """A URL that cannot be meant is refused at the start, and what may be secret in it is not repeated."""
        with pytest.raises(SettingError) as caught:
            forward(url)
        assert problem in str(caught.value)
        assert "s3cret" not in str(caught.value)

    def test_hosts(self) -> None:
        """With a list of hosts no other one is taken; a star stands for all below, not for the name itself."""
        for url in ("https://crm.example", "https://CRM.example:8443/x", "https://a.b.corp.example"):
            forward(url, hosts=["crm.example", "*.corp.example"])
        for url in ("https://evil.example", "https://corp.example", "https://crm.example.evil.example"):
            with pytest.raises(SettingError, match="is not among the allowed hosts"):
                forward(url, hosts=["crm.example", "*.corp.example"])


class TestTls:
    def test_verified(self, to: Callable[..., Forward]) -> None:
        """A certificate of a trusted authority for the right name is taken."""
        with receiving("server") as receiver:
            to(receiver.url(), ca=CA)(EVENT)
            to(receiver.url(host="localhost"), ca=CA, hosts=["localhost"])(EVENT)
            assert len(receiver.received) == 2

    def test_not_trusted(self, to: Callable[..., Forward]) -> None:
        """An authority that nobody trusts, or another name, ends it before anything is sent."""
        with receiving("server") as receiver:
            assert "has a certificate that is not trusted: unable to get local issuer" in said(to(receiver.url()))
            assert receiver.received == []
        with receiving("elsewhere") as receiver:
            assert "certificate is not valid for '127.0.0.1'" in said(to(receiver.url(), ca=CA))
            assert receiver.received == []

    @pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
    def test_old_tls(self, to: Callable[..., Forward]) -> None:
        """TLS 1.1 is not spoken."""
        with receiving("server", newest=ssl.TLSVersion.TLSv1_1) as receiver:
            assert "failed the TLS handshake" in said(to(receiver.url(), ca=CA))
            assert receiver.received == []

    def test_pinned(self, to: Callable[..., Forward]) -> None:
        """A pin is the SHA-256 of the public key, as other tools print it; one of several will do."""
        with receiving("server") as receiver:
            to(receiver.url(), ca=CA, pins=[OTHER_PIN, SERVER_PIN])(EVENT)
            assert len(receiver.received) == 1

    def test_not_pinned(self, to: Callable[..., Forward]) -> None:
        """A certificate that is trusted but not pinned is sent nothing, and the error says what its pin would be."""
        with receiving("server") as receiver:
            text = said(to(receiver.url(), ca=CA, pins=[OTHER_PIN]))
            assert text.endswith(f"the pin of its certificate is {SERVER_PIN}, which is not among the pins")
            assert receiver.received == []

    def test_a_pin_does_not_replace_trust(self, to: Callable[..., Forward]) -> None:
        """What is pinned must be trusted, too."""
        with receiving("server") as receiver:
            assert "not trusted" in said(to(receiver.url(), pins=[SERVER_PIN]))

    def test_mutual(self, to: Callable[..., Forward]) -> None:
        """A receiver that wants a certificate gets the client's own, and takes nothing without."""
        with receiving("server", mutual=True) as receiver:
            assert "failed the TLS handshake" in said(to(receiver.url(), ca=CA))
            assert receiver.received == []
            to(receiver.url(), ca=CA, certificate=CLIENT)(EVENT)
            assert len(receiver.received) == 1

    @pytest.mark.parametrize(
        ("wishes", "problem"),
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
            ({"timeout": "0s"}, "timeout='0s' must be longer than nothing"),
        ],
    )
    def test_wishes_that_cannot_be_meant(self, wishes: Any, problem: str) -> None:
        """What cannot be used is refused at the start."""
        with pytest.raises(SettingError) as caught:
            forward("https://crm.example", **wishes)
        assert problem in str(caught.value)

    def test_a_key_with_a_passphrase(self, tmp_path: Path) -> None:
        """A key that a person would have to unlock is refused; nobody is asked."""
        (tmp_path / "locked.pem").write_text(_LOCKED)
        with pytest.raises(SettingError, match="its key has a passphrase"):
            forward("https://crm.example", certificate=CLIENT, certificate_key=tmp_path / "locked.pem")


class _Speaker:
    """Says something to whoever connects, whatever was asked."""

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
