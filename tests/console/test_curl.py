"""The curl command of a payload: a real shell passes exactly these bytes, and runs nothing else."""

import http.server
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.console.curl import LARGEST_PAYLOAD, curl_command, is_signed, route_address, service_address
from oncegate.settings import examine

PAYLOADS = [
    b'{"id": "evt-1"}',
    b"""{"a": "it's $(touch hacked) `touch hacked` \\"; touch hacked; #"}""",
    b'{"a":\n  "line break", "b": "!history", "c": "%s %d \\\\n"}\n',
    b"@/etc/passwd",
    b"",
    b"' ; touch hacked ; '",
    '{"a": "\u202e\u2028 ü \U0001f4a5"}'.encode(),
    b"\x00\xff\x1b[2J not text",
    b"\t\r\n{}",
    b"it's" * (LARGEST_PAYLOAD // 4),
    b"\xff" * LARGEST_PAYLOAD,
]


class _Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.received.append(self.rfile.read(int(self.headers["content-length"])))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """No log."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[http.server.HTTPServer]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Receiver) as server:
        server.received = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell(receiver: http.server.HTTPServer, tmp_path: Path, payload: bytes, shell: str) -> None:
    """The receiver gets the payload, byte for byte, and the shell runs nothing of it."""
    command = curl_command(f"http://127.0.0.1:{receiver.server_port}/events?a='$(touch$IFS''hacked)", payload)
    subprocess.run([shell], input=command.encode(), cwd=tmp_path, check=True, env={"PATH": "/usr/bin:/bin"})
    assert receiver.received.pop() == payload  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_what_a_person_sees(payload: bytes) -> None:
    """The command has no character that a terminal interprets when it is pasted, except for line breaks."""
    assert all(each.isprintable() or each == "\n" for each in curl_command("http://h/events", payload))


def test_the_address(tmp_path: Path) -> None:
    """The address is that of the route, by its name or its namespace, at the host and port of the settings."""
    file = tmp_path / "oncegate.toml"
    file.write_text(
        '[serve]\nhost = "::1"\nport = 9000\n[route.crm]\nsignature = "none"\n'
        '[route.signed]\nsignature = "cxone"\nsecret_env = "S"\nnamespace = "shared"\n'
    )
    settings = examine(file, environ={})[0]
    assert route_address(settings, service_address(settings), "crm") == "http://[::1]:9000/events/crm"
    assert route_address(settings, service_address(settings), "shared") == "http://[::1]:9000/events/signed"
    assert route_address(settings, service_address(settings), "shared", "crm") == "http://[::1]:9000/events/crm"
    assert route_address(settings, service_address(settings), "default") == "http://[::1]:9000/events"
    assert [is_signed(settings, each) for each in ("crm", "shared", "default")] == [False, True, False]
