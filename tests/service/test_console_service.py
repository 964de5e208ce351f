"""The console without the service: `oncegate console` in a separate process, over HTTP."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from oncegate import Gate
from oncegate.cli import exit_codes
from oncegate.errors import StoreError
from oncegate.service.console_service import ConsoleService
from oncegate.settings import load
from tests.service.running import until

TOKEN = "a token for tests, long enough"  # noqa: S105


class Console(NamedTuple):
    """A running console. `message` is its start message."""

    client: httpx2.Client
    message: str
    process: subprocess.Popen[bytes]


@contextmanager
def console(folder: Path, *options: str, **environ: str) -> Iterator[Console]:
    command = [sys.executable, "-m", "oncegate", "console", "--port", "0", *options]
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(command, cwd=folder, stderr=errors, env={**os.environ, **environ})
    try:
        until(lambda: "listens on" in (folder / "errors").read_text() or process.poll() is not None)
        message = json.loads((folder / "errors").read_text())["message"]
        found = re.search(r"http://[^\s/]+", message)
        assert found, message
        with httpx2.Client(base_url=found[0], timeout=30, trust_env=False, verify=False) as client:
            yield Console(client, message, process)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with closing(Gate(f"sqlite:///{tmp_path / 'oncegate.db'}")) as gate:
        gate.run({"id": "evt-1"}, lambda _event: None)
    return tmp_path


def test_it_serves_the_console_and_its_health(store: Path) -> None:
    """It serves the console and /healthz, and nothing else."""
    with console(store, ONCEGATE_CONSOLE_TOKEN=TOKEN) as (client, message, _):
        assert message.splitlines()[1] == f"The console is at {client.base_url}/console."
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/").headers["location"] == "/console"
        assert client.get("/console").status_code == 401
        assert client.post("/console/login", data={"token": TOKEN, "user": "Ada"}).headers["location"] == "/console/"
        assert client.get("/console").status_code == 200
        for path in ("/events", "/metrics", "/readyz", "/openapi.json", "/consoles"):
            answer = client.get(path)
            assert answer.status_code == 404, path
            assert answer.json()["detail"] == "not found; this address serves only /console and /healthz"
            assert client.post(path, content=b"{}").status_code == 404, path


def test_a_generated_token_is_in_a_file_and_not_in_the_log(store: Path) -> None:
    with console(store) as (client, message, _):
        token = (store / "oncegate.console-token").read_text().strip()
        assert client.post("/console/login", data={"token": token, "user": "Ada"}).status_code == 303

    assert "its token is in oncegate.console-token" in message
    assert token not in (store / "errors").read_text()


def test_it_ends_at_once(store: Path) -> None:
    """SIGTERM ends an open stream too."""
    with console(store, ONCEGATE_CONSOLE_TOKEN=TOKEN) as (client, _, process):
        client.post("/console/login", data={"token": TOKEN, "user": "Ada"})
        with client.stream("GET", "/console/tail") as tail:
            assert tail.status_code == 200
            began = time.monotonic()
            process.terminate()
            tail.read()
            assert process.wait(30) == 0
    assert time.monotonic() - began < 5


def run(folder: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "oncegate", "console", "--port", "0", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_a_public_address_needs_a_token(store: Path) -> None:
    assert run(store, "--host", "0.0.0.0") == (  # noqa: S104
        exit_codes.USAGE,
        "Error: the console cannot start: other machines can reach 0.0.0.0, and no token is set; set"
        " ONCEGATE_CONSOLE_TOKEN to a random token\n",
    )
    assert not (store / "oncegate.console-token").exists()


def test_a_public_address_without_tls_has_a_warning(store: Path) -> None:
    with console(store, "--host", "0.0.0.0", ONCEGATE_CONSOLE_TOKEN=TOKEN) as (_, message, _process):  # noqa: S104
        assert message.splitlines()[2].startswith("The console has no TLS: others on the network can read its token.")


def test_a_store_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    code, error = run(tmp_path)

    assert code == exit_codes.STORE
    assert "there is no store at oncegate.db" in error
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_store_is_reported_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        ConsoleService(load(flags={"store": f"sqlite:///{tmp_path / 'none.db'}"}))
