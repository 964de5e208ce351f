"""The application: responses over HTTP for each outcome, health and readiness."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from oncegate import Event, Gate, open_store
from oncegate.errors import StoreUnavailable
from oncegate.service.admission import Admission
from oncegate.service.monitoring import Metrics
from oncegate.service.route import Route
from oncegate.service.service import Service as InProcessService
from oncegate.settings import load
from tests.service.apps import app_of, get, post
from tests.service.running import INLINE, Service, until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests; each test sends other events."""
    with Service(tmp_path_factory.mktemp("answers"), *INLINE) as service:
        yield service


def dead_letters(service: Service) -> list[bytes | None]:
    with closing(open_store(f"sqlite:///{service.folder}/oncegate.db")) as store:
        return [entry.record.payload for entry in store.dead_letters()]


def test_processed_then_duplicate(service: Service) -> None:
    """The first delivery is processed and the second is a duplicate. Both get 200, and the handler runs once."""
    first, second = service.post({"id": "evt-1"}), service.post({"id": "evt-1"})
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == {
        "status": "processed",
        "event_id": "evt-1",
        "key": "1167701c9060313049c77c4c6d470800",
        "kind": None,
        "reason": "Processed at the first attempt.",
    }
    assert (second.json()["status"], second.json()["kind"]) == ("duplicate", "redelivery")
    assert service.effects().count("evt-1") == 1


def test_failed_then_buried(service: Service) -> None:
    """A failure gets 503 with Retry-After, so that every sender retries. The failure of the last attempt buries the
    event and gets 200."""
    first = service.post({"id": "fails", "do": "fail"})
    assert (first.status_code, first.headers["content-type"]) == (503, "application/problem+json")
    assert int(first.headers["retry-after"]) > 0
    assert (first.json()["status"], first.json()["outcome"]) == (503, "failed")
    last = service.post({"id": "fails", "do": "fail"})
    assert (last.status_code, last.json()["status"]) == (200, "buried")


def test_in_flight(service: Service) -> None:
    """A duplicate of an event in flight gets 503, with Retry-After no longer than the lease."""
    waiting = threading.Thread(target=service.post, args=({"id": "waits", "do": "wait"},))
    waiting.start()
    until(lambda: "waits" in service.effects())
    copy = service.post({"id": "waits", "do": "wait"})
    (service.folder / "go").touch()
    waiting.join()
    assert (copy.status_code, copy.json()["outcome"]) == (503, "in_flight")
    assert 1 <= int(copy.headers["retry-after"]) <= 30
    assert service.post({"id": "waits", "do": "wait"}).json()["status"] == "duplicate"


def test_conflict(service: Service) -> None:
    """Different content under a known key gets 200 after a copy is stored as a dead letter."""
    service.post({"id": "conflicts", "n": 1})
    answer = service.post({"id": "conflicts", "n": 2})
    assert (answer.status_code, answer.json()["status"]) == (200, "conflict")
    assert b'{"id": "conflicts", "n": 2}' in dead_letters(service)


@pytest.mark.parametrize("body", [b"", b"{", b"5", b"null", b'{"id":1.5}', b'{"a":"\xff"}', b"[" * 5_000])
def test_unreadable(service: Service, body: bytes) -> None:
    """An unreadable body gets 400 with the reason, after its bytes are stored as a dead letter."""
    answer = service.post(body)
    assert (answer.status_code, answer.json()["outcome"]) == (400, "invalid")
    assert body in dead_letters(service)


def test_several_events(service: Service) -> None:
    """An array gets one outcome per event; the highest code of the outcomes counts."""
    answer = service.post([{"id": 1}, {"id": 1}, {"id": 2}])
    assert answer.status_code == 200
    assert [each["status"] for each in answer.json()["outcomes"]] == ["processed", "duplicate", "processed"]
    assert service.post([{"id": 3}, 5]).status_code == 400
    assert service.post([{"id": 4}, 5, {"id": 5, "do": "fail"}]).status_code == 503
    assert service.post([]).status_code == 400


