"""A service whose SQLite file another process has locked."""

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.service.running import Service, until

STORE = "sqlite:///oncegate.db?busy_timeout=1s"
WAITING = 'oncegate_inbox_waiting{route="default"} '


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, "--store", STORE) as service:
        yield service


@contextmanager
def locked(service: Service) -> Iterator[None]:
    with closing(sqlite3.connect(service.folder / "oncegate.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def timed(service: Service, path: str, body: bytes | None = None) -> tuple[httpx2.Response, float]:
    """The answer, and how long it took."""
    start = time.monotonic()
    answer = service.client.request("GET" if body is None else "POST", path, content=body)
    return answer, time.monotonic() - start


def test_requests_get_503(service: Service) -> None:
    """While the file is locked, every request gets 503 within about one busy timeout. A handler that ended meanwhile is
    recorded when the file is free, and requests are accepted again."""
    assert service.post({"id": "first", "do": "wait"}).status_code == 200
    until(lambda: service.effects() == ["first"])
    bodies = [b'{"id": %d}' % number for number in range(6)]
    bodies[3] = b"[%s]" % b",".join(b'{"id": "many-%d"}' % number for number in range(600))

    def send(body: bytes) -> tuple[httpx2.Response, float]:
        time.sleep(bodies.index(body) * 0.25)
        return timed(service, "/events", body)

    with locked(service), ThreadPoolExecutor(len(bodies)) as senders:
        (service.folder / "go").touch()
        answers = list(senders.map(send, bodies))
    assert {(answer.status_code, answer.headers["retry-after"]) for answer, _ in answers} == {(503, "5")}
    assert max(seconds for _, seconds in answers) < 2.2
    until(lambda: service.post({"id": "first", "do": "wait"}).json()["status"] == "duplicate")
    assert service.post(bodies[0]).status_code == 200
    until(lambda: service.effects() == ["first", "0"])


def test_readiness_and_metrics(service: Service) -> None:
    """While the file is locked, the service is not ready; readiness and metrics answer within about a second. It is
    ready again when the file is free, without a request."""
    assert service.client.get("/readyz").status_code == 200
    service.post({"id": "first", "do": "wait"})
    with locked(service), ThreadPoolExecutor(1) as senders:
        until(lambda: service.client.get("/readyz").status_code == 503)
        sent = senders.submit(httpx2.post, f"{service.url}/events", json={"id": 2}, timeout=30, trust_env=False)
        asked = [timed(service, path) for path in ("/readyz", "/metrics", "/healthz") * 2]
        assert [answer.status_code for answer, _ in asked] == [503, 200, 200] * 2
        assert max(seconds for _, seconds in asked) < 1.5
        assert f"{WAITING}1.0" in asked[1][0].text
        assert sent.result().status_code == 503
    assert service.client.get("/readyz").status_code == 200
    (service.folder / "go").touch()
