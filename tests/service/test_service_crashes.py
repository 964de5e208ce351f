"""A service that is killed under load, or whose disk is full: events with a 200 take effect."""

import resource
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import httpx2
import pytest

from oncegate import open_store
from oncegate.stores.base import Inbox
from tests.service.running import HANDLER, Service, until

# An idempotent handler: it creates one file per event. The file `runs` has one line per call.
SINK = """
import os, pathlib

pathlib.Path("effects").mkdir(exist_ok=True)

def handle(event):
    with open("runs", "a") as runs:
        runs.write(f"{event.id}\\n")
    try:
        os.close(os.open(f"effects/{event.id}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
"""
SENDERS = 4


class Storm:
    """Senders that send each event until it is answered with 200, to a service that is not always there."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._over = threading.Event()
        self.acked: list[str] = []
        self.codes: set[int] = set()
        self._threads = [threading.Thread(target=self._send, args=(sender,)) for sender in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _send(self, sender: int) -> None:
        with httpx2.Client(timeout=10, trust_env=False, verify=False) as client:
            for name in (f"{sender}-{number}" for number in count()):
                if self._over.is_set():
                    return
                while self._post(client, name) != 200:
                    time.sleep(0.02)
                self.acked.append(name)

    def _post(self, client: httpx2.Client, name: str) -> int:
        try:
            code = client.post(f"{self._url()}/events", json={"id": name}).status_code
        except httpx2.HTTPError:
            return 0
        self.codes.add(code)
        return code


def killed_under_load(folder: Path, kills: int, mode: str) -> None:
    """Kill a service again and again while events are sent; then compare what was answered with what took effect."""
    services = [Service(folder, "--lease", "1s", "--serve-mode", mode, "--log", "off", handler=SINK)]
    storm = Storm(lambda: services[-1].url)
    for _ in range(kills):
        before = len(storm.acked)
        until(lambda before=before: len(storm.acked) > before + 20)  # type: ignore[misc]
        services[-1].stop(signal.SIGKILL)
        services.append(Service(folder, "--lease", "1s", "--serve-mode", mode, "--log", "off", handler=SINK))
    storm.end()
    with services[-1], closing(open_store(f"sqlite:///{folder}/oncegate.db")) as store:
        assert isinstance(store, Inbox)
        until(lambda: store.kept("default") == 0)
    effects = {path.name for path in (folder / "effects").iterdir()}
    assert len(storm.acked) == len(set(storm.acked)) > 20 * kills
    assert set(storm.acked) <= effects
    assert storm.codes <= {200, 503}


@pytest.mark.parametrize(("mode", "kills"), [("inbox", 3), ("inline", 2)])
def test_killed_under_load(tmp_path: Path, mode: str, kills: int) -> None:
    """Through several SIGKILLs, every event with a 200 takes effect in the end."""
    killed_under_load(tmp_path, kills, mode)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("mode", ["inbox", "inline"])
def test_killed_fifty_times(tmp_path: Path, mode: str) -> None:
    """The same through fifty SIGKILLs."""
    killed_under_load(tmp_path, 50, mode)


@pytest.mark.parametrize("mode", ["inbox", "inline"])
def test_in_flight_events_run_again_soon(tmp_path: Path, mode: str) -> None:
    """Events in flight at a SIGKILL run again within 2 s of the restart, although their lease would last 30 s."""
    first = Service(tmp_path, "--serve-mode", mode, handler=HANDLER)
    body = {"id": "slow", "do": "wait"}
    with ThreadPoolExecutor(1) as sender:
        sent = sender.submit(first.post, body)
        until(lambda: first.effects() == ["slow"])
        first.process.kill()
        with suppress(httpx2.HTTPError):
            sent.result()
    first.close()
    (tmp_path / "go").touch()
    with Service(tmp_path, "--serve-mode", mode, handler=HANDLER) as second:
        started = time.monotonic()
        if mode == "inline":
            assert second.post(body).json()["status"] == "processed"
        until(lambda: second.effects() == ["slow", "slow"])
        assert time.monotonic() - started < 2


def test_full_disk(tmp_path: Path) -> None:
    """On a full disk events get 503, and none is lost or run twice; with free space they are accepted again."""
    with Service(tmp_path, "--log", "off", handler=SINK) as service:
        process = service.process.pid
        unlimited = resource.prlimit(process, resource.RLIMIT_FSIZE)
        assert service.post({"id": "before"}).status_code == 200
        until(lambda: "processed" in service.post({"id": "before"}).json()["reason"])
        full = max(path.stat().st_size for path in tmp_path.glob("oncegate.db*"))
        resource.prlimit(process, resource.RLIMIT_FSIZE, (full, unlimited[1]))
        body = {"id": "during", "text": "x" * 500_000}
        refused = service.post(body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert str(tmp_path) not in refused.text
        assert [service.client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 503]
        assert service.post({"id": "before"}).json()["status"] == "duplicate"
        resource.prlimit(process, resource.RLIMIT_FSIZE, unlimited)
        assert service.post(body).json()["status"] == "accepted"
        until((tmp_path / "effects" / "during").exists)
        until(lambda: (tmp_path / "runs").read_text().split() == ["before", "during"])


# Waits until the file `go` exists, so that all events wait in the store.
WAIT = """
import time

run = handle

def handle(event):
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    run(event)
"""
HELD = SINK + WAIT


@pytest.mark.parametrize("end", ["-wal", ""])
def test_removed_file(tmp_path: Path, end: str) -> None:
    """After a file of the store is removed, nothing is acknowledged. Events acknowledged before run, even after a
    SIGKILL, as long as the database file exists."""
    options = ("--lease", "1s", "--log", "off")
    with Service(tmp_path, *options, handler=HELD) as service:
        before = [f"before-{number}" for number in range(20)]
        assert {service.post({"id": name}).status_code for name in before} == {200}
        (tmp_path / f"oncegate.db{end}").unlink()
        after = [service.post({"id": f"after-{number}"}) for number in range(20)]
        assert {response.status_code for response in after} == {503}
        assert str(tmp_path) not in after[0].text
        assert service.client.get("/readyz").status_code == 503
        service.stop(signal.SIGKILL)
    if end:
        (tmp_path / "go").touch()
        with Service(tmp_path, *options, handler=HELD) as service:
            until(lambda: set(before) <= {path.name for path in (tmp_path / "effects").iterdir()})
            assert service.post({"id": "after-0"}).status_code == 200
