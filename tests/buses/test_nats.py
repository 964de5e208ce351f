"""Addresses of NATS, and logins over TLS. The tests of workers and publishers connect to a server, too."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate import Gate
from oncegate.buses.nats import NatsAddress, connect_options, read_address
from oncegate.errors import QueueError, SettingError
from oncegate.sinks import publish
from tests.ingress.nats_server import PLAIN, TLS, NatsServer
from tests.ingress.sqs.queues import Handler, call, working
from tests.sinks.receiver import CA, CERTIFICATES
from tests.stores.servers import until


def read(url: str) -> NatsAddress:
    return read_address(url, ("consumer",), "write this")


def test_an_address() -> None:
    """A URL has the server and the stream. The port of NATS is the default."""
    address = read("nats://127.0.0.1/events?consumer=crm")
    assert (address.server, address.stream, address.options["consumer"]) == ("127.0.0.1:4222", "events", "crm")
    assert connect_options(address) == {"servers": "nats://127.0.0.1:4222"}
    assert read("nats://[::1]:5/e").server == "[::1]:5"


def test_secrets(tmp_path: Path) -> None:
    """User and password are in the URL, percent-encoded. A token is in a file."""
    address = read("nats://ann:p%40ss@h/events")
    assert connect_options(address) == {"servers": "nats://h:4222", "user": "ann", "password": "p@ss"}
    (tmp_path / "token").write_text("s3cret\n")
    address = read(f"nats://h/events?token_file={tmp_path}/token")
    assert connect_options(address) == {"servers": "nats://h:4222", "token": "s3cret"}


def test_tls() -> None:
    """`nats+tls` verifies the certificate of the server."""
    options = connect_options(read("nats+tls://h/events"))
    assert options["servers"] == "tls://h:4222"
    assert options["tls"].check_hostname


def test_a_missing_file() -> None:
    """A file that the URL names and that cannot be read is an error of one sentence."""
    with pytest.raises(SettingError, match="names a file that cannot be used"):
        connect_options(read("nats://h/events?token_file=/no/such"))


def test_an_option_of_another() -> None:
    """Only the options of the caller and of the connection are known."""
    with pytest.raises(SettingError, match="unknown option 'subject' in a NATS URL; use consumer, credentials, "):
        read("nats://h/events?subject=calls")


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    yield server
    server.stop()


def over_tls(url: str) -> str:
    return f"{url.replace('nats://', 'nats+tls://ann:s3cret@')}&ca={CA}"


def test_no_login_without_tls(server: NatsServer) -> None:
    """A server that does not offer TLS is refused before the login, by workers and publishers. It would get the
    password unencrypted."""
    stream = server.stream()
    server.restart(*PLAIN)
    sink: Any = publish(over_tls(stream.target))
    with closing(sink), closing(Gate("memory://")) as gate:
        with pytest.raises(QueueError, match="the server does not offer TLS, so no login was sent"):
            gate.worker(over_tls(stream.source), print).run()
        outcome = gate.run(call(1), sink)
        assert (outcome.status, "does not offer TLS" in outcome.reason) == ("failed", True)
        assert "Client connection created" in server.log
        assert "[CONNECT" not in server.log
        sink = publish(stream.target.replace("://", "://ann:s3cret@"))  # the log would show a login
        with closing(sink):
            assert gate.run(call(2), sink).status == "processed"
        assert "[CONNECT" in server.log


def test_a_server_that_does_not_require_tls(tmp_path: Path, server: NatsServer) -> None:
    """If TLS is an offer of the server, it is used."""
    stream, handler = server.stream(), Handler()
    certificate = f'cert_file: "{CERTIFICATES}/server.pem", key_file: "{CERTIFICATES}/server.pem"'
    (tmp_path / "nats.conf").write_text(f"tls {{ {certificate} }}\nallow_non_tls: true\n")
    server.restart(*PLAIN, "-c", str(tmp_path / "nats.conf"))
    sink: Any = publish(over_tls(stream.target))
    with closing(sink), closing(Gate("memory://")) as gate, working(gate.worker(over_tls(stream.source), handler)):
        assert gate.run(call(1), sink).status == "processed"
        until(lambda: handler.ran == [1], "the event")
    assert server.log.count("TLS handshake complete") >= 2


def test_a_login_over_tls(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """A worker and a publisher log in over TLS. If a server without TLS takes the place of the server, the clients do
    not log in there, and each logs the reason once."""
    stream, handler, gate = server.stream(), Handler(), Gate("memory://", max_attempts=10_000)
    server.restart(*TLS)
    sink: Any = publish(over_tls(stream.target))
    with closing(gate), closing(sink), working(gate.worker(over_tls(stream.source), handler)):
        assert gate.run(call(1), sink).status == "processed"
        until(lambda: handler.ran == [1], "the first event")
        server.restart(*PLAIN)
        until(lambda: server.log.count("Client connection created") >= 5, "attempts to connect again")
        assert gate.run(call(2), sink).status == "failed"
        assert "[CONNECT" not in server.log
        server.restart(*TLS)
        until(lambda: gate.run(call(2), sink).status == "processed", "the publisher")
        until(lambda: handler.ran == [1, 2], "the second event")
    assert caplog.text.count("does not offer TLS, so no login was sent") == 2
