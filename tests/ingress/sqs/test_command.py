"""`oncegate work sqs://…` as a process: several processes, signals, output, and start errors."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from oncegate import open_store
from oncegate.cli import exit_codes
from oncegate.cli.main import run
from oncegate.cli.work import work
from tests.ingress.sqs.conftest import Hook
from tests.ingress.sqs.queues import Cloud, Queue, call
from tests.stores.dynamo_server import REGION, reply
from tests.stores.redis_server import RedisServer
from tests.stores.servers import until

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "sqs.md"
HANDLER = """
import os, pathlib, time

def write(file, event):
    with open(file, "a") as out:
        out.write(f"{os.getpid()} {event.body['number']}\\n")

def handle(event):
    write("begun", event)
    time.sleep(event.body.get("takes", 0))
    if event.body.get("fails"):
        raise ValueError("boom")
    while event.body.get("waits") and not pathlib.Path("go").exists():
        time.sleep(0.01)
    write("effects", event)
"""


class Process:
    """A worker in a process and a folder of its own. Several processes may share a folder."""

    def __init__(self, folder: Path, queue: Queue, store: str, *options: str, terminal: int | None = None) -> None:
        (folder / "app.py").write_text(HANDLER)
        command = [sys.executable, "-m", "oncegate", "work", queue.source, "--handler", "app:handle", "--store", store]
        self._process = subprocess.Popen(
            [*command, "--wait", "1s", *options],
            cwd=folder,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE if terminal is None else terminal,
            text=True,
        )

    def kill(self) -> None:
        """End the process, whatever the result of the test is."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def send(self, what: signal.Signals) -> None:
        self._process.send_signal(what)

    def end(self, what: signal.Signals = signal.SIGTERM) -> tuple[int, list[dict[str, Any]], str]:
        """Send a signal and wait. Returns the exit code, the lines of the log, and stderr."""
        self.send(what)
        out, err = self._process.communicate(timeout=40)
        return self._process.returncode, [json.loads(line) for line in (out or "").splitlines()], err or ""


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, queue: Queue) -> Iterator[Start]:
    """Starts workers of the queue, with a store and options."""
    started = []

    def start(store: str, *options: str, terminal: int | None = None) -> Process:
        started.append(Process(tmp_path, queue, store, *options, terminal=terminal))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def lines(path: Path) -> list[tuple[int, int]]:
    """The process id and the event number of each line."""
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []  # type: ignore[misc]


def test_two_processes_share_a_queue(queue: Queue, start: Start, redis: RedisServer, tmp_path: Path) -> None:
    """Each event is sent twice and has one effect, in either process. Both processes take part, log a line for each
    event and exit with 0."""
    options = ("--in-hand", "4", "--batch", "2", "--lease", "2s", "--namespace", "shared")
    workers = [start(redis.url, *options) for _ in range(2)]
    queue.send(*(call(number % 30, waits=True) for number in range(60)))
    until(lambda: len({process for process, _ in lines(tmp_path / "begun")}) == 2, "both to begin")
    (tmp_path / "go").touch()
    queue.until_empty()
    for worker in workers:
        worker.send(signal.SIGTERM)
    ended = [worker.end(signal.SIGCONT) for worker in workers]
    effects = lines(tmp_path / "effects")
    assert Counter(number for _, number in effects) == dict.fromkeys(range(30), 1)
    assert len({process for process, _ in effects}) == 2
    assert [code for code, _, _ in ended] == [0, 0]
    statuses = Counter(line["status"] for _, log, _ in ended for line in log)
    assert statuses["processed"] == 30
    assert statuses["duplicate"] == 30


def test_sigterm_drains(queue: Queue, start: Start, tmp_path: Path) -> None:
    """A running event ends and its message is deleted. The other messages are visible at once, and their events are not
    claimed."""
    store = f"sqlite:///{tmp_path}/claims.db"
    queue.send(call(1, "c-1", waits=True), call(2, "c-1"), call(3, "c-1"))
    worker = start(store)
    until(lambda: len(lines(tmp_path / "begun")) == 1, "the first to begin")
    worker.send(signal.SIGTERM)
    until(lambda: queue.visible() == 2, "the others to be let go")
    (tmp_path / "go").touch()
    code, log, _ = worker.end(signal.SIGCONT)
    assert code == exit_codes.OK
    assert [(line["event_id"], line["status"]) for line in log] == [("evt-1", "processed")]
    assert queue.left() == queue.visible() == 2
    claims = open_store(store)
    assert [entry.record.state for entry in claims.browse()] == ["C"]
    claims.close()


def test_a_handler_that_exceeds_the_drain_time(queue: Queue, start: Start, tmp_path: Path) -> None:
    """After the drain time the process ends and reports the handlers that still ran."""
    queue.send(call(1, waits=True))
    worker = start("memory://", "--drain", "100ms")
    until(lambda: len(lines(tmp_path / "begun")) == 1, "the handler to begin")
    began = time.monotonic()
    code, _, said = worker.end(signal.SIGINT)
    assert time.monotonic() - began < 20
    assert code == exit_codes.FAILED
    assert "1 handler did not end within 100ms" in said


