"""Admission: the inbox of a running service, and the in-flight limit."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from oncegate import Gate, open_store
from oncegate.claims import Redrive
from oncegate.cli.work import inbox_handlers
from oncegate.errors import SettingError
from oncegate.service.admission import InboxAdmission, InFlightBudget
from oncegate.settings import load
from oncegate.signatures import verifier_of
from oncegate.stores.memory import MemoryStore
from tests.service.apps import app_of, post, posted, signed
from tests.service.running import HANDLER, Service, until
from tests.signatures.sending import whsec


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, "--max-attempts", "2", "--backoff", "10ms", "--lease", "1s") as service:
        yield service


def states(service: Service) -> list[str]:
    with closing(open_store(f"sqlite:///{service.folder}/oncegate.db")) as store:
        return [entry.record.state for entry in store.browse()]


def test_stored_then_run(service: Service) -> None:
    """The first delivery is accepted and then run. Every other delivery is a duplicate with 200, before and after the
    run."""
    first, second = service.post({"id": "evt-1", "do": "wait"}), service.post({"id": "evt-1", "do": "wait"})
    assert (first.status_code, first.json()) == (
        200,
        {
            "status": "accepted",
            "event_id": "evt-1",
            "key": "1167701c9060313049c77c4c6d470800",
            "kind": None,
            "reason": "Accepted: the event is stored and will be run.",
        },
    )
    assert (second.status_code, second.json()["status"]) == (200, "duplicate")
    (service.folder / "go").touch()
    until(lambda: states(service) == ["C"])
    third = service.post({"id": "evt-1", "do": "wait"})
    assert (third.status_code, third.json()["status"], third.json()["kind"]) == (200, "duplicate", "redelivery")
    assert service.effects() == ["evt-1"]


def test_service_retries(service: Service) -> None:
    """A failed handler is retried without the sender. After the last attempt the event is a dead letter."""
    assert service.post({"id": "evt-1", "do": "fail"}).json()["status"] == "accepted"
    until(lambda: states(service) == ["D"])
    assert service.effects() == ["evt-1", "evt-1"]
    assert service.post({"id": "evt-1", "do": "fail"}).json()["status"] == "buried"


def test_several_events(service: Service) -> None:
    """An array is stored as a whole; an unreadable event in it becomes a dead letter and decides the code."""
    answer = service.post([{"id": 1}, {"id": 1}, {"id": 2}])
    assert [each["status"] for each in answer.json()["outcomes"]] == ["accepted", "duplicate", "accepted"]
    assert service.post([{"id": 3}, 5]).status_code == 400
    until(lambda: sorted(service.effects()) == ["1", "2", "3"])


def test_conflict(service: Service) -> None:
    """Different content under a known key is a conflict, and a copy is stored."""
    service.post({"id": 1, "n": 1})
    assert service.post({"id": 1, "n": 2}).json()["status"] == "conflict"
    until(lambda: sorted(states(service)) == ["C", "D"])


def test_accepted_events_survive_sigkill(service: Service, tmp_path: Path) -> None:
    """After a SIGKILL the next process runs the accepted events, without another delivery."""
    service.post({"id": "evt-1", "do": "wait"})
    service.post({"id": "evt-2", "do": "mend"})
    until(lambda: len(service.effects()) >= 2)
    service.stop(signal.SIGKILL)
    (tmp_path / "go").touch()
    (tmp_path / "mended").touch()
    with Service(tmp_path) as again:
        until(lambda: states(again) == ["C", "C"])
    assert set(again.effects()) == {"evt-1", "evt-2"}


def test_sigterm(service: Service) -> None:
    """On SIGTERM running handlers finish and are recorded, waiting events stay stored, and no new event starts."""
    for number in range(3):
        service.post({"id": f"evt-{number}", "do": "wait", "conversationId": "one"})
    until(lambda: len(service.effects()) == 1)
    service.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    (service.folder / "go").touch()
    assert service.process.wait(20) in (0, -signal.SIGTERM)
    assert sorted(states(service)) == ["C", "R", "R"]
    assert service.effects() == ["evt-0"]


def test_in_flight_limit(tmp_path: Path) -> None:
    """At the in-flight limit, further requests get 503 at once; those in flight are answered."""
    with Service(tmp_path, "--serve-mode", "inline", "--max-in-hand", "2") as service:
        answers: list[httpx2.Response] = []

        def send(number: int) -> None:
            answers.append(service.post({"id": number, "do": "wait"}))

        threads = [threading.Thread(target=send, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(service.effects()) == 2)
        began = time.monotonic()
        shed = service.post({"id": 3})
        assert (shed.status_code, shed.headers["retry-after"]) == (503, "5")
        assert time.monotonic() - began < 1
        (tmp_path / "go").touch()
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200, 200]
        assert service.post({"id": 3}).status_code == 200


def test_two_processes_on_one_file(tmp_path: Path) -> None:
    """Two services on one SQLite file share the work: every event runs once."""
    with Service(tmp_path) as one, Service(tmp_path) as two:
        answers: list[dict[str, Any]] = []

        def send(service: Service) -> None:
            answers.extend(service.post({"id": number}).json() for number in range(100))

        threads = [threading.Thread(target=send, args=(service,)) for service in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer["status"] for answer in answers) == ["accepted"] * 100 + ["duplicate"] * 100
        until(lambda: states(one).count("C") == 100)
        assert sorted(one.effects(), key=int) == [str(number) for number in range(100)]


def test_waiting_metric(service: Service) -> None:
    """The metric of waiting events counts the stored events of a route that have not completed."""
    line = 'oncegate_inbox_waiting{route="default"} '
    for number in range(3):
        service.post({"id": number, "do": "wait"})
    assert f"{line}3.0" in service.client.get("/metrics").text
    (service.folder / "go").touch()
    until(lambda: f"{line}0.0" in service.client.get("/metrics").text)


@pytest.mark.parametrize("mode", ["inbox", "inline"])
def test_async_handler(tmp_path: Path, mode: str) -> None:
    """An async handler runs on the service's event loop, for one event and for several."""
    handler = HANDLER.replace("def handle", "async def handle")
    with Service(tmp_path, "--serve-mode", mode, handler=handler) as service:
        assert service.post({"id": 1}).status_code == 200
        assert service.post([{"id": 1}, {"id": 2}, {"id": 2}]).status_code == 200
        until(lambda: sorted(service.effects()) == ["1", "2"])
        assert service.post({"id": 3, "do": "exit"}).status_code in (200, 503)
        until(lambda: "3" in service.effects())
        assert service.post({"id": 4}).status_code == 200
        until(lambda: "4" in service.effects())


