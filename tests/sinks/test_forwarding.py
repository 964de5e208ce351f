"""Forwarding: events posted to a URL, over a real connection."""

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from oncegate import Event, Gate, read
from oncegate.errors import RetryLater, SettingError
from oncegate.sinks import forward
from oncegate.sinks.forwarding import Forward
from oncegate.sinks.network import Network, NotAllowed, is_nobodys, is_private
from tests.sinks.receiver import CA, CLIENT, SERVER_PIN, Receiver, receiving

EVENT = Event(source="plain", type="call.ended", body={"id": "evt-1"}, raw=b'{ "id": "evt-1" }', id="evt-1", attempt=1)
OTHER_PIN = "sha256//" + "A" * 43 + "="
# The entries of IANA's registries of special-purpose addresses for IPv4 and IPv6, but for ::ffff:0:0/96, 64:ff9b::/96
# and 2002::/16, which are judged by the address of IPv4 in them. In the last line multicast, and what was special once
# or is not assigned.
REGISTRIES = [
    *("0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32"),
    *("192.0.0.171/32", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32"),
    *("192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"),
    *("255.255.255.255/32", "::1/128", "::/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23"),
    *("2001::/32", "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48"),
    *("2001:10::/28", "2001:20::/28", "2001:30::/28", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20", "5f00::/16"),
    *("fc00::/7", "fe80::/10"),
    *("224.0.0.0/4", "ff00::/8", "fec0::/10", "::/96", "::ffff:0:0:0/96", "200::/7", "4000::/3", "e000::/4"),
]


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
            ({"X A": "1"}, "'X A' is no name of a header"),
            ({"X-A\r\nB": "1"}, "is no name of a header"),
            ({"Host": "elsewhere"}, "the header Host is set by Oncegate itself; leave it out"),
            ({"transfer-encoding": "chunked"}, "is set by Oncegate itself"),
            ({"Idempotency-Key": "1"}, "is set by Oncegate itself"),
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
        with pytest.raises(SettingError, match=r"each line of .* must be a header, written Name: value") as caught:
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
        assert f"answered {status}: it does not take this event" in outcome.reason
        assert outcome.discreet == outcome.reason

    def test_no_redirects(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """A redirect is followed nowhere, and is the receiver's fault rather than the event's."""
        receiver.status, receiver.headers = 307, {"Location": receiver.url("/other")}
        assert said(to(receiver.url())).endswith("redirects are not followed; write the address that it has now")
        assert [path for path, _, _ in receiver.received] == ["/hook"]

    def test_an_endless_answer(self, receiver: Receiver, to: Callable[..., Forward]) -> None:
        """Of a long answer no more is read than is needed to know its status."""
        receiver.body = b"x" * 5_000_000
        to(receiver.url())(EVENT)

    def test_a_breach_of_http(self, to: Callable[..., Forward]) -> None:
        """What answers with something else, or not at all, has not taken the event."""
        for answer in (b"220 mail.example ESMTP\r\n", b""):
            with _Speaker(answer) as port:
                assert said(to(f"http://127.0.0.1:{port}")).endswith("broke off, or did not answer in HTTP")

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
        assert unknown == "https://sink.invalid cannot be reached: its name cannot be resolved"


class TestPlaces:
    def test_private_addresses(self, receiver: Receiver) -> None:
        """A name that leads into the own network is not connected to, unless that is allowed."""
        for host in ("127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]"):
            handler = Forward(f"https://{host}:{receiver.server_address[1]}")
            assert "which is a private address; allow these with allow_private" in said(handler)
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
        assert "which is a public address; write https://" in said(to("http://sink.example"))

    @pytest.mark.parametrize(
        "address",
        [
            *("10.1.2.3", "172.16.0.1", "192.168.1.1", "127.9.9.9", "169.254.169.254", "100.64.0.1", "192.0.2.1"),
            *("::1", "::", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"),
        ],
    )
    def test_what_is_private(self, address: str) -> None:
        """Private is all that is not of the public Internet, in whatever spelling."""
        assert is_private(ip_address(address))

    def test_what_is_not(self) -> None:
        """Public addresses are none, and an address of many hosts is nobody's."""
        assert not any(
            is_private(ip_address(each)) for each in ("93.184.215.14", "2606:4700::1111", "64:ff9b::808:808")
        )
        assert all(is_nobodys(ip_address(each)) for each in ("224.0.0.1", "ff0e::1", "::", "::ffff:239.1.1.1"))
        assert not is_nobodys(ip_address("10.0.0.1"))

    @pytest.mark.parametrize("block", REGISTRIES)
    def test_special_ranges(self, block: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first, a middle and the last address of every special range are refused, also inside of an IPv6 address
        that embeds one, and a name that leads there is not connected to."""
        network = ip_network(block)
        middle = network[network.num_addresses // 2]
        for address in (network[0], middle, network[-1]):
            spelt = [str(address)]
            if isinstance(address, IPv4Address):
                high, low = address.packed[:2].hex(), address.packed[2:].hex()
                spelt += [f"::ffff:{address}", f"64:ff9b::{address}", f"2002:{high}:{low}::1", f"::{address}"]
            for each in spelt:
                assert is_private(ip_address(each)), each
                monkeypatch.setattr("socket.getaddrinfo", lambda *_, each=each, **__: [(0, 1, 6, "", (each, 443))])
                with pytest.raises(NotAllowed, match=r"which is (a private address|no address of a single host)"):
                    Network(allow_private=False, secure=True, pins=())._checked("sink.example", 443)

    @pytest.mark.parametrize(
        "address",
        [
            *("1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0"),
            *("191.255.255.255", "192.0.1.0", "192.0.3.0", "192.88.98.255", "192.88.100.0", "198.17.255.255"),
            *("198.20.0.0", "203.0.114.0", "223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"),
            *("2001:200::1", "2001:4860:4860::8888", "2001:db7:ffff::1", "2620:4f:7fff::1", "3ffe:ffff::1", "2a00::1"),
        ],
    )
    def test_beside_special_ranges(self, address: str) -> None:
        """What lies beside a special range, or embeds a public address, is public."""
        assert not is_private(ip_address(address))
        assert not is_nobodys(ip_address(address))

    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            ("ftp://crm.example", "an event is forwarded to a URL such as https://crm.example/events"),
            ("https://", "an event is forwarded to a URL"),
            ("https://crm.example/a b", "without blanks"),
            ("https://crm.example/\r\nX: 1", "an event is forwarded to a URL"),
            ("https://crm.exämple", "in ASCII"),
            ("https://crm.example:99999", "cannot be read: its host or its port"),
            ("https://user:s3cret/@crm.example", "cannot be read: its host or its port"),
            ("https://:443/", "needs a host"),
            ("https://crm.example/#a", "has no use for a #fragment"),
            ("https://me:s3cret@crm.example", "must not hold a password; send it in a header, from a file"),
            ("http://crm.example", "http://crm.example is not encrypted: write https://, or allow_private"),
            (7, "an event is forwarded to a URL"),
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
            with pytest.raises(SettingError, match="is none of those that may be forwarded to"):
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
            assert "shows a certificate that is not trusted: unable to get local issuer" in said(to(receiver.url()))
            assert receiver.received == []
        with receiving("elsewhere") as receiver:
            assert "certificate is not valid for '127.0.0.1'" in said(to(receiver.url(), ca=CA))
            assert receiver.received == []

    @pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
    def test_old_tls(self, to: Callable[..., Forward]) -> None:
        """TLS 1.1 is not spoken."""
        with receiving("server", newest=ssl.TLSVersion.TLSv1_1) as receiver:
            assert "does not agree on TLS" in said(to(receiver.url(), ca=CA))
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
            assert text.endswith(f"the public key of its certificate is {SERVER_PIN}, which is not pinned")
            assert receiver.received == []

    def test_a_pin_does_not_replace_trust(self, to: Callable[..., Forward]) -> None:
        """What is pinned must be trusted, too."""
        with receiving("server") as receiver:
            assert "not trusted" in said(to(receiver.url(), pins=[SERVER_PIN]))

    def test_mutual(self, to: Callable[..., Forward]) -> None:
        """A receiver that wants a certificate gets the client's own, and takes nothing without."""
        with receiving("server", mutual=True) as receiver:
            assert "does not agree on TLS" in said(to(receiver.url(), ca=CA))
            assert receiver.received == []
            to(receiver.url(), ca=CA, certificate=CLIENT)(EVENT)
            assert len(receiver.received) == 1

    @pytest.mark.parametrize(
        ("wishes", "problem"),
        [
            ({"pins": ["abc"]}, "is no SHA-256 of a public key; write it as curl does, sha256//…"),
            ({"ca": "nowhere.pem"}, "in nowhere.pem cannot be used: No such file or directory"),
            ({"ca": __file__}, "cannot be used: it is no PEM file of one"),
            ({"certificate": "nowhere.pem"}, "the client certificate in nowhere.pem cannot be used: No such file"),
            ({"certificate": CA}, "cannot be used: it is no PEM file of one"),
            ({"certificate": CLIENT, "certificate_key": CLIENT.with_name("server.pem")}, "its key is that of another"),
            ({"certificate_key": CLIENT}, "certificate_key needs the certificate that it belongs to"),
            ({"timeout": "0s"}, "timeout='0s' must be longer than 0"),
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
