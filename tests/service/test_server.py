"""The server: TLS, unfinished handshakes, and the limit of open files."""

import resource
import shutil
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from oncegate.service.server import max_connections
from tests.service.floods import HalfHandshakes, client_hello
from tests.service.running import INLINE, Service, certificate, receive_all


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Service]:
    """A service with a certificate."""
    tls, trusting = certificate(tmp_path)
    options = (*tls, "--request-within", "1s", "--max-connections", "5")
    with Service(tmp_path, *options, verify=trusting) as service:
        yield service


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate: apt install openssl")
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_versions(secure: Service, tmp_path: Path) -> None:
    """With a certificate the service speaks TLS 1.2 and 1.3 only, and no plain HTTP."""
    assert secure.url.startswith("https://")
    assert secure.post({"id": 1}).status_code == 200
    spoken = {version: _speaks(secure, tmp_path, version) for version in ssl.TLSVersion if version > 0}
    assert {version.name for version, it_does in spoken.items() if it_does} == {"TLSv1_2", "TLSv1_3"}
    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.get(secure.url.replace("https", "http") + "/healthz", trust_env=False, verify=False)


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate: apt install openssl")
def test_slow_handshakes_and_idle_connections(secure: Service, tmp_path: Path) -> None:
    """A handshake has the same deadline as a request, and idle TLS connections are closed for new ones."""
    began = time.monotonic()
    with secure.connect() as silent, secure.connect() as slow:
        slow.sendall(b"\x16\x03\x01\x02")
        assert receive_all(silent) == b""
        assert receive_all(slow) == b""
    assert 0.5 < time.monotonic() - began < 5
    context = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    with ExitStack() as stack:
        for number in range(20):
            plain = stack.enter_context(secure.connect())
            stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            if number % 5 == 4:
                assert httpx2.get(secure.url + "/healthz", verify=context, trust_env=False).status_code == 200
    assert secure.post({"id": 1}).status_code == 200
    assert "more than 5 connections" in secure.stderr()


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate: apt install openssl")
def test_stop(secure: Service) -> None:
    """A stop waits neither for handshakes nor for clients that keep their connection open."""
    assert secure.post({"id": 1}).status_code == 200
    with secure.connect() as half:
        half.sendall(b"\x16\x03\x01\x02")
        began = time.monotonic()
        assert secure.stop() == 0
    assert time.monotonic() - began < 10


def _speaks(service: Service, folder: Path, version: ssl.TLSVersion) -> bool:
    context = ssl.create_default_context(cafile=folder / "cert.pem")
    context.set_ciphers("ALL:@SECLEVEL=0")
    try:
        context.minimum_version = context.maximum_version = version
        with service.connect() as plain, context.wrap_socket(plain, server_hostname="127.0.0.1"):
            return True
    except (ssl.SSLError, ValueError):
        return False


def resident(service: Service) -> int:
    """The megabytes of memory that the service has now."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


PART = b"\x16\x03\x01\x02"


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may have as many connections open as the system lets it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def check_during_handshakes(folder: Path, count: int, start: bytes, good: int, files: int | None = None) -> None:
    """With `count` unfinished handshakes a service takes little memory, answers at least `good` requests, each on a new
    connection, and logs one line about the handshakes."""
    options, trusting = certificate(folder)
    with Service(folder, *options, verify=trusting, files=files) as service:
        with HalfHandshakes(service.connect, count, start) as attack:
            codes: Counter[int] = Counter()
            while not attack.all_sent.is_set() or codes.total() < good:
                url = f"{service.url}/events"
                answer = httpx2.post(url, json={"id": codes.total()}, verify=trusting, trust_env=False, timeout=30)
                codes[answer.status_code] += 1
            assert set(codes) == {200}
        assert resident(service) < 150
        assert service.stderr().count("TLS handshakes are unfinished: closing the oldest") == 1


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate: apt install openssl")
@pytest.mark.usefixtures("many_files")
class TestUnfinishedHandshakes:
    """Connections that do not end their TLS handshake count from when they are accepted."""

    def test_memory(self, tmp_path: Path) -> None:
        """Thousands of unfinished handshakes take little memory, and requests are answered meanwhile."""
        check_during_handshakes(tmp_path, 2_500, PART, good=5)

    def test_few_files(self, tmp_path: Path) -> None:
        """Unfinished handshakes leave file descriptors for requests, even if few files may be open."""
        check_during_handshakes(tmp_path, 400, client_hello(), good=27, files=300)

    @pytest.mark.long
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("start", [PART, client_hello()], ids=["a few bytes", "a hello"])
    def test_memory_with_19000_handshakes(self, tmp_path: Path, start: bytes) -> None:
        """The same with as many handshakes as one machine can open."""
        check_during_handshakes(tmp_path, 19_000, start, good=27)

    def test_failed_handshakes(self, tmp_path: Path) -> None:
        """A handshake that is too slow or invalid is closed, and the log has a few lines a minute about it."""
        options, trusting = certificate(tmp_path)
        with Service(tmp_path, *options, "--request-within", "500ms", verify=trusting) as service:
            with service.connect() as slow:
                slow.sendall(PART)
                assert receive_all(slow) == b""
            for _ in range(20):
                service.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert "a TLS handshake with 127.0.0.1 did not end within 0.5 s" in service.stderr()
            assert service.stderr().count("a TLS handshake with 127.0.0.1 failed: HTTP_REQUEST") == 4


def test_threads_give_the_interpreter_to_the_event_loop(tmp_path: Path) -> None:
    """With the interval of 5 ms that is the default, the threads of the console would delay events."""
    handler = "import sys\n\ndef handle(event):\n    open('interval', 'w').write(str(sys.getswitchinterval()))\n"
    with Service(tmp_path, *INLINE, handler=handler) as service:
        assert service.post({"id": "evt-1"}).status_code == 200
    assert float((tmp_path / "interval").read_text()) == pytest.approx(0.0005)


def test_file_limit_is_raised(tmp_path: Path) -> None:
    """The service raises its limit of open files to the hard limit, up to 65,536."""
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
    """Connections use at most half of the open files; a lower limit than configured is logged."""
    assert max_connections(500, 1_024) == 500
    assert caplog.text == ""
    assert max_connections(4_000, 1_024) == 512
    assert "serve.max_connections is 4000, but only 1024 files may be open: the limit is 512 connections" in caplog.text
