"""Addresses of NATS. The tests of workers and publishers connect to a server."""

from pathlib import Path

import pytest

from oncegate.buses.nats import NatsAddress, connect_options, read_address
from oncegate.errors import SettingError


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
