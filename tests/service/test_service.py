"""The service from start to stop, and its log."""

import asyncio
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
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from oncegate import __version__, open_store
from oncegate.console.site import ServiceFigures
from oncegate.errors import SettingError
from oncegate.gate.handlers import Handler
from oncegate.journal import RowFilter, open_journal
from oncegate.service.service import Service as InProcessService
from oncegate.settings import load
from oncegate.stores.sqlite.store import SqliteStore
from tests.service.running import INLINE, Service, receive_all, until
from tests.signatures.sending import whsec
from tests.stores.redis_server import RedisServer

RECORDS = 4_000


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, *INLINE) as service:
        yield service


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.stop()


class TestLifecycle:
    def test_welcome(self, service: Service) -> None:
        """In a pipe, the start message is one line of JSON with the address and without a command to try."""
        (line,) = service.stderr().splitlines()
        fields = json.loads(line)
        assert list(fields) == ["time", "level", "logger", "message"]
        assert (fields["level"], fields["logger"]) == ("info", "oncegate.service")
        address, console, unsigned = fields["message"].splitlines()
        assert address == f"Oncegate {__version__} listens on {service.url} with the store sqlite:///oncegate.db."
        assert console == f"The console is at {service.url}/console; its token is in oncegate.console-token."
        assert unsigned == "No signature is checked: every process on this machine can send events."

    def test_welcome_on_a_terminal(self, tmp_path: Path) -> None:
        """On a terminal, the start message is text with the new token of the console and a curl line to try."""
        terminal, stderr = os.openpty()
        command = [sys.executable, "-m", "oncegate", "serve", "--port", "0", "--handler", "log"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=stderr)
        text = ""
        try:
            while "Ctrl-C" not in text:
                text += os.read(terminal, 4096).decode()
        finally:
            process.terminate()
            process.wait(30)
            os.close(stderr)
            os.close(terminal)
        lines = text.replace("\r\n", "\n").splitlines()
        assert lines[0].startswith(f"Oncegate {__version__} listens on http://127.0.0.1:")
        assert lines[5] == f"  {(tmp_path / 'oncegate.console-token').read_text().strip()}"
        assert lines[9].startswith("  curl -s http://127.0.0.1:")
        assert lines[11] == "A new event is stored and run. A copy of it is a duplicate. Stop with Ctrl-C."

    def test_redriven_events_run(self, service: Service) -> None:
        """The running service runs redriven events."""
        for _ in range(2):
            service.post({"id": "evt-1", "do": "mend"})
        (service.folder / "mended").touch()
        _redrive_all(service)
        until(lambda: len(service.effects()) == 3)
        until(
            lambda: service.post({"id": "evt-1", "do": "mend"}).json()["reason"].startswith("Duplicate of evt-1, pro")
        )

    def test_failed_redriven_events_do_not_stop_others(self, service: Service) -> None:
        """No matter what a redriven event does, the next one runs too."""
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
        """A second Ctrl-C does not close the store under a running handler: its result is stored."""
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

    def test_two_interrupts_at_once(self, service: Service) -> None:
        """Ctrl-C twice within some milliseconds leaves no traceback in the log. If the service has already stopped, the
        second Ctrl-C ends the exit of the process."""
        for _ in range(2):
            service.process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        assert service.process.wait(30) in (0, -signal.SIGINT)
        assert "Traceback" not in service.stderr()

    def test_closed_log(self, tmp_path: Path) -> None:
        """Events are accepted although the log's pipe is closed, and the service still stops normally."""
        service = Service(tmp_path, log=subprocess.PIPE)
        assert service.process.stdout is not None
        service.process.stdout.close()
        assert [service.post({"id": number}).status_code for number in range(3)] == [200] * 3
        assert service.stop() in (0, -signal.SIGTERM)

    def test_slow_log(self, tmp_path: Path) -> None:
        """A full pipe delays no event, and pending log lines are written after SIGTERM, before the exit."""
        service = Service(tmp_path, *INLINE, log=subprocess.PIPE)
        assert service.process.stdout is not None
        assert {service.post([{"id": f"{start}-{n}"} for n in range(100)]).status_code for start in range(6)} == {200}
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert len(service.process.stdout.readlines()) == 600
        service.process.stdout.close()
        assert service.close() == 0

    def test_unread_log(self, tmp_path: Path) -> None:
        """With stdout and stderr in a full pipe, events are accepted, and after SIGTERM the request in flight is
        answered."""
        reads, writes = os.pipe()
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
        service = Service(tmp_path, *INLINE, unread=(reads, writes))
        with service, os.fdopen(reads), os.fdopen(writes, "w"):
            assert {service.post({"id": number, "do": "fail"}).status_code for number in range(20)} == {503}
            answers: list[httpx2.Response] = []
            waiting = threading.Thread(target=lambda: answers.append(service.post({"id": "last", "do": "wait"})))
            waiting.start()
            until(lambda: "last" in service.effects())
            service.process.send_signal(signal.SIGTERM)
            until(lambda: _is_refused(service), within=5)
            (service.folder / "go").touch()
            waiting.join()
            assert answers[0].json()["status"] == "processed"
            assert service.close() == 0

    def test_sigterm_finishes_requests_in_flight(self, service: Service) -> None:
        """On SIGTERM a request in flight is finished and answered."""
        answers: list[httpx2.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(service.post({"id": 1, "do": "wait"})))
        waiting.start()
        until(lambda: service.effects() == ["1"])
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        (service.folder / "go").touch()
        waiting.join()
        assert answers[0].json()["status"] == "processed"
        assert service.close() in (0, -signal.SIGTERM)

    def test_requests_during_shutdown(self, service: Service) -> None:
        """During a shutdown new connections are refused. A request in flight is answered; a later request on its
        connection gets 503 with Retry-After."""
        bodies = [b'{"id": "before", "do": "wait"}', b'{"id": "after"}']
        with service.connect() as connection:
            for body in bodies:
                connection.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            until(lambda: service.effects() == ["before"])
            service.process.send_signal(signal.SIGTERM)
            until(lambda: _is_refused(service), within=5)
            (service.folder / "go").touch()
            first, second = receive_all(connection).split(b"HTTP/1.1 ")[1:]
        assert (first[:3], second[:3]) == (b"200", b"503")
        assert b"retry-after: 5" in second
        assert service.close() == 0
        assert service.effects() == ["before"]

    def test_log(self, service: Service) -> None:
        """In a pipe each event is one line of JSON, also invalid and redriven events, without payloads and error
        texts."""
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
        """On a terminal each event is a readable line with the full reason."""
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
    def test_log_setting(self, tmp_path: Path, chosen: str, lines: int) -> None:
        """The setting `log` chooses the log."""
        (tmp_path / "oncegate.toml").write_text(f'log = "{chosen}"')
        service = Service(tmp_path, *INLINE)
        service.post({"id": "evt-1"})
        service.stop()
        assert len((tmp_path / "log").read_text().splitlines()) == lines

    def test_restart_after_sigkill(self, service: Service, tmp_path: Path) -> None:
        """An event processed before a SIGKILL is a duplicate after the restart."""
        service.post({"id": 1})
        service.stop(signal.SIGKILL)
        again = Service(tmp_path)
        assert again.post({"id": 1}).json()["status"] == "duplicate"
        again.stop()

    def test_port_in_use(self, service: Service, tmp_path: Path) -> None:
        """A second service on one port says so, and names --port."""
        port = service.url.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "oncegate", "serve", "--port", port]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1
        assert "choose another with --port, ONCEGATE_SERVE_PORT or serve.port in the settings file" in done.stderr
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
    with suppress(httpx2.HTTPError):
        service.post(body)


