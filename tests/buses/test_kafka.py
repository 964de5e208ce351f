"""Addresses of Kafka and the configuration of clients. The tests of workers and publishers connect to a cluster."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from oncegate.buses.kafka import KafkaAddress, client_config, error_text, read_address
from oncegate.errors import SettingError
from oncegate.text import masked
from tests.sinks.receiver import CERTIFICATES


def read(url: str) -> KafkaAddress:
    return read_address(url, ("group",), "write this")


def config_of(url: str) -> dict[str, Any]:
    config = client_config(read(url))
    return {name: value for name, value in config.items() if name.split(".")[0] in ("security", "sasl", "ssl")}


def test_an_address() -> None:
    """A URL has the brokers and the topic. The port of Kafka is the default."""
    address = read("kafka://a,b:5,[::1]:6/crm.events?group=crm")
    assert (address.brokers, address.topic) == ("a:9092,b:5,[::1]:6", "crm.events")
    assert address.options["group"] == "crm"
    assert config_of("kafka://h/t") == {"security.protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka:///events", "has no host; write this"),
        ("kafka://a,,b/events", "has no host; write this"),
        ("kafka://a:x/events", "'a:x' is not the address of a Kafka broker; write this"),
        ("kafka://a:0/events", "'a:0' is not the address of a Kafka broker"),
        ("kafka://a:65536/events", "is not the address of a Kafka broker"),
        ("kafka://a", "the URL has no name of a Kafka topic; write this"),
        ("kafka://a/..", "'..' is not the name of a Kafka topic"),
        ("kafka://a/b/c", "'b/c' is not the name of a Kafka topic"),
        ("kafka://ann:p?ss@h/t", "must be percent-encoded (an @ is written as %40); write this"),
        ("kafka://a/b?colour=red", "unknown option 'colour' in a Kafka URL; use group, mechanism, password_file, ca"),
    ],
)
def test_an_invalid_address(url: str, problem: str) -> None:
    """An invalid URL is rejected with what to write instead."""
    with pytest.raises(SettingError) as rejected:
        read(url)
    assert problem in str(rejected.value)


def test_a_login(tmp_path: Path) -> None:
    """User and password are in the URL, percent-encoded, or the password is in a file. The default mechanism does not
    send the password itself."""
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "ann"}
    assert config_of("kafka://ann:p%40ss@h/t") == login | {"sasl.password": "p@ss"}
    (tmp_path / "password").write_text("s3cret\n")
    assert config_of(f"kafka://ann@h/t?password_file={tmp_path}/password") == login | {"sasl.password": "s3cret"}
    found = config_of("kafka+tls://ann:x@h/t?mechanism=PLAIN")
    assert (found["security.protocol"], found["sasl.mechanism"]) == ("SASL_SSL", "PLAIN")


@pytest.mark.parametrize("option", ["mechanism=PLAIN", "password_file=/no/such"])
def test_an_option_of_a_login_without_a_user(option: str) -> None:
    """An option that would have no effect is refused."""
    with pytest.raises(SettingError, match=f"{option.partition('=')[0]} of a Kafka URL needs a user"):
        config_of(f"kafka://h/t?{option}")


def test_tls(tmp_path: Path) -> None:
    """`kafka+tls` uses TLS, with the certificates that the URL names."""
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(name)
    files = f"ca={tmp_path}/ca&certificate={tmp_path}/cert&certificate_key={tmp_path}/key"
    assert config_of(f"kafka+tls://h/t?{files}") == {
        "security.protocol": "SSL",
        "ssl.ca.location": f"{tmp_path}/ca",
        "ssl.certificate.location": f"{tmp_path}/cert",
        "ssl.key.location": f"{tmp_path}/key",
    }


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://ann@h/t", "has a user and no password; add password_file=PATH"),
        ("kafka://ann:x@h/t?mechanism=GSSAPI", "unknown mechanism 'GSSAPI' in a Kafka URL; use SCRAM-SHA-512, "),
        ("kafka://ann@h/t?password_file=/no/such", "names a file that cannot be used"),
        ("kafka+tls://h/t?ca=/no/such", "names a file that cannot be used"),
        ("kafka://h/t?ca=/no/such", "the option ca of a Kafka URL is for TLS"),
    ],
)
def test_an_invalid_login(url: str, problem: str) -> None:
    """A login that cannot work is an error of one sentence, before a connection is opened."""
    with pytest.raises(SettingError, match=problem):
        client_config(read(url))


def test_secrets_are_masked() -> None:
    """What people see of a URL has neither the password nor the path of its file."""
    url = "kafka+tls://ann:s3cret@a:1,b:2/t?group=crm&retry_topic=again&password_file=/run/p&mechanism=PLAIN"
    assert masked(url) == (
        "kafka+tls://ann:***@a:1,b:2/t?group=crm&retry_topic=again&password_file=***&mechanism=PLAIN"
    )


@contextmanager
def tls_port(certificate: str) -> Iterator[tuple[int, list[str | None]]]:
    """A port that completes TLS handshakes and then hangs up, and the versions of TLS of the completed handshakes."""
    context, handshakes = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[str | None]()
    context.load_cert_chain(CERTIFICATES / f"{certificate}.pem")

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as encrypted:
                    encrypted.recv(1)  # the client has checked the certificate before it sends something
                    handshakes.append(encrypted.version())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=[listener])
        thread.start()
        yield listener.getsockname()[1], handshakes
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(20)


@contextmanager
def plain_port() -> Iterator[tuple[int, list[bytes]]]:
    """A port that answers with plain text, and the first bytes of each connection."""
    received = list[bytes]()

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with suppress(OSError), connection:
                    received.append(connection.recv(10_000))
                    connection.sendall(b"this server has no TLS\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=[listener])
        thread.start()
        yield listener.getsockname()[1], received
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(20)


def is_tls_offer(received: list[bytes]) -> bool:
    """Whether each connection began with the first message of TLS, which has no login."""
    return bool(received) and all(each.startswith(b"\x16\x03") and b"s3cret" not in each for each in received)


def failure_at(url: str) -> list[str]:
    """The errors of a client that asks for the topics of a cluster."""
    errors: list[str] = []
    client = Producer(client_config(read(url)) | {"error_cb": lambda error: errors.append(error_text(error))})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)
    client.poll(0)
    return errors


@pytest.mark.parametrize(
    ("certificate", "options", "is_trusted"),
    [("server", f"?ca={CERTIFICATES}/ca.pem", True), ("server", "", False)],
)
def test_the_certificate_is_verified(certificate: str, options: str, is_trusted: bool) -> None:
    """A broker whose certificate is not signed by a trusted authority gets no data."""
    with tls_port(certificate) as (port, handshakes):
        errors = failure_at(f"kafka+tls://127.0.0.1:{port}/t{options}")
    assert bool(handshakes) == is_trusted
    assert any("certificate verify failed" in error for error in errors) != is_trusted


def test_nothing_is_sent_without_tls() -> None:
    """A broker without TLS gets only the offer of TLS, and no login."""
    with plain_port() as (port, received):
        failure_at(f"kafka+tls://ann:s3cret@127.0.0.1:{port}/t?mechanism=PLAIN")
    assert is_tls_offer(received)


def test_the_host_of_the_certificate_is_verified() -> None:
    """A broker with a trusted certificate of another host gets no data."""
    with tls_port("elsewhere") as (port, handshakes):
        failure_at(f"kafka+tls://127.0.0.1:{port}/t?ca={CERTIFICATES}/ca.pem")
    assert not handshakes


def test_the_text_of_an_error() -> None:
    """The text for people has no state of the connection."""
    said = "h:1/bootstrap: Connect failed: Connection refused (after 0ms in state CONNECT, 1 identical error(s))"
    assert error_text(KafkaError(KafkaError._TRANSPORT, said)) == "h:1/bootstrap: Connect failed: Connection refused"