def test_log(service: Service) -> None:
    """An event has a log line when it is accepted and one when it has run."""
    service.post({"id": "evt-1"})
    until(lambda: states(service) == ["C"])
    service.stop()
    lines = [json.loads(line) for line in (service.folder / "log").read_text().splitlines()]
    assert [(line["status"], line["event_id"]) for line in lines] == [("accepted", "evt-1"), ("processed", "evt-1")]


def test_handler_exceeds_drain_timeout(tmp_path: Path) -> None:
    """A synchronous handler cannot be stopped: the service exits when the drain timeout is over, and says so."""
    with Service(tmp_path, "--drain-within", "1s") as service:
        service.post({"id": "evt-1", "do": "wait"})
        until(lambda: service.effects() == ["evt-1"])
        begun = time.monotonic()
        assert service.stop() == 1
        assert time.monotonic() - begun < 15
        assert "a handler did not end within 1s" in service.stderr()
    assert states(service) == ["P"]


def test_failed_worker_raises() -> None:
    """If the inbox worker fails, `run_until` raises its error."""

    class Fatal(BaseException):
        """What a look does not survive."""

    class Broken(MemoryStore):
        def take(self, wants: Any) -> Any:
            raise Fatal("broken")

    async def main() -> None:
        kept = InboxAdmission(Gate(Broken()), lambda event: None, ThreadPoolExecutor(1), max_running=1, drain="1s")
        async with asyncio.timeout(10):
            await kept.run_until(asyncio.Event())

    with pytest.raises(Fatal, match="broken"):
        asyncio.run(main())


WORKER = (
    HANDLER
    + """
def noted(event):
    with open("noted", "a") as file:
        file.write(f"{event.id}\\n")
    raise ValueError("never")
"""
)