def in_process(folder: Path, toml: str, handler: Handler = lambda event: None) -> InProcessService:
    """A service in this process, with one route at /events."""
    (folder / "oncegate.toml").write_text(toml)
    return InProcessService(load(folder / "oncegate.toml", environ={}), {"/events": handler}, [])


class TestFigures:
    def test_an_inbox(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The figures need no read of the store, because events wait for its connection meanwhile. A store in a file
        has no circuit breaker."""
        with closing(in_process(tmp_path, f'store = "sqlite:///{tmp_path / "oncegate.db"}"')) as service:
            service.add_console(["a token for tests, long enough"])
            service._gates["/events"].admit([{"id": "evt-1"}, {"id": "evt-2"}])
            with monkeypatch.context() as patched:
                patched.delattr(SqliteStore, "_read")
                figures = service._figures()
        assert figures == ServiceFigures(in_flight=0, breakers={})

    def test_a_remote_store(self, tmp_path: Path, redis: RedisServer) -> None:
        """A store over a network has a circuit breaker for each route, and no inbox."""
        toml = f'store = "{redis.url}"\nserve.mode = "inline"'
        with closing(in_process(tmp_path, toml)) as service:
            figures = service._figures()
        assert figures == ServiceFigures(in_flight=0, breakers={"default": "closed"})


class TestStart:
    def test_inbox_not_possible(self, tmp_path: Path) -> None:
        """If events cannot be stored, the service does not start, and the error names the alternative."""
        with pytest.raises(SettingError, match=r"serve.mode=inbox: .*; or choose --serve-mode inline, or mode"):
            in_process(tmp_path, 'store = "memory://"\nmode = "mark_first"')

    @pytest.mark.parametrize("wrong", ['mode = "mark_first"', 'key = "json:nothing"', 'read.id = "."'])
    def test_failed_start_closes_the_store(self, tmp_path: Path, wrong: str) -> None:
        """A service that fails to start leaves no store open."""
        path = tmp_path / "store" / "oncegate.db"
        path.parent.mkdir()
        with pytest.raises(SettingError) as error:
            in_process(tmp_path, f'store = "sqlite:///{path}"\n{wrong}')
        # An open store has a WAL file beside it, and the traceback of the error would keep the store alive.
        assert [file.name for file in path.parent.iterdir()] == ["oncegate.db"], error.value

    def test_live_keys_are_counted_in_one_scan(self, tmp_path: Path, redis: RedisServer) -> None:
        """For max_live_keys the start reads a Redis store once, not once per 1,000 records."""
        toml = f'store = "{redis.url}"\nlog = "off"\n[serve]\nmode = "inline"\nmax_live_keys = {RECORDS}\n'
        service = in_process(tmp_path, toml)
        gate = service._gates["/events"]
        for start in range(0, RECORDS, 500):
            gate.run_batch([{"id": number} for number in range(start, start + 500)], lambda event: None)
        limit = service._routes["/events"].limits.live_keys
        assert limit is not None
        assert limit.wait() == 0
        redis.client.config_resetstat()
        asyncio.run(service._start())
        scans = int(redis.client.info("commandstats")["cmdstat_scan"]["calls"])
        assert RECORDS / 1_000 <= scans <= 2 * (redis.client.dbsize() / 1_000 + 1)
        assert limit.wait() > 0
        service.close()

    def test_start_without_the_store(
        self, tmp_path: Path, redis: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With on_store_error=unguarded the service starts without its store, and max_live_keys counts from 0."""
        redis.stop()
        toml = f'store = "{redis.url}"\non_store_error = "unguarded"\nunguarded_types = ["call.ended"]\n'
        toml += '[serve]\nmode = "inline"\nmax_live_keys = 5\n'
        with pytest.warns(RuntimeWarning, match="started without the store"):
            service = in_process(tmp_path, toml)
        asyncio.run(service._start())
        assert "route default: max_live_keys counts from 0" in caplog.text
        service.close()

    def test_welcome_lists_signatures(self, tmp_path: Path) -> None:
        """The welcome text lists each route with its signature, or says that the route is unsigned."""
        toml = '[serve]\nsignature = "none"\n[route.crm]\nsignature = "standard-webhooks"\nsecret_env = "CRM_SECRET"\n'
        with Service(tmp_path, toml=toml, environ={"CRM_SECRET": whsec(1)}) as service:
            assert f"POST {service.url}/events/crm  signature: standard-webhooks" in service.welcome
            assert f"POST {service.url}/events  unsigned: anyone who can reach it can send" in service.welcome


def rows_of(folder: Path, name: str = "oncegate.journal.db") -> list[tuple[str, str | None, str]]:
    """The place, id and status of each row of the journal, oldest first."""
    with closing(open_journal(f"sqlite:///{folder}/{name}", create=False)) as journal:
        return [(row.place, row.event_id, row.status) for row in reversed(journal.rows())]


def test_the_journal(tmp_path: Path) -> None:
    """The service and its worker write one journal beside the store, with the name of the route. The rows are there
    after the processes have stopped."""
    toml = '[route.crm]\nsignature = "none"\nnamespace = "customers"\n'
    with Service(tmp_path, toml=toml, handled=False) as service:
        service.post({"id": "evt-1"}, "/events/crm")
        service.post({"id": "evt-1"}, "/events/crm")
        command = [sys.executable, "-m", "oncegate", "work", "inbox", "--handler", "app:handle"]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as worker:
            until(lambda: service.effects() == ["evt-1"])
            worker.terminate()
            worker.communicate(timeout=30)
        service.stop()
    assert sorted(rows_of(tmp_path)) == [
        ("crm", "evt-1", "accepted"),
        ("crm", "evt-1", "duplicate"),
        ("crm", "evt-1", "processed"),
    ]


@pytest.mark.parametrize("options", [(), INLINE])
def test_a_refused_event_is_one_event(tmp_path: Path, options: Sequence[str]) -> None:
    """The row of a refused event names its dead letter. So the event is explained as one event, before and after its
    dead letter is dropped."""
    key = ("--key", 'fields("nr")')
    with Service(tmp_path, *options, *key) as service:
        assert service.post([{"id": "evt-1"}, {"nr": 1}]).status_code == 400
        service.stop()
    with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db", create=False)) as journal:
        rows = journal.rows()
    (refused,) = [row for row in rows if row.status == "invalid"]
    assert [row.status for row in rows if row.status in ("accepted", "processed")]
    assert refused.kept

    def explained(*arguments: str) -> str:
        command = [sys.executable, "-m", "oncegate", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.splitlines()[0]

    sentence = explained("explain", "evt-1", *key)
    assert sentence.startswith("Not run: evt-1 was refused and is a dead letter: ")
    assert "latest of" not in sentence
    explained("dlq", "drop", refused.kept.hex(), "--yes")
    start = f"The store has no record of the dead letter {refused.kept.hex()} of evt-1 any more: the operator "
    assert explained("explain", "evt-1", *key).startswith(start)


def test_a_delivery_is_found_by_its_request_id(tmp_path: Path) -> None:
    """A proxy gives each request an id. The two deliveries of one event are found by the ids of their requests."""
    with Service(tmp_path) as service:
        for request_id in ("r-1", "r-2"):
            service.client.post("/events", json={"id": "evt-1"}, headers={"X-Request-ID": request_id})
        service.stop()
    with closing(open_journal(f"sqlite:///{tmp_path}/oncegate.journal.db", create=False)) as journal:
        found = [[row.status for row in journal.rows(RowFilter(term=term))] for term in ("r-1", "r-2", "r-3")]
    assert found[0][-1] == "accepted"  # an attempt that follows at once has the id too
    assert found[1:] == [["duplicate"], []]


def test_the_journal_is_off(tmp_path: Path) -> None:
    """With journal = "off" no journal is written."""
    with Service(tmp_path, "--journal", "off") as service:
        service.post({"id": "evt-1"})
        until(lambda: service.effects() == ["evt-1"])
        service.stop()
    assert not list(tmp_path.glob("*journal*"))


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    """If the journal's file is locked or cannot be made, the service answers and runs events as always."""
    (tmp_path / "folder.db").mkdir()
    with Service(tmp_path, "--journal", "sqlite:///folder.db") as service:
        took = []
        for number in range(50):
            began = time.monotonic()
            assert service.post({"id": f"evt-{number}"}).json()["status"] == "accepted"
            took.append(time.monotonic() - began)
        until(lambda: len(service.effects()) == 50)
        until(lambda: "oncegate_journal_dropped_total 100.0" in service.client.get("/metrics").text)
        assert max(took) < 2
        assert service.stop() in (0, -signal.SIGTERM)
        assert service.stderr().count("the journal drops rows; events are not affected") == 1
