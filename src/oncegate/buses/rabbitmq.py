"""Addresses of RabbitMQ, and how to connect to a server. Workers and publishers use this module."""

import asyncio
import ssl
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import unquote

from msgspec import Struct

from oncegate.buses.urls import TLS_FILES, bus_name, files_at_connect, named_files, read_secret, read_url, tls_context
from oncegate.errors import MissingExtra

try:
    from aio_pika import Connection
    from aio_pika.exceptions import CONNECTION_EXCEPTIONS
    from yarl import URL
except ImportError as _error:
    raise MissingExtra("the use of RabbitMQ", "rabbitmq") from _error

FAILURES: Final = (*CONNECTION_EXCEPTIONS, TimeoutError)
_CONNECTION: Final = ("vhost", "password_file", *TLS_FILES)
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_LONGEST_NAME: Final = 255  # bytes
_ANSWER_WITHIN: Final = 5.0  # seconds
_HEARTBEAT: Final = 30  # seconds; RabbitMQ gives up a connection that was silent for twice this time

_R = TypeVar("_R")


class RabbitAddress(Struct, frozen=True):
    """A server, a virtual host, and the name of a queue, which may be empty. Secrets come from the URL or from files.
    `options` are those behind the question mark."""

    host: str
    port: int
    server: str
    is_encrypted: bool
    vhost: str
    queue: str
    user: str | None = None
    password: str | None = None
    options: Mapping[str, str] = {}


def read_address(url: str, own: Sequence[str], use: str) -> RabbitAddress:
    """Parse `amqp://HOST:PORT/QUEUE?…`. `amqps://` uses TLS. `own` are the options of the caller, besides those of the
    connection, and `use` tells people what to write. Raises SettingError."""
    port = _PORTS[url.partition("://")[0]]
    parts = read_url(url, "RabbitMQ", "amqps", port, (*own, *_CONNECTION), use)
    return RabbitAddress(
        host=parts.host,
        port=parts.port,
        server=parts.server,
        is_encrypted=parts.is_encrypted,
        vhost=checked_name(parts.options.get("vhost", "/"), "virtual host", use),
        queue=unquote(parts.path),
        user=parts.user,
        password=parts.password,
        options=parts.options,
    )


def checked_name(value: str, what: str, use: str) -> str:
    is_valid = len(value.encode("utf-8", "replace")) <= _LONGEST_NAME
    return bus_name(value, f"RabbitMQ {what}", use, is_valid=is_valid)


def login_of(address: RabbitAddress) -> tuple[URL, ssl.SSLContext | None]:
    """The URL with the login for aio-pika, and the context for TLS. Raises SettingError if a file cannot be read."""
    password, context = address.password, None
    with named_files("RabbitMQ"):
        if "password_file" in address.options:
            password = read_secret(address.options["password_file"])
        if address.is_encrypted:
            context = tls_context(address.options)
    url = URL.build(
        scheme="amqps" if address.is_encrypted else "amqp",
        user=address.user,
        password=password if address.user is not None else None,
        host=address.host,
        port=address.port,
        path="/" if address.vhost == "/" else f"/{address.vhost}",
        query={"heartbeat": str(_HEARTBEAT)},
    )
    return url, context


async def connect(address: RabbitAddress) -> Connection:
    """Connect to the server. A connection that is lost stays lost: a message must be acknowledged on the channel that
    has delivered it, so the clients of aio-pika that connect again by themselves are not used."""
    with files_at_connect():
        url, context = login_of(address)
    connection = Connection(url, ssl_context=context, client_properties={"connection_name": "oncegate"})
    try:
        await answer_of(connection.connect())
    except BaseException:
        await connection.close()
        raise
    return connection


async def answer_of(request: Awaitable[_R], within: float = _ANSWER_WITHIN) -> _R:
    """Wait for the answer to a request. Raises one of FAILURES. If aio-pika gives up a connection, it cancels the
    requests that wait for an answer; for the caller this is a lost connection."""
    try:
        async with asyncio.timeout(within):
            return await request
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionError("the connection is lost") from error


def error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__
