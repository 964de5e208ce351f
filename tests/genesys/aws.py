"""The emulator of AWS behind a proxy that knows the partner event sources of the fake of Genesys Cloud.

The emulator answers that every partner event source exists. The proxy answers DescribeEventSource itself, and refuses a
bus for a source that does not exist, as AWS does. All other requests go to the emulator."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.genesys.server import FakeGenesys, QuietServer

_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}


class _Proxy(BaseHTTPRequestHandler):
    fake: FakeGenesys
    port: int
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        target = self.headers.get("x-amz-target", "")
        if target == "AWSEvents.DescribeEventSource":
            self._describe(json.loads(body)["Name"])
        elif target == "AWSEvents.CreateEventBus" and not self._may_create(json.loads(body)):
            self._refuse(json.loads(body)["EventSourceName"])
        else:
            self._forward(body)

    def _describe(self, name: str) -> None:
        with self.fake.lock:
            if self.fake.source_after > 0:
                self.fake.source_after -= 1
            elif name in self.fake.sources:
                arn = f"arn:aws:events:eu-central-1::event-source/{name}"
                self._answer(200, {"Name": name, "State": self.fake.sources[name], "Arn": arn})
                return
        self._refuse(name)

    def _may_create(self, request: dict[str, Any]) -> bool:
        source = request.get("EventSourceName")
        if source is None:
            return True
        if source not in self.fake.sources:
            return False
        self.fake.sources[source] = "ACTIVE"
        return True

    def _refuse(self, name: str) -> None:
        text = f"Event source {name} does not exist."
        self._answer(400, {"__type": "ResourceNotFoundException", "message": text})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, {"content-type": "application/x-amz-json-1.1"}, json.dumps(body).encode())

    def _forward(self, body: bytes) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
        connection.close()
        self._send(answer.status, kept, content)

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815  # the names of the base class

    def log_message(self, *arguments: Any) -> None:
        """Keep the output of the tests clean."""


@contextmanager
def with_sources(fake: FakeGenesys, port: int) -> Iterator[str]:
    """The address of the emulator at this port, with the sources of the fake."""
    server = QuietServer(("127.0.0.1", 0), type("Proxy", (_Proxy,), {"fake": fake, "port": port}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
