"""The service as it is by default: an event is kept before its sender is told, and run then."""

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

import httpx
import pytest

from oncegate import Gate, open_store
from oncegate.claims import Redrive
from oncegate.cli.work import inbox_handlers
from oncegate.errors import SettingError
from oncegate.service.admission import InboxAdmission
from oncegate.settings import load
from oncegate.stores.memory import MemoryStore
from tests.service.running import HANDLER, Service, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, "--max-attempts", "2", "--backoff", "10ms", "--lease", "1s") as service:
        yield service


def states(service: Service) -> list[str]:
    with closing(open_store(f"sqlite:///{service.folder}/oncegate.db")) as store:
        return [entry.record.state for entry in store.browse()]


def test_kept_and_run(service: Service) -> None:
    """The first delivery is accepted and then run, every copy is a duplicate with 200, before and after."""
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


def test_a_failure_is_ours(service: Service) -> None:
    """A handler that fails is tried again without the sender, and after its last attempt the event is a dead letter."""
    assert service.post({"id": "evt-1", "do": "fail"}).json()["status"] == "accepted"
    until(lambda: states(service) == ["D"])
    assert service.effects() == ["evt-1", "evt-1"]
    assert service.post({"id": "evt-1", "do": "fail"}).json()["status"] == "buried"


def test_several_events(service: Service) -> None:
    """An array is kept as a whole; what cannot be read in it is a dead letter and decides the code."""
    answer = service.post([{"id": 1}, {"id": 1}, {"id": 2}])
    assert [each["status"] for each in answer.json()["outcomes"]] == ["accepted", "duplicate", "accepted"]
    assert service.post([{"id": 3}, 5]).status_code == 400
    until(lambda: sorted(service.effects()) == ["1", "2", "3"])


def test_conflict(service: Service) -> None:
    """Other content under a known key is a conflict here too, and a copy of it is kept."""
    service.post({"id": 1, "n": 1})
    assert service.post({"id": 1, "n": 2}).json()["status"] == "conflict"
    until(lambda: sorted(states(service)) == ["C", "D"])


def test_killed_before_it_ran(service: Service, tmp_path: Path) -> None:
    """What was accepted runs after a SIGKILL, in the next process, though nobody sends it again."""
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
    """On SIGTERM what runs is finished and recorded, what waits stays kept, and nothing new is taken."""
    for number in range(3):
        service.post({"id": f"evt-{number}", "do": "wait", "conversationId": "one"})
    until(lambda: len(service.effects()) == 1)
    service.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    (service.folder / "go").touch()
    assert service.process.wait(20) in (0, -signal.SIGTERM)
    assert sorted(states(service)) == ["C", "R", "R"]
    assert service.effects() == ["evt-0"]


def test_a_full_house(tmp_path: Path) -> None:
    """With all the room taken, further requests are 503 at once; those inside are answered."""
    with Service(tmp_path, "--serve-mode", "inline", "--max-in-hand", "2") as service:
        answers: list[httpx.Response] = []

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
    """Several services on one SQLite file share the work: every event has one effect, whoever took it."""
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


def test_waiting_is_counted(service: Service) -> None:
    """How many events are kept and have not run is there for Prometheus, for every route."""
    line = 'oncegate_inbox_waiting{route="default"} '
    for number in range(3):
        service.post({"id": number, "do": "wait"})
    assert f"{line}3.0" in service.client.get("/metrics").text
    (service.folder / "go").touch()
    until(lambda: f"{line}0.0" in service.client.get("/metrics").text)


@pytest.mark.parametrize("mode", ["inbox", "inline"])
def test_an_async_handler(tmp_path: Path, mode: str) -> None:
    """A handler may be async: it runs in the loop of the service, for one event and for several."""
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
    """Each event has a line when it is accepted, and one when it has run."""
    service.post({"id": "evt-1"})
    until(lambda: states(service) == ["C"])
    service.stop()
    lines = [json.loads(line) for line in (service.folder / "log").read_text().splitlines()]
    assert [(line["status"], line["event_id"]) for line in lines] == [("accepted", "evt-1"), ("processed", "evt-1")]


def test_a_handler_that_does_not_end(tmp_path: Path) -> None:
    """A plain handler cannot be stopped: the service ends when its time to drain is over, and says so."""
    with Service(tmp_path, "--drain-within", "1s") as service:
        service.post({"id": "evt-1", "do": "wait"})
        until(lambda: service.effects() == ["evt-1"])
        begun = time.monotonic()
        assert service.stop() == 1
        assert time.monotonic() - begun < 15
        assert "a handler did not end within 1s" in service.said()
    assert states(service) == ["P"]


def test_a_worker_that_dies_is_noticed() -> None:
    """Whatever ends the working off of the inbox, but for being told to, is raised to whoever watches it."""

    class Fatal(BaseException):
        """What a look does not survive."""

    class Broken(MemoryStore):
        def take(self, wants: Any) -> Any:
            raise Fatal("broken")

    async def main() -> None:
        kept = InboxAdmission(Gate(Broken()), lambda event: None, ThreadPoolExecutor(1), at_work=1, drain="1s")
        async with asyncio.timeout(10):
            await kept.work(asyncio.Event())

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
    """A worker of the inbox in a process of its own."""
    command = [sys.executable, "-m", "oncegate", "work", "inbox", "--log", "json", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_without_a_handler(tmp_path: Path) -> None:
    """A service that was given nothing to run says so, and keeps every event for a worker, which runs it once."""
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


def test_a_worker_of_all_routes(tmp_path: Path) -> None:
    """A worker takes the events of every route, with the settings of the route and its own handler where it names one;
    the service runs only those of the routes that have one."""
    toml = (
        '[route.kept]\nsignature = "none"\n'
        '[route.strict]\nsignature = "none"\nmax_attempts = 1\n'
        '[route.own]\nsignature = "none"\nhandler = "app:noted"\nmax_attempts = 1\n'
    )
    with Service(tmp_path, toml=toml, handler=WORKER, handled=False) as service:
        assert "/events/kept  unsigned: anyone who can reach it can send; no handler" in service.welcome
        assert "/events/own  unsigned: anyone who can reach it can send\n" in service.welcome
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


def test_a_worker_of_one_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--namespace has a worker take one namespace only; without it, each needs a handler."""
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


def test_handlers_that_never_return(tmp_path: Path) -> None:
    """They take threads, which are replaced up to a bound; when none is left the service is not ready, and its metrics
    and its log say why."""
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
        assert "the handler of event 'evt-3' has run for" in service.said()
        (tmp_path / "go").touch()
        until(lambda: service.client.get("/readyz").status_code == 200)
