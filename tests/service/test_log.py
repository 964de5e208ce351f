"""The log: writing never blocks the service, and clients cannot flood it."""

import asyncio
import fcntl
import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.cli import exit_codes
from oncegate.service.log import RateLimitedWarning, handler_for, pretty_line
from tests.service.protocols import in_a_loop
from tests.service.running import Service, until
from tests.signatures.sending import whsec
from tests.stores.servers import free_port


def test_dropped_lines_are_counted() -> None:
    """A full pipe blocks no caller; when it is read again, the log has the number of dropped lines."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(reads), os.fdopen(writes, "w") as stream:
        handler = handler_for(stream)
        for number in range(2_000):
            handler.handle(logging.LogRecord("x", logging.WARNING, "x", 0, "line %d", (number,), None))
        handler.flush()
        read = b""
        while read.count(b'"line ') + dropped_in(read) < 2_000:
            read += os.read(reads, 65536)
    numbers = [int(number) for number in re.findall(rb'"line (\d+)"', read)]
    assert numbers == list(range(len(numbers)))
    assert 1_000 <= len(numbers) == 2_000 - dropped_in(read) < 1_500


def test_a_client_that_logs_every_attempt() -> None:
    """The lines of the RabbitMQ client are left out: an outage is logged once, by the worker."""
    handler = handler_for(stream := io.StringIO())
    for name in ("aiormq.connection", "oncegate.work"):
        handler.handle(logging.LogRecord(name, logging.ERROR, "x", 0, "no connection", (), None))
    assert stream.getvalue().count("no connection") == 1


@in_a_loop
async def test_repeated_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Of repeated warnings a few are written, then the number of the others, and a few again in the next interval."""
    warn = RateLimitedWarning(logging.getLogger("x"), most=2, every=0.05)
    for number in range(10):
        warn("refused %d", number)
    while len(caplog.messages) < 3:
        await asyncio.sleep(0.001)
    warn("refused %d", 10)
    assert caplog.messages == ["refused 0", "refused 1", "refused 9 (8 more like it within 0.05 s)", "refused 10"]


def test_rejected_signatures(tmp_path: Path) -> None:
    """Requests with an invalid signature write a few log lines, no matter how many there are."""
    toml = '[route.crm]\nsignature = "standard-webhooks"\nsecret_env = "CRM_SECRET"\n'
    with Service(tmp_path, toml=toml, environ={"CRM_SECRET": whsec(1)}) as service:
        assert {service.post("{}", "/events/crm").status_code for _ in range(50)} == {401}
        assert service.stderr().count("rejected a request from 127.0.0.1") == 5


def test_explaining_a_rejected_event(tmp_path: Path) -> None:
    """No record or log line has the id of an event whose signature was refused. `explain` says so, and names the metric
    and the log line of the refusal."""
    toml = '[route.crm]\nsignature = "standard-webhooks"\nsecret_env = "CRM_SECRET"\n'
    command = [sys.executable, "-m", "oncegate", "explain", "evt-401"]
    with Service(tmp_path, toml=toml, environ={"CRM_SECRET": whsec(1)}) as service:
        assert service.post('{"id": "evt-401"}', "/events/crm").status_code == 401
        explained = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        metrics = service.client.get("/metrics").text
        log = service.stderr() + (tmp_path / "log").read_text()
    assert (explained.returncode, explained.stdout) == (exit_codes.NOT_FOUND, "")
    (reason,) = (line for line in explained.stderr.splitlines() if "401)" in line)
    named = re.search(r"its log line has no event id. Metric: (\w+). Log line: (.+) ADDRESS", reason)
    assert named
    assert f'{named[1]}{{route="crm"}} 1.0' in metrics
    assert (named[2] in log, "evt-401" in log) == (True, False)


def test_the_state_and_time_of_an_event(tmp_path: Path) -> None:
    """The JSON line of an event has its state and the time at which it happened."""
    body = {"id": "evt-1", "conversationId": "c-1", "state": "held", "timestamp": "2026-02-03T04:05:06.5+01:00"}
    with Service(tmp_path) as service:
        assert service.post(body).status_code == 200
        until(lambda: '"processed"' in (tmp_path / "log").read_text())
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["state"], line["occurred_at"]) for line in lines] == [("held", "2026-02-03T03:05:06.500Z")] * 2


def dropped_in(read: bytes) -> int:
    """How many lines these say were dropped."""
    return sum(int(count) for count in re.findall(rb"the log was not read: lines were dropped \((\d+)\)", read))


@pytest.mark.parametrize("mode", ["inbox", "inline"])
def test_a_failed_forward_is_logged_once(tmp_path: Path, mode: str) -> None:
    """A failed forward is one line in the log, which names the forward and not a handler. stderr has no second line."""
    url = f"http://127.0.0.1:{free_port()}/hook?token=s3cret-1"
    options = ("--forward", url, "--forward-allow-private", "--serve-mode", mode)
    with Service(tmp_path, *options, handled=False) as service:
        service.post({"id": "evt-1"})
        until(lambda: '"failed"' in (tmp_path / "log").read_text())
        after_welcome = service.stderr().splitlines()[1:]
    failed = [
        line for line in map(json.loads, (tmp_path / "log").read_text().splitlines()) if line["status"] == "failed"
    ]
    assert (len(failed), after_welcome) == (1, [])
    assert "forward to http://127.0.0.1:" in failed[0]["reason"]
    assert "failed: it cannot be reached: Connection refused" in failed[0]["reason"]
    assert ("handler" in failed[0]["reason"], "/hook" in failed[0]["reason"], "stack" in failed[0]) == (False,) * 3


def test_the_terminal_shows_where_a_handler_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the line of a failed event are the frames of its handler, without frames of Oncegate."""

    def fail(event: Event) -> None:
        raise ValueError("no case")

    gate = Gate("memory://", observers=[pretty_line])
    gate.run({"id": "evt-1"}, fail)
    gate.close()
    line, frame = capsys.readouterr().out.splitlines()
    assert "Failed at attempt 1: ValueError: no case" in line
    assert re.fullmatch(rf"  {__file__}:\d+ in .*\.fail", frame)
