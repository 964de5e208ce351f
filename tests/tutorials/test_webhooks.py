"""Webhooks with Redis or SQL: the program of a tutorial and the service that replaces it, on a Postgres server."""

import hashlib
import hmac
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, local
from types import ModuleType
from typing import Any

import httpx2
import psycopg
import pytest

from oncegate import open_store
from tests.service.running import Service, until
from tests.stores.postgres_server import PostgresServer
from tests.tutorials.page import SECTIONS, WEBHOOKS, event, file_of, loaded, program_of

SECRET = "tutorial-example-secret"  # noqa: S105  # of this test only


@pytest.fixture
def processed(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DATABASE_URL", postgres.url())
    with postgres.connect() as connection:
        connection.execute("CREATE TABLE processed (event_id text PRIMARY KEY)")
        yield
        connection.execute("DROP TABLE processed")


class Flask:
    """What the program uses of Flask, which is not installed for the tests: the current request of each thread."""

    request = local()

    def __init__(self, name: str) -> None:
        pass

    def post(self, path: str) -> Any:
        return lambda function: function


@pytest.fixture
def flask(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("flask")
    module.Flask, module.request = Flask, Flask.request  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flask", module)
    return module


@pytest.mark.usefixtures("processed", "flask")
class TestTheProgram:
    def post(self, program: dict[str, Any], body: Any, request_id: str | None = None) -> Any:
        Flask.request.get_json = lambda: body
        Flask.request.headers = {} if request_id is None else {"X-Request-ID": request_id}
        return program["webhook"]()

    def test_what_it_answers(self) -> None:
        """A copy with another request id runs again, and another event with the same request id does not run."""
        effects: list[Any] = []
        program = loaded(program_of(WEBHOOKS), process=effects.append)
        wanted = [({"status": "ok"}, 200), ({"status": "duplicate"}, 200), ({"status": "ok"}, 200)]
        numbers = ("r-1", "r-1", "r-2")
        assert [self.post(program, {"id": "evt-1"}, each) for each in numbers] == wanted
        assert self.post(program, {"id": "evt-9"}, "r-1") == wanted[1]
        assert [each["id"] for each in effects] == ["evt-1", "evt-1"]

    def test_for_update_locks_no_row_of_a_new_event(self) -> None:
        """Two deliveries at the same time both run. Then the second INSERT fails."""
        effects: list[Any] = []
        together = Barrier(2, timeout=20)

        def process(body: Any) -> None:
            effects.append(body)
            together.wait()

        program = loaded(program_of(WEBHOOKS), process=process)

        def deliver(_number: int) -> Any:
            try:
                return self.post(program, {"id": "evt-1"})
            except psycopg.errors.UniqueViolation:
                return "an exception"

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(deliver, range(2)))
        assert len(effects) == 2
        assert sorted(map(str, answers)) == sorted(["an exception", str(({"status": "ok"}, 200))])


@pytest.fixture
def service(postgres: PostgresServer, tmp_path: Path) -> Iterator[Service]:
    """The two files of the page. Only the address of the store and the port are others."""
    (toml,) = re.findall(r"```toml\n(.+?)```", SECTIONS[WEBHOOKS], re.DOTALL)
    environment = {"ONCEGATE_STORE": postgres.url(), "CRM_SECRET": SECRET, "ONCEGATE_SERVE_HOST": "127.0.0.1"}
    with Service(tmp_path, toml=toml, handler=file_of(WEBHOOKS), handled=False, environ=environment) as running:
        yield running


def sent(service: Service, body: Any, secret: str = SECRET, **headers: str) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    signature = hmac.digest(secret.encode(), content, hashlib.sha256).hex()
    return service.post(content.decode(), "/events/crm", headers={"X-Signature": f"sha256={signature}", **headers})


def test_the_files(service: Service, postgres: PostgresServer) -> None:
    """A copy with another request id is a duplicate, another event with the same request id runs, an unreadable event
    is a dead letter, and a wrong signature is refused."""
    first = sent(service, event(), **{"X-Request-ID": "r-1"})
    assert (first.status_code, first.json()["status"]) == (200, "accepted")
    assert list(first.json()) == ["status", "event_id", "key", "kind", "reason"]
    copy = sent(service, event(id="2"), **{"X-Request-ID": "r-2"})
    assert (copy.status_code, copy.json()["status"], list(copy.json())) == (200, "duplicate", list(first.json()))
    other = event("acd end: the outcome before the way it ended")
    assert sent(service, other, **{"X-Request-ID": "r-1"}).json()["status"] == "accepted"
    until(lambda: service.log.seek(0) or service.log.read().count("opening a case for") == 2)
    unreadable = sent(service, b"no JSON")
    assert (unreadable.status_code, unreadable.json()["outcome"]) == (400, "invalid")
    assert unreadable.headers["content-type"] == "application/problem+json"
    store = open_store(postgres.url())
    assert [each.record.payload for each in store.dead_letters()] == [b"no JSON"]
    store.close()
    assert sent(service, event(id="3"), "another-example-secret").status_code == 401
    assert service.stop() == 0


def test_the_store_is_down(postgres: PostgresServer, service: Service) -> None:
    """The sender gets 503 with Retry-After, and the event is accepted later."""
    late = event("presence: the user is in the topic's name only")
    postgres.stop()
    try:
        refused = sent(service, late)
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    finally:
        postgres.start()
    until(lambda: sent(service, late).json()["status"] in ("accepted", "duplicate"), 40)
