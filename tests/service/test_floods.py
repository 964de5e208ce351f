"""Strangers without a secret that send much and finish nothing: signed senders are answered all the same."""

import json
import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.floods import HalfHandshakes, UnfinishedBodies, client_hello
from tests.service.running import Service, certificate, heard
from tests.service.test_routes import signed
from tests.signatures.sending import whsec

TOML = '[serve]\nmode = "inline"\n[route.crm]\nsignature = "standard-webhooks"\nsecret_env = "CRM_SECRET"\n'
STRANGERS = 76
PART = b"\x16\x03\x01\x02"


def senders_beside(service: Service, size: int, rate: int, requests: int) -> Counter[int]:
    """What signed requests of 2 kB are answered while strangers hold as many bytes as they can."""
    codes: Counter[int] = Counter()
    with UnfinishedBodies(service.connect, STRANGERS, size, rate) as strangers:
        assert strangers.filled.wait(60)
        for number in range(requests):
            body = json.dumps({"id": f"evt-{number}", "text": "x" * 2_000}).encode()
            codes[service.post(body, "/events/crm", headers=signed(whsec(1), body)).status_code] += 1
    return codes


def resident(service: Service) -> int:
    """The megabytes of memory that the service has now."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def test_unfinished_bodies(tmp_path: Path) -> None:
    """Bodies that never end take no room from those that are signed; the oldest are refused with 408."""
    options = ("--max-body", "20000", "--max-bytes-in-hand", "1000000", "--max-bytes-arriving", "400000")
    with Service(tmp_path, *options, toml=TOML, environ={"CRM_SECRET": whsec(1)}) as service:
        assert senders_beside(service, 1_000_000 // STRANGERS, 10**9, 100) == {200: 100}
        assert "(serve.max_bytes_arriving): rejecting the oldest" in service.said()


@pytest.mark.long
def test_unfinished_bodies_in_full(tmp_path: Path) -> None:
    """The same with the bounds as they are by default, at 8 MB/s."""
    with Service(tmp_path, toml=TOML, environ={"CRM_SECRET": whsec(1)}) as service:
        codes = senders_beside(service, 64 * 1024 * 1024 // STRANGERS, 8_000_000, 196)
        assert codes[200] >= 0.99 * codes.total()
        assert resident(service) < 150


def test_the_oldest_goes_first(tmp_path: Path) -> None:
    """Of requests that do not fit, the one that began first is refused; a later one is still taken when it ends."""
    options = ("--max-body", "1000", "--max-bytes-arriving", "4000", "--serve-mode", "inline")
    event = b'{"id": "evt-1", "text": "%s"}' % (b"x" * 900)
    head = b"POST /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(event)
    with Service(tmp_path, *options) as service:
        begun = [service.connect() for _ in range(5)]
        for connection in begun:
            connection.sendall(head + event[:-1])
        assert begun[0].recv(65536).startswith(b"HTTP/1.1 408 Request Timeout")
        begun[-1].sendall(event[-1:])
        assert begun[-1].recv(65536).startswith(b"HTTP/1.1 200")
        for connection in begun:
            connection.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may have as many connections open as the system lets it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def beside_handshakes(folder: Path, count: int, start: bytes, good: int, files: int | None = None) -> None:
    """A service with so many half handshakes takes little memory, answers so many good requests at least, each over a
    connection of its own, and says once what it does."""
    options, trusting = certificate(folder)
    with Service(folder, *options, verify=trusting, files=files) as service:
        with HalfHandshakes(service.connect, count, start) as strangers:
            codes: Counter[int] = Counter()
            while not strangers.all_sent.is_set() or codes.total() < good:
                url = f"{service.url}/events"
                answer = httpx.post(url, json={"id": codes.total()}, verify=trusting, trust_env=False, timeout=30)
                codes[answer.status_code] += 1
            assert set(codes) == {200}
        assert resident(service) < 150
        assert service.said().count("TLS handshakes are unfinished: closing the oldest") == 1


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate: apt install openssl")
@pytest.mark.usefixtures("many_files")
class TestHalfHandshakes:
    """Connections that do not end their TLS handshake count from when they are accepted."""

    def test_their_memory(self, tmp_path: Path) -> None:
        """Thousands of them take little memory, and good senders get through meanwhile."""
        beside_handshakes(tmp_path, 2_500, PART, good=5)

    def test_few_files(self, tmp_path: Path) -> None:
        """They leave files for good senders where few may be open."""
        beside_handshakes(tmp_path, 400, client_hello(), good=27, files=300)

    @pytest.mark.long
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("start", [PART, client_hello()], ids=["a few bytes", "a hello"])
    def test_their_memory_in_full(self, tmp_path: Path, start: bytes) -> None:
        """The same with as many as one machine can open."""
        beside_handshakes(tmp_path, 19_000, start, good=27)

    def test_those_that_fail(self, tmp_path: Path) -> None:
        """One that takes too long is closed, as is one that is none, and the log says so a few times a minute."""
        options, trusting = certificate(tmp_path)
        with Service(tmp_path, *options, "--request-within", "500ms", verify=trusting) as service:
            with service.connect() as slow:
                slow.sendall(PART)
                assert heard(slow) == b""
            for _ in range(20):
                service.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert "a TLS handshake with 127.0.0.1 did not end within 0.5 s" in service.said()
            assert service.said().count("a TLS handshake with 127.0.0.1 failed: HTTP_REQUEST") == 4
