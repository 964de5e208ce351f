"""A receiver of forwarded events: a real HTTP server on this machine, optionally with TLS."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# A private authority and its certificates, valid for a hundred years: `server` for 127.0.0.1 and localhost,
# `elsewhere` for another name, and `client`. The key of the authority does not exist any more.
CERTIFICATES = Path(__file__).parent / "certificates"
CA = CERTIFICATES / "ca.pem"
CLIENT = CERTIFICATES / "client.pem"
# For `server`: openssl x509 -pubkey | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64.
SERVER_PIN = "sha256//HH07K85DpMmE2OflijnRaC3lIpo4NrtyFAD+VIE9MQM="


class Receiver(ThreadingHTTPServer):
    """Records its requests, and answers with the configured status, headers and body."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.scheme = "http"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
            self.scheme = "https"
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b"{}"
        self.hold = threading.Event()
        self.hold.set()
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.server_address[1]}{path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection: some tests are about them."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, dict(self.headers), body))
        self.server.hold.wait(10)
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name of the base class
        pass


@contextmanager
def receiving(
    certificate: str | None = None, *, newest: ssl.TLSVersion | None = None, mutual: bool = False
) -> Iterator[Receiver]:
    """A receiver. With a certificate it uses TLS, up to version `newest`. If `mutual`, it requires a client
    certificate."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATES / f"{certificate}.pem")
        if newest is not None:
            context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
            context.set_ciphers("ALL:@SECLEVEL=0")  # or OpenSSL would reject old versions here
        if mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(CA)
    receiver = Receiver(context)
    thread = threading.Thread(target=receiver.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.hold.set()
        receiver.shutdown()
        thread.join()
        receiver.server_close()