@contextmanager
def worker(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """An inbox worker in a separate process."""
    command = [sys.executable, "-m", "oncegate", "work", "inbox", "--log", "json", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_without_handler(tmp_path: Path) -> None:
    """A service without a handler says so and stores every event; a worker then runs it once."""
    with Service(tmp_path, handled=False) as service:
        assert "No handler: events are stored for `oncegate work inbox --handler …`." in service.welcome
        assert service.post({"id": "evt-1"}).json()["status"] == "accepted"
        assert service.post({"id": "evt-1"}).json()["status"] == "duplicate"
        assert states(service) == ["R"]
        with worker(tmp_path, "--handler", "app:handle"):
            until(lambda: states(service) == ["C"])
            assert service.post({"id": "evt-1"}).json()["status"] == "duplicate"
            service.post({"id": "evt-2"})
            until(lambda: states(service) == ["C", "C"])
        assert service.effects() == ["evt-1", "evt-2"]
        assert service.stop() in (0, -signal.SIGTERM)


def test_worker_of_all_routes(tmp_path: Path) -> None:
    """A worker takes the events of every route, with the route's settings, and the route's handler if it names one. The
    service runs only the routes with a handler."""
    toml = (
        '[route.kept]\nsignature = "none"\n'
        '[route.strict]\nsignature = "none"\nmax_attempts = 1\n'
        '[route.own]\nsignature = "none"\nhandler = "app:noted"\nmax_attempts = 1\n'
    )
    with Service(tmp_path, toml=toml, handler=WORKER, handled=False) as service:
        assert "/events/kept  unsigned: anyone who can reach it can send; no handler" in service.welcome
        assert "/events/own  unsigned: anyone who can reach it can send\n" in f"{service.welcome}\n"
        service.post({"id": "1"}, "/events/kept")
        service.post({"id": "2", "do": "fail"}, "/events/strict")
        service.post({"id": "3"}, "/events/own")
        until(lambda: sorted(states(service)) == ["D", "R", "R"])
        service.stop()
    with closing(open_store(f"sqlite:///{tmp_path}/oncegate.db")) as store:
        store.redrive([Redrive("own", entry.key) for entry in store.browse("own")])
    with worker(tmp_path, "--handler", "app:handle"):
        until(lambda: sorted(states(service)) == ["C", "D", "D"])
    assert sorted(service.effects()) == ["1", "2"]
    assert set((tmp_path / "noted").read_text().split()) == {"3"}


def test_worker_of_one_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --namespace a worker takes one namespace only; without it, every namespace needs a handler."""
    monkeypatch.chdir(tmp_path)
    toml = '[route.a]\nsignature = "none"\nhandler = "log"\nlease = "7s"\n[route.b]\nsignature = "none"\n'
    (tmp_path / "oncegate.toml").write_text(toml)
    with pytest.raises(SettingError, match="namespace b: no handler; use --handler"):
        inbox_handlers(load(environ={}))
    ((namespace, (route, _)),) = inbox_handlers(load(environ={}, flags={"namespace": "a"})).items()
    assert (namespace, route["lease"]) == ("a", "7s")
    everything = inbox_handlers(load(environ={}, flags={"work.handler": "json:dumps"}))
    assert {name: handler is json.dumps for name, (_, handler) in everything.items()} == {
        "a": False,
        "b": True,
        "default": True,
    }


def test_hung_handlers(tmp_path: Path) -> None:
    """Hung handlers occupy threads, which are replaced up to a limit. When no thread is left, the service is not ready,
    and its metrics and log say why."""
    options = ("--threads", "2", "--handler-timeout", "100ms", "--max-attempts", "1")
    with Service(tmp_path, *options) as service:
        for number in range(3):
            service.post({"id": f"evt-{number}", "do": "wait"})
        hung = 'oncegate_handlers_hung{route="default"} 3.0'
        until(lambda: hung in service.client.get("/metrics").text)
        assert service.client.get("/readyz").status_code == 200
        service.post({"id": "evt-3", "do": "wait"})
        until(lambda: service.client.get("/readyz").status_code == 503)
        assert "no thread left" in service.client.get("/readyz").text
        assert service.client.get("/healthz").status_code == 200
        assert "the handler of event 'evt-3' has run for" in service.stderr()
        (tmp_path / "go").touch()
        until(lambda: service.client.get("/readyz").status_code == 200)


class TestInFlightBudget:
    def test_limits(self) -> None:
        """Requests or bytes above the in-flight limit get 503 with Retry-After; completed requests free their share."""
        budget = InFlightBudget(2, 100)
        gate = Gate("memory://")
        app = app_of(gate, budget=budget)
        budget.acquire()
        budget.acquire_bytes(90)
        small, large = b'{"id": 1}', b'{"id": "%s"}' % (b"x" * 20)
        answers = posted(app, [("/events", small, {}), ("/events", large, {}), ("/events", small, {})])
        assert [answer.status_code for answer in answers] == [200, 503, 200]
        assert answers[1].headers["retry-after"] == "5"
        budget.acquire()
        assert post(app, "/events", small).status_code == 503
        budget.release()
        budget.release_bytes(90)
        assert post(app, "/events", large).status_code == 200
        gate.close()

    def test_unsigned_requests_do_not_count(self) -> None:
        """At the in-flight limit an unsigned request still gets 401; only signed requests get 503."""
        budget = InFlightBudget(1)
        gate = Gate("memory://")
        app = app_of(gate, budget=budget, verifier=verifier_of("standard-webhooks", {"a": whsec(1)}))
        body = b'{"id": 1}'
        budget.acquire()
        requests = [("/events", body, signed(whsec(number), body)) for number in (2, 1)]
        assert [answer.status_code for answer in posted(app, requests)] == [401, 503]
        budget.release()
        assert [answer.status_code for answer in posted(app, requests)] == [401, 200]
        assert (budget.requests, budget.bytes) == (0, 0)
        gate.close()
