"""Each answer of the table over real HTTP, of a service that runs handlers while their senders wait."""

import threading
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from oncegate import open_store
from tests.service.running import INLINE, Service, until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all of these tests, each of which has events of its own."""
    with Service(tmp_path_factory.mktemp("answers"), *INLINE) as service:
        yield service


def dead_letters(service: Service) -> list[bytes | None]:
    with closing(open_store(f"sqlite:///{service.folder}/oncegate.db")) as store:
        return [entry.record.payload for entry in store.dead_letters()]


def test_first_and_second(service: Service) -> None:
    """The first delivery is processed, the second is a duplicate; both are 200, and the effect is one."""
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
    """A failure is 503 with Retry-After, so that every sender tries again; the last buries and is 200."""
    first = service.post({"id": "fails", "do": "fail"})
    assert (first.status_code, first.headers["content-type"]) == (503, "application/problem+json")
    assert int(first.headers["retry-after"]) > 0
    assert (first.json()["status"], first.json()["outcome"]) == (503, "failed")
    last = service.post({"id": "fails", "do": "fail"})
    assert (last.status_code, last.json()["status"]) == (200, "buried")


def test_in_flight(service: Service) -> None:
    """A copy that comes while the first is at it is 503, to be sent again when its lease is over."""
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
    """Other content under a known key is 200 once a copy is kept."""
    service.post({"id": "conflicts", "n": 1})
    answer = service.post({"id": "conflicts", "n": 2})
    assert (answer.status_code, answer.json()["status"]) == (200, "conflict")
    assert b'{"id": "conflicts", "n": 2}' in dead_letters(service)


@pytest.mark.parametrize("body", [b"", b"{", b"5", b"null", b'{"id":1.5}', b'{"a":"\xff"}', b"[" * 5_000])
def test_unreadable(service: Service, body: bytes) -> None:
    """What cannot be read is 400 with the reason, after its bytes are kept as a dead letter."""
    answer = service.post(body)
    assert (answer.status_code, answer.json()["outcome"]) == (400, "invalid")
    assert body in dead_letters(service)


def test_several_events(service: Service) -> None:
    """An array is answered with an outcome for each; the one that fared worst decides the code."""
    answer = service.post([{"id": 1}, {"id": 1}, {"id": 2}])
    assert answer.status_code == 200
    assert [each["status"] for each in answer.json()["outcomes"]] == ["processed", "duplicate", "processed"]
    assert service.post([{"id": 3}, 5]).status_code == 400
    assert service.post([{"id": 4}, 5, {"id": 5, "do": "fail"}]).status_code == 503
    assert service.post([]).status_code == 400


def test_elsewhere(service: Service) -> None:
    """Other places, methods and origins are refused in words."""
    assert service.client.get("/").status_code == 404
    wrong = service.client.get("/events")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    wrong = service.client.post("/healthz")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
    assert service.post('{"id": "page"}', headers={"origin": "https://evil.example"}).status_code == 403
    assert "page" not in service.effects()
    assert service.client.get("/healthz").json() == {"status": "ok"}
    assert service.client.get("/readyz").json() == {"status": "ready"}


def test_a_sender_that_leaves(service: Service) -> None:
    """A body that was cut off is nothing that anybody sent: no dead letter is made of it."""
    with service.connect() as connection:
        connection.sendall(b'POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n{"id": "cut')
    assert service.post({"id": "after"}).status_code == 200
    assert not [payload for payload in dead_letters(service) if payload and b"cut" in payload]


def test_a_handler_that_exits(service: Service) -> None:
    """A handler that calls sys.exit fails its event and nothing else."""
    assert service.post({"id": "exits", "do": "exit"}).status_code == 503
    assert service.post({"id": "stays"}).status_code == 200


def test_many_at_once(service: Service) -> None:
    """Copies that arrive together have one effect; those told to come again are duplicates then."""
    with httpx.Client(base_url=service.url, timeout=30, trust_env=False) as client:
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
