"""What the service tells of itself: health, readiness, metrics, and a description that is true."""

import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from oncegate.service.openapi import DOCUMENT
from tests.service.running import Service, certificate, heard, until
from tests.service.test_routes import signed
from tests.signatures.sending import whsec

TOML = """
[serve]
signature = "none"
mode = "inline"

[route.crm]
signature = "standard-webhooks"
secret_env = "CRM_SECRET"
max_rate = 2
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("telling")
    with Service(folder, toml=TOML, environ={"CRM_SECRET": whsec(1)}) as service:
        yield service


def metrics(service: Service) -> dict[tuple[str, ...], float]:
    """Every sample by its name and labels."""
    answer = service.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_deliveries_are_counted(service: Service) -> None:
    """What became of each event is counted by route, status and kind, by what the gate tells."""
    for _ in range(3):
        service.post({"id": "counted"})
    service.post("{")
    delivered = ("oncegate_deliveries_total", "kind=redelivery", "route=default", "status=duplicate")
    until(lambda: metrics(service).get(delivered) == 2)
    found = metrics(service)
    assert found["oncegate_deliveries_total", "kind=", "route=default", "status=processed"] == 1
    assert found["oncegate_deliveries_total", "kind=", "route=default", "status=invalid"] == 1
    assert found["oncegate_latency_seconds_count", "route=default"] >= 4
    assert found["oncegate_in_hand",] == 0


def test_refusals_are_counted(service: Service) -> None:
    """So are refused signatures, and what was one too many."""
    body = b'{"id": "signed"}'
    assert service.post(body, "/events/crm").status_code == 401
    codes = [service.post(body, "/events/crm", headers=signed(whsec(1), body)).status_code for _ in range(4)]
    assert 429 in codes
    found = metrics(service)
    assert found["oncegate_signature_refusals_total", "route=crm"] == 1
    assert found["oncegate_limited_total", "route=crm"] >= 1
    assert found["oncegate_signature_refusals_total", "route=default"] == 0


def test_every_metric_is_documented(service: Service) -> None:
    """The guide names each metric that there is, and no other."""
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "webhooks.md").read_text()
    shown = service.client.get("/metrics").text
    there_are = {line.split()[2] for line in shown.splitlines() if line.startswith("# TYPE") and "_created" not in line}
    listed = {line.split("`")[1].partition("{")[0] for line in guide.splitlines() if line.startswith("| `oncegate_")}
    assert there_are == listed


def test_metrics_at_an_address_of_their_own(tmp_path: Path) -> None:
    """Metrics can be served at another address, with a token, and nowhere else; nothing else is served there."""
    (tmp_path / "token").write_text(f"{whsec(2)}\n")
    options = ("--metrics-host", "127.0.0.1", "--metrics-port", "0", "--metrics-token-file", "token")
    tokens = {"ONCEGATE_SERVE_METRICS_TOKEN_ENV": "ONCEGATE_METRICS_NOW", "ONCEGATE_METRICS_NOW": whsec(1)}
    with Service(tmp_path, *options, environ=tokens) as service:
        found = re.search(r"Metrics are at (\S+)/metrics\.", service.welcome)
        assert found
        assert service.post({"id": 1}).status_code == 200
        with httpx.Client(base_url=found[1], trust_env=False) as client:
            refused = client.get("/metrics")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            headers = [{"authorization": f"Bearer {whsec(number)}"} for number in (1, 2, 3)]
            assert [client.get("/metrics", headers=each).status_code for each in headers] == [200, 200, 401]
            assert client.post("/metrics", headers=headers[0]).status_code == 405
            assert client.post("/events", json={"id": 2}).status_code == 404
            assert client.get("/healthz").status_code == 404
        assert service.client.get("/metrics", headers=headers[0]).status_code == 404
        assert whsec(1) not in service.said()


def test_a_token_alone(tmp_path: Path) -> None:
    """Metrics can need a token where events are posted; health and events do not."""
    options = ("--metrics-token-env", "METRICS_TOKEN")
    with Service(tmp_path, *options, environ={"METRICS_TOKEN": whsec(1)}) as service:
        assert service.client.get("/metrics").status_code == 401
        assert service.client.get("/metrics", headers={"authorization": f"Bearer {whsec(1)}"}).status_code == 200
        assert service.client.get("/healthz").status_code == 200
        assert service.post({"id": 1}).status_code == 200


def test_the_welcome(service: Service) -> None:
    """Whoever starts it is told which places are signed, and loudly which are not."""
    assert f"POST {service.url}/events/crm  signature: standard-webhooks" in service.welcome
    assert f"POST {service.url}/events  unsigned: anyone who can reach it can send" in service.welcome


def test_the_description_is_true(service: Service) -> None:
    """Whatever is sent by the description, good or bad, is answered as it says."""
    assert service.client.get("/openapi.json").json() == DOCUMENT
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{service.url}/openapi.json",
        "--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        "--max-examples=8",
        "--no-color",
        "--phases=examples,fuzzing",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=service.folder)
    assert done.returncode == 0, done.stdout[-5_000:]


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Service]:
    """A service with a certificate of its own."""
    tls, trusting = certificate(tmp_path)
    options = (*tls, "--request-within", "1s", "--max-connections", "5")
    with Service(tmp_path, *options, verify=trusting) as service:
        yield service


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate: apt install openssl")
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls(secure: Service, tmp_path: Path) -> None:
    """With a certificate the service speaks TLS 1.2 and 1.3, nothing older, and nothing in the clear."""
    assert secure.url.startswith("https://")
    assert secure.post({"id": 1}).status_code == 200
    spoken = {version: _speaks(secure, tmp_path, version) for version in ssl.TLSVersion if version > 0}
    assert {version.name for version, it_does in spoken.items() if it_does} == {"TLSv1_2", "TLSv1_3"}
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(secure.url.replace("https", "http") + "/healthz", trust_env=False)


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate: apt install openssl")
def test_slow_and_silent_with_tls(secure: Service, tmp_path: Path) -> None:
    """A handshake has as long as a request has; and connections that only wait are closed for those that send."""
    began = time.monotonic()
    with secure.connect() as silent, secure.connect() as slow:
        slow.sendall(b"\x16\x03\x01\x02")
        assert heard(silent) == b""
        assert heard(slow) == b""
    assert 0.5 < time.monotonic() - began < 5
    context = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    with ExitStack() as stack:
        for number in range(20):
            plain = stack.enter_context(secure.connect())
            stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            if number % 5 == 4:
                assert httpx.get(secure.url + "/healthz", verify=context, trust_env=False).status_code == 200
    assert secure.post({"id": 1}).status_code == 200
    assert "more than 5 connections" in secure.said()


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate: apt install openssl")
def test_a_stop_with_tls(secure: Service) -> None:
    """A stop waits neither for handshakes nor for a client that keeps its connection open."""
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
