"""Run the service in a separate process, and send it requests, also as raw bytes."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

INLINE = ("--max-attempts", "2", "--serve-mode", "inline")
NO_VARIABLES: Mapping[str, str] = {}
HANDLER = """
import pathlib, time

def handle(event):
    with open("effects", "a") as file:
        file.write(f"{event.id}\\n")
    if event.body.get("do") == "fail":
        raise ValueError("boom" + event.body.get("secret", ""))
    if event.body.get("do") == "exit":
        raise SystemExit(3)
    if event.body.get("do") == "mend" and not pathlib.Path("mended").exists():
        raise ValueError("not mended yet")
    if event.body.get("do") == "wait":
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
"""


class Service:
    """A service in a separate process, with a folder for its files."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        toml: str = "",
        log: int | None = None,
        environ: Mapping[str, str] = NO_VARIABLES,
        handler: str = HANDLER,
        verify: Any = True,
        handled: bool = True,
        files: int | None = None,
        unread: tuple[int, int] | None = None,
    ) -> None:
        self.folder = folder
        (folder / "app.py").write_text(handler)
        if toml:
            (folder / "oncegate.toml").write_text(toml)
        command = [sys.executable, "-m", "oncegate", "serve", "--port", "0", *options]
        command += ["--handler", "app:handle"] if handled else []
        self.log = (folder / "log").open("a+")
        self.errors = (folder / "errors").open("a+")
        before = self.errors.tell()
        if files is not None:  # the limit of open files
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        stdout, stderr = (log or self.log, self.errors) if unread is None else (unread[1], unread[1])
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=stdout, stderr=stderr, env={**os.environ, **environ}
        )
        while unread is not None and "listens on" not in self.stderr():  # read the pipe up to the start message only
            (folder / "errors").write_bytes(self.stderr().encode() + os.read(unread[0], 4096))
        until(lambda: re.search(r"listens on .*\n", self.stderr()[before:]) or self.process.poll() is not None)
        started = [line for line in self.stderr()[before:].splitlines() if "listens on" in line]
        assert started, self.stderr()
        self.welcome = json.loads(started[0])["message"]
        found = re.search(r"https?://[^\s/]+", self.welcome)
        assert found, self.welcome
        self.url = found[0]
        verify = self.url.startswith("https") and verify  # to load all authorities takes 25 ms
        self.client = httpx2.Client(base_url=self.url, timeout=30, trust_env=False, verify=verify)

    def __enter__(self) -> "Service":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.close()

    def stderr(self) -> str:
        """The text on stderr."""
        return (self.folder / "errors").read_text()

    def connect(self) -> socket.socket:
        host, _, port = self.url.partition("://")[2].rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def raw(self, sent: bytes) -> bytes:
        """Send raw bytes, and return all that is received until the service closes the connection."""
        with self.connect() as connection:
            connection.sendall(sent)
            return receive_all(connection)

    def post(self, body: Any, path: str = "/events", **options: Any) -> httpx2.Response:
        content = body if isinstance(body, bytes | str) else json.dumps(body)
        return self.client.post(path, content=content, **options)

    def effects(self) -> list[str]:
        path = self.folder / "effects"
        return path.read_text().split() if path.exists() else []

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        return self.close()

    def close(self) -> int:
        """Wait for the exit of the process, and close its files. Returns the exit code."""
        code = self.process.wait(30)
        self.client.close()
        self.log.close()
        self.errors.close()
        return code


def certificate(folder: Path) -> tuple[tuple[str, ...], ssl.SSLContext]:
    """Make a self-signed certificate in this folder. Returns the service's options, and a context that trusts it."""
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"),
        *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    options = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    return options, ssl.create_default_context(cafile=folder / "cert.pem")


def receive_all(connection: socket.socket) -> bytes:
    """All bytes that are received until the peer closes or resets the connection."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def until(condition: Callable[[], Any], within: float = 20) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {within:.0f} s"
        time.sleep(0.02)
