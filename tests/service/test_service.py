"""The service from start to stop, as a person would do it, and what it logs."""

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncegate import open_store
from tests.service.running import INLINE, Service, heard, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, *INLINE) as service:
        yield service


class TestLife:
    def test_welcome(self, service: Service) -> None:
        """A newcomer is told the address and a line to try."""
        assert f"curl -s {service.url}/events -d" in service.welcome
        assert "No signature is checked" in service.welcome

    def test_redriven_events_run(self, service: Service) -> None:
        """What a person redrives is taken up by the running service."""
        for _ in range(2):
            service.post({"id": "evt-1", "do": "mend"})
        (service.folder / "mended").touch()
        _redrive_all(service)
        until(lambda: len(service.effects()) == 3)
        until(
            lambda: service.post({"id": "evt-1", "do": "mend"}).json()["reason"].startswith("Duplicate of evt-1, pro")
        )

    def test_no_redriven_event_stops_the_others(self, service: Service) -> None:
        """Whatever a redriven event does, the next one is taken up too."""
        service.post("[[1, 2]]")
        for _ in range(2):
            service.post({"id": "exits", "do": "exit"})
        _redrive_all(service)
        for _ in range(2):
            service.post({"id": "evt-1", "do": "mend"})
        (service.folder / "mended").touch()
        _redrive_all(service)
        until(lambda: "processed" in service.post({"id": "evt-1", "do": "mend"}).json()["reason"])

    def test_two_interrupts(self, service: Service) -> None:
        """A second Ctrl-C does not close the store under a handler that is running: what it did is stored."""
        waiting = threading.Thread(target=_post_and_lose, args=(service, {"id": 1, "do": "wait"}))
        waiting.start()
        until(lambda: service.effects() == ["1"])
        service.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        service.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        (service.folder / "go").touch()
        waiting.join()
        service.process.wait(30)
        with closing(open_store(f"sqlite:///{service.folder}/oncegate.db")) as store:
            assert [entry.record.state for entry in store.browse()] == ["C"]

    def test_a_log_that_cannot_be_written(self, tmp_path: Path) -> None:
        """Events are taken although nobody reads the log any more, and the service still stops as it should."""
        service = Service(tmp_path, log=subprocess.PIPE)
        assert service.process.stdout is not None
        service.process.stdout.close()
        assert [service.post({"id": number}).status_code for number in range(3)] == [200] * 3
        assert service.stop() in (0, -signal.SIGTERM)

    def test_a_log_that_is_read_slowly(self, tmp_path: Path) -> None:
        """A full pipe holds up no event, and what is still to be logged at SIGTERM is logged before the end."""
        service = Service(tmp_path, *INLINE, log=subprocess.PIPE)
        assert service.process.stdout is not None
        assert {service.post([{"id": f"{start}-{n}"} for n in range(100)]).status_code for start in range(6)} == {200}
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert len(service.process.stdout.readlines()) == 600
        service.process.stdout.close()
        assert service.close() == 0

    def test_a_log_that_nobody_reads(self, tmp_path: Path) -> None:
        """With stdout and stderr in a full pipe, events are taken, and SIGTERM ends the service as ever: what is in
        hand is answered."""
        reads, writes = os.pipe()
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
        service = Service(tmp_path, *INLINE, unread=(reads, writes))
        with service, os.fdopen(reads), os.fdopen(writes, "w"):
            assert {service.post({"id": number, "do": "fail"}).status_code for number in range(20)} == {503}
            answers: list[httpx.Response] = []
            waiting = threading.Thread(target=lambda: answers.append(service.post({"id": "last", "do": "wait"})))
            waiting.start()
            until(lambda: "last" in service.effects())
            service.process.send_signal(signal.SIGTERM)
            until(lambda: _is_refused(service), within=5)
            (service.folder / "go").touch()
            waiting.join()
            assert answers[0].json()["status"] == "processed"
            assert service.close() == 0

    def test_sigterm_finishes_what_is_in_hand(self, service: Service) -> None:
        """On SIGTERM a request that is being handled is finished and answered."""
        answers: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(service.post({"id": 1, "do": "wait"})))
        waiting.start()
        until(lambda: service.effects() == ["1"])
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        (service.folder / "go").touch()
        waiting.join()
        assert answers[0].json()["status"] == "processed"
        assert service.close() in (0, -signal.SIGTERM)

    def test_what_senders_see_of_a_stop(self, service: Service) -> None:
        """While it stops, new connections are refused; what is in hand is answered, and what was sent after it on the
        same connection is 503 with Retry-After."""
        bodies = [b'{"id": "before", "do": "wait"}', b'{"id": "after"}']
        with service.connect() as connection:
            for body in bodies:
                connection.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            until(lambda: service.effects() == ["before"])
            service.process.send_signal(signal.SIGTERM)
            until(lambda: _is_refused(service), within=5)
            (service.folder / "go").touch()
            first, second = heard(connection).split(b"HTTP/1.1 ")[1:]
        assert (first[:3], second[:3]) == (b"200", b"503")
        assert b"retry-after: 5" in second
        assert service.close() == 0
        assert service.effects() == ["before"]

    def test_log(self, service: Service) -> None:
        """In a pipe each event is one line of JSON, refused and redriven ones too, without payloads and errors."""
        service.post([{"id": "evt-1", "secret": "hunter2"}, {"id": "evt-1", "secret": "hunter2"}, 5])
        for _ in range(2):
            service.post({"id": "evt-2", "do": "mend"})
        (service.folder / "mended").touch()
        _redrive_all(service)
        until(lambda: len(service.effects()) == 4)
        service.stop()
        text = (service.folder / "log").read_text()
        logged = [(line["status"], line["event_id"]) for line in map(json.loads, text.splitlines())]
        assert logged[:3] == [("processed", "evt-1"), ("duplicate", "evt-1"), ("invalid", None)]
        assert logged[3:5] == [("failed", "evt-2"), ("buried", "evt-2")]
        assert ("processed", "evt-2") in logged[5:]
        assert "hunter2" not in text
        assert "not mended yet" not in text

    def test_log_on_a_terminal(self, tmp_path: Path) -> None:
        """A person at a terminal gets a readable line with the whole reason."""
        main, worker = pty.openpty()
        service = Service(tmp_path, *INLINE, log=worker)
        os.close(worker)
        service.post({"id": "evt-1", "do": "fail"})
        shown = b""
        while b"\n" not in shown:
            shown += os.read(main, 65536)
        service.stop()
        os.close(main)
        line = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
        assert re.match(
            r"\d\d:\d\d:\d\d  failed     evt-1  Failed at attempt 1: ValueError: boom; deliver it again", line
        )

    @pytest.mark.parametrize(("chosen", "lines"), [("off", 0), ("json", 1)])
    def test_the_log_that_was_chosen(self, tmp_path: Path, chosen: str, lines: int) -> None:
        """A log that was chosen in the settings is the one there is."""
        (tmp_path / "oncegate.toml").write_text(f'log = "{chosen}"')
        service = Service(tmp_path, *INLINE)
        service.post({"id": "evt-1"})
        service.stop()
        assert len((tmp_path / "log").read_text().splitlines()) == lines

    def test_killed_and_started_again(self, service: Service, tmp_path: Path) -> None:
        """What was processed before a SIGKILL is a duplicate after it."""
        service.post({"id": 1})
        service.stop(signal.SIGKILL)
        again = Service(tmp_path)
        assert again.post({"id": 1}).json()["status"] == "duplicate"
        again.stop()

    def test_a_port_that_is_taken(self, service: Service, tmp_path: Path) -> None:
        """A second service on one port says so and how to choose another."""
        port = service.url.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "oncegate", "serve", "--port", port]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1
        assert "choose another with --port" in done.stderr
        assert "Traceback" not in done.stderr


def _is_refused(service: Service) -> bool:
    try:
        service.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def _redrive_all(service: Service) -> None:
    command = [sys.executable, "-m", "oncegate", "dlq", "redrive", "--all"]
    subprocess.run(command, cwd=service.folder, check=True, capture_output=True)


def _post_and_lose(service: Service, body: Any) -> None:
    with suppress(httpx.HTTPError):
        service.post(body)