def test_other_paths_methods_and_origins(service: Service) -> None:
    """Other paths, methods and origins are rejected with 404, 405 and 403."""
    assert service.client.get("/").status_code == 404
    wrong = service.client.get("/events")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    wrong = service.client.post("/healthz")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
    assert service.post('{"id": "page"}', headers={"origin": "https://evil.example"}).status_code == 403
    assert "page" not in service.effects()
    assert service.client.get("/healthz").json() == {"status": "ok"}
    assert service.client.get("/readyz").json() == {"status": "ready"}


def test_client_disconnects(service: Service) -> None:
    """A body that is cut off is dropped: it becomes no dead letter."""
    with service.connect() as connection:
        connection.sendall(b'POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n{"id": "cut')
    assert service.post({"id": "after"}).status_code == 200
    assert not [payload for payload in dead_letters(service) if payload and b"cut" in payload]


def test_handler_calls_sys_exit(service: Service) -> None:
    """A handler that calls sys.exit fails its event only."""
    assert service.post({"id": "exits", "do": "exit"}).status_code == 503
    assert service.post({"id": "stays"}).status_code == 200


def test_concurrent_duplicates(service: Service) -> None:
    """Concurrent duplicates cause one handler run; those with 503 are duplicates when they are sent again."""
    with httpx2.Client(base_url=service.url, timeout=30, trust_env=False, verify=False) as client:
        answers: list[int] = []

        def send() -> None:
            code = 503
            while code == 503:
                code = client.post("/events", json={"id": "same"}).status_code
            answers.append(code)

        threads = [threading.Thread(target=send) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [200] * 16
    assert service.effects().count("same") == 1


class BrokenRoute(Route):
    """A route whose worker fails at once."""

    @property
    def admission(self) -> Admission:
        raise RuntimeError("broken")

    @admission.setter
    def admission(self, _admission: Admission) -> None: ...


class TestReadiness:
    @pytest.fixture
    def effects(self) -> list[Event]:
        return []

    @pytest.fixture
    def service(self, tmp_path: Path, effects: list[Event]) -> Iterator[InProcessService]:
        (tmp_path / "oncegate.toml").write_text('store = "memory://"\nlog = "off"\nserve.mode = "inline"\n')
        settings = load(tmp_path / "oncegate.toml", environ={})
        service = InProcessService(settings, {"/events": effects.append}, [])
        yield service
        service.close()

    def test_unavailable_store(self, service: InProcessService, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without its store the service is alive but not ready, and the response does not name the store."""
        assert [get(service.app, path).status_code for path in ("/healthz", "/readyz")] == [200, 200]

        def away(*_: object) -> None:
            raise StoreUnavailable("the disk at /secret/place is gone")

        monkeypatch.setattr(service._store, "load", away)
        assert [get(service.app, path).status_code for path in ("/healthz", "/readyz")] == [200, 503]
        assert "secret" not in get(service.app, "/readyz").text

    def test_failed_worker(self, caplog: pytest.LogCaptureFixture) -> None:
        """If the worker of a route has failed, /healthz gets 503."""
        gate = Gate("memory://")
        app = app_of(gate)

        async def main() -> httpx2.Response:
            await app._run_route(BrokenRoute("default", app._routes["/events"].admission, Metrics()), asyncio.Event())
            transport = httpx2.ASGITransport(app)  # type: ignore[arg-type]
            async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.get("/healthz")

        assert asyncio.run(main()).status_code == 503
        assert "no longer run" in caplog.text
        gate.close()

    def test_draining(self, service: InProcessService, effects: list[Event]) -> None:
        """A draining service is not ready; a request gets 503 and its event is not claimed."""
        service.app.drain()
        assert get(service.app, "/readyz").status_code == 503
        answer = post(service.app, "/events", b'{"id": 1}')
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert effects == []
