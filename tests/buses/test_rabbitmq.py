"""Addresses of RabbitMQ, and what becomes of a request whose connection is given up."""

import asyncio
from pathlib import Path

import pytest

from oncegate.buses.rabbitmq import FAILURES, RabbitAddress, answer_of, connect, login_of, read_address
from oncegate.errors import SettingError
from tests.buses.test_kafka import is_tls_offer, plain_port


def read(url: str) -> RabbitAddress:
    return read_address(url, ("exchange",), "write this")


def test_an_address() -> None:
    """A URL has the server and the queue. The port and the virtual host have defaults."""
    address = read("amqp://127.0.0.1/a%2Fb")
    assert (address.server, address.vhost, address.queue) == ("127.0.0.1:5672", "/", "a/b")
    assert str(login_of(address)[0]) == "amqp://127.0.0.1:5672/?heartbeat=30"
    assert read("amqps://[::1]/q").server == "[::1]:5671"


def test_a_virtual_host() -> None:
    """The virtual host is an option, because the path names the queue."""
    address = read("amqp://h/q?vhost=crm/eu")
    assert (address.vhost, login_of(address)[0].path) == ("crm/eu", "/crm/eu")


def test_secrets(tmp_path: Path) -> None:
    """User and password are in the URL, percent-encoded, or the password is in a file."""
    url, _ = login_of(read("amqp://ann:p%40ss%2F@h/q"))
    assert (url.user, url.password) == ("ann", "p@ss/")
    (tmp_path / "password").write_text("s3cret\n")
    url, _ = login_of(read(f"amqp://ann@h/q?password_file={tmp_path}/password"))
    assert (url.user, url.password) == ("ann", "s3cret")


def test_tls() -> None:
    """`amqps` verifies the certificate of the server."""
    url, context = login_of(read("amqps://h/q"))
    assert url.scheme == "amqps"
    assert context is not None
    assert context.check_hostname


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("amqp://h/q?vhost=" + "v" * 256, "is not the name of a RabbitMQ virtual host; write this"),
        ("amqp://h/q?colour=red", "unknown option 'colour' in a RabbitMQ URL; use exchange, vhost,"),
        ("amqp:///q", "the RabbitMQ URL has no host; write this"),
    ],
)
def test_an_invalid_address(url: str, problem: str) -> None:
    """The message says what is wrong and what to write."""
    with pytest.raises(SettingError, match=problem):
        read(url)


def test_a_missing_file() -> None:
    """A file that the URL names and that cannot be read is an error of one sentence."""
    with pytest.raises(SettingError, match="the RabbitMQ URL names a file that cannot be used"):
        login_of(read("amqp://ann@h/q?password_file=/no/such"))


def test_no_server() -> None:
    """A server that does not answer is a failure at once."""
    with pytest.raises(OSError, match="Connect call failed"):
        asyncio.run(connect(read("amqp://127.0.0.1:1/q")))


def test_a_request_that_the_client_cancels() -> None:
    """aio-pika cancels its requests if it gives up a connection. This is a failure of the connection, and does not
    cancel the caller."""

    async def ask() -> None:
        request = asyncio.get_running_loop().create_future()
        request.cancel()
        await answer_of(request)

    with pytest.raises(ConnectionError, match="the connection is lost"):
        asyncio.run(ask())


def test_a_caller_that_is_cancelled() -> None:
    """The cancellation of the caller stays one."""

    async def cancelled() -> bool:
        caller = asyncio.create_task(answer_of(asyncio.sleep(10)))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        return caller.cancelled()

    assert asyncio.run(cancelled())


def test_nothing_is_sent_without_tls() -> None:
    """A server without TLS gets only the offer of TLS, and no login."""
    with plain_port() as (port, received), pytest.raises(FAILURES):
        asyncio.run(connect(read(f"amqps://ann:s3cret@127.0.0.1:{port}/q")))
    assert is_tls_offer(received)