def test_sigkill(queue: Queue, start: Start, redis: RedisServer, tmp_path: Path) -> None:
    """After a worker was killed, another worker runs its event once the lease and the visibility timeout have ended."""
    options = ("--lease", "1s", "--visibility", "1s", "--namespace", "killed")
    queue.send(call(1, waits=True))
    first = start(redis.url, *options)
    until(lambda: len(lines(tmp_path / "begun")) == 1, "the handler to begin")
    code, log, _ = first.end(signal.SIGKILL)
    assert (code, log) == (-signal.SIGKILL, [])
    (tmp_path / "go").touch()
    second = start(redis.url, *options)
    queue.until_empty()
    code, log, _ = second.end()
    assert code == exit_codes.OK
    assert [(line["status"], line["attempt"]) for line in log if line["status"] != "in_flight"] == [("processed", 1)]
    assert [number for _, number in lines(tmp_path / "effects")] == [1]


def test_figures_on_a_terminal(queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows a live line of figures, and above it the events that failed. A narrow terminal shows all of the
    figures, too."""
    monkeypatch.setenv("COLUMNS", "50")
    ours, theirs = pty.openpty()
    queue.send(call(1), call(1), call(2, fails=True))
    worker = start("memory://", terminal=theirs)
    os.close(theirs)
    expected = [
        "processed\N{NO-BREAK SPACE}.*?1 .*duplicates\N{NO-BREAK SPACE}.*?1 .*failed\N{NO-BREAK SPACE}.*?1 ".encode(),
        "in flight\N{NO-BREAK SPACE}.*?0 .*/s".encode(),
        rb"failed .*evt-2  Failed at attempt 1: ValueError: boom",
    ]
    shown = b""
    while not all(re.search(pattern, shown, re.DOTALL) for pattern in expected):
        shown += os.read(ours, 65_536)
    assert worker.end(signal.SIGINT)[0] == exit_codes.OK
    while b"stopping; running handlers may finish" not in shown:
        shown += os.read(ours, 65_536)
    os.close(ours)


def test_the_guide(queue: Queue, tmp_path: Path) -> None:
    """The program of the guide runs as printed, and its command has the printed options."""
    page = GUIDE.read_text()
    (program,) = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    store = f"sqlite:///{tmp_path}/claims.db"
    environment = {**os.environ, "ONCEGATE_STORE": store, "QUEUE": queue.source}
    queue.send(call(1), call(1))
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        queue.until_empty()
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
    claims = open_store(store)
    assert [entry.record.state for entry in claims.browse()] == ["C"]
    claims.close()
    (typed,) = re.findall(r"^ {4}oncegate work (.+)$", page, re.MULTILINE)
    known = {option for parameter in work.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", typed)) <= known


# ── what cannot start ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a worker that cannot start, and returns its error message."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "apps.py").write_text(HANDLER)

    def call(source: str) -> str:
        assert run(["work", source, "--handler", "apps:handle", "--store", "memory://"]) == exit_codes.QUEUE
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 2, lines
        return lines[1]

    return call


def test_a_missing_queue(cloud: Cloud, queue: Queue, message: Any) -> None:
    """The messages for a queue that does not exist, one in another region, and an endpoint that does not answer."""
    missing = message(f"sqs://nobody?region={REGION}&endpoint={cloud.endpoint}")
    assert "nobody" in missing
    assert missing.endswith("does not exist; check its name, region and endpoint")
    elsewhere = message(f"sqs://{queue.name}?region=eu-west-1&endpoint={cloud.endpoint}")
    assert elsewhere.endswith("does not exist; check its name, region and endpoint")
    nowhere = message(f"sqs://{queue.name}?region={REGION}&endpoint=http://127.0.0.1:1")
    assert nowhere.endswith("check region, endpoint and network")


def test_missing_credentials(queue: Queue, message: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The messages for missing credentials and a missing region."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "no AWS credentials were found for the SQS queue" in message(queue.source)
    assert f"queue {queue.name} needs a region; write 'sqs://NAME?region=eu-central-1'" in message(
        f"sqs://{queue.name}"
    )


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("AccessDenied", "does not allow sqs:GetQueueUrl (no); docs/guide/sqs.md lists what is needed"),
        ("ExpiredToken", "does not accept these AWS credentials (ExpiredToken); renew or correct them"),
        ("Odd", "refused sqs:GetQueueUrl (Odd: no)"),
    ],
)
def test_rejected_requests(queue: Queue, message: Any, hook: Hook, code: str, sentence: str) -> None:
    """The messages for requests that AWS rejects, with what to do."""
    hook(lambda events: events.register("before-send.sqs", lambda **_rest: reply(403, code, "no")))
    assert message(queue.source).endswith(sentence)


def test_a_handler_is_needed(capfd: pytest.CaptureFixture[str]) -> None:
    """A worker deletes messages, so a command without a handler is rejected."""
    assert run(["work", "sqs://q"]) == exit_codes.USAGE
    assert "--handler MODULE:FUNCTION" in capfd.readouterr().err


def test_a_missing_extra() -> None:
    """Without botocore the error names the extra to install. Other gates do not import botocore."""
    program = """
        import sys
        from oncegate import Gate
        gate = Gate("memory://")
        assert "botocore" not in sys.modules
        sys.modules["botocore"] = None
        try:
            gate.worker("sqs://q", print)
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=30)
    assert "a worker of an SQS queue needs an optional dependency: pip install 'oncegate[aws]'" in done.stdout
