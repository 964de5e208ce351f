"""The service over real HTTP: each answer of the table, and a start and stop as a person would do it."""

import json
import os
import pty
import re
import signal
import socket
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
from tests.service.running import Service, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, "--max-attempts", "2") as service:
        yield service


class TestAnswers:
    def test_first_and_second(self, service: Service) -> None:
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
        assert service.effects() == ["evt-1"]

    def test_failed_then_buried(self, service: Service) -> None:
        """A failure is 503 with Retry-After, so that every sender tries again; the last buries and is 200."""
        first = service.post({"id": 1, "do": "fail"})
        assert (first.status_code, first.headers["content-type"]) == (503, "application/problem+json")
        assert int(first.headers["retry-after"]) > 0
        assert (first.json()["status"], first.json()["outcome"]) == (503, "failed")
        last = service.post({"id": 1, "do": "fail"})
        assert (last.status_code, last.json()["status"]) == (200, "buried")

    def test_in_flight(self, service: Service) -> None:
        """A copy that comes while the first is at it is 503, to be sent again when its lease is over."""
        waiting = threading.Thread(target=service.post, args=({"id": 1, "do": "wait"},))
        waiting.start()
        until(lambda: service.effects() == ["1"])
        copy = service.post({"id": 1, "do": "wait"})
        (service.folder / "go").touch()
        waiting.join()
        assert (copy.status_code, copy.json()["outcome"]) == (503, "in_flight")
        assert 1 <= int(copy.headers["retry-after"]) <= 30
        assert service.post({"id": 1, "do": "wait"}).json()["status"] == "duplicate"

    def test_conflict(self, service: Service) -> None:
        """Other content under a known key is 200 once a copy is kept."""
        service.post({"id": 1, "n": 1})
        answer = service.post({"id": 1, "n": 2})
        assert (answer.status_code, answer.json()["status"]) == (200, "conflict")
        with closing(open_store(f"sqlite:///{service.folder}/oncegate.db")) as store:
            assert [entry.record.payload for entry in store.dead_letters()] == [b'{"id": 1, "n": 2}']

    @pytest.mark.parametrize("body", [b"", b"{", b"5", b"null", b'{"id":1.5}', b'{"a":"\xff"}', b"[" * 5_000])
    def test_unreadable(self, service: Service, body: bytes) -> None:
        """What cannot be read is 400 with the reason, after its bytes are kept as a dead letter."""
        answer = service.post(body)
        assert (answer.status_code, answer.json()["outcome"]) == (400, "invalid")
        with closing(open_store(f"sqlite:///{service.folder}/oncegate.db")) as store:
            assert [entry.record.payload for entry in store.dead_letters()] == [body]

    def test_several_events(self, service: Service) -> None:
        """An array is answered with an outcome for each; the one that fared worst decides the code."""
        answer = service.post([{"id": 1}, {"id": 1}, {"id": 2}])
        assert answer.status_code == 200
        assert [each["status"] for each in answer.json()["outcomes"]] == ["processed", "duplicate", "processed"]
        assert service.post([{"id": 3}, 5]).status_code == 400
        assert service.post([{"id": 4}, 5, {"id": 5, "do": "fail"}]).status_code == 503
        assert service.post([]).status_code == 400

    def test_too_large(self, service: Service) -> None:
        """A body over 1 MiB is refused, with a length or in chunks, and nothing of it is taken."""
        large = json.dumps({"id": "large", "text": "x" * 1024 * 1024})
        assert service.post(large).status_code == 413
        chunks = (large[start : start + 65536].encode() for start in range(0, len(large), 65536))
        assert service.client.post("/events", content=chunks).status_code == 413
        assert service.effects() == []

    def test_elsewhere(self, service: Service) -> None:
        """Other places, methods and encodings are refused in words."""
        assert service.client.get("/").status_code == 404
        wrong = service.client.get("/events")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert service.post("{}", headers={"content-encoding": "gzip"}).status_code == 415
        assert service.post('{"id":1}', headers={"origin": "https://evil.example"}).status_code == 403
        assert service.effects() == []
        assert service.client.get("/healthz").json() == {"status": "ok"}

    def test_a_sender_that_leaves(self, service: Service) -> None:
        """A body that was cut off is nothing that anybody sent: no dead letter is made of it."""
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b'POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n{"id": ')
        assert service.post({"id": 1}).status_code == 200
        with closing(open_store(f"sqlite:///{service.folder}/oncegate.db")) as store:
            assert store.dead_letters() == []

    def test_a_handler_that_exits(self, service: Service) -> None:
        """A handler that calls sys.exit fails its event and nothing else."""
        assert service.post({"id": 1, "do": "exit"}).status_code == 503
        assert service.post({"id": 2}).status_code == 200

    def test_many_at_once(self, service: Service) -> None:
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
        assert service.effects() == ["same"]


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
        service = Service(tmp_path, log=subprocess.PIPE)
        assert service.process.stdout is not None
        assert {service.post([{"id": f"{start}-{n}"} for n in range(100)]).status_code for start in range(6)} == {200}
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert len(service.process.stdout.readlines()) == 600
        service.process.stdout.close()
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
        service = Service(tmp_path, log=worker)
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
        service = Service(tmp_path)
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


def _redrive_all(service: Service) -> None:
    command = [sys.executable, "-m", "oncegate", "dlq", "redrive", "--all"]
    subprocess.run(command, cwd=service.folder, check=True, capture_output=True)


def _post_and_lose(service: Service, body: Any) -> None:
    with suppress(httpx.HTTPError):
        service.post(body)
