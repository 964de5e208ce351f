"""Addresses of NATS JetStream, and how to connect to a server. Workers and publishers use this module."""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from oncegate.buses.urls import TLS_FILES, bus_name, files_at_connect, named_files, read_secret, read_url, tls_context
from oncegate.errors import MissingExtra

try:
    from nats.aio.client import Client
    from nats.errors import Error as NatsError
except ImportError as _error:
    raise MissingExtra("the use of NATS", "nats") from _error

_log: Final = logging.getLogger("oncegate.nats")
FAILURES: Final = (NatsError, OSError, TimeoutError)
_CONNECTION: Final = ("credentials", "token_file", *TLS_FILES)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_PORT: Final = 4222
_CONNECT_WITHIN: Final = 5  # seconds


class NatsAddress(Struct, frozen=True):
    """A stream on a server. Secrets come from the URL or from files. `options` are those behind the question mark."""

    server: str
    stream: str
    is_encrypted: bool
    user: str | None = None
    password: str | None = None
    options: Mapping[str, str] = {}


def read_address(url: str, own: Sequence[str], use: str) -> NatsAddress:
    """Parse `nats://HOST:PORT/STREAM?…`. `nats+tls://` uses TLS. `own` are the options of the caller, besides those of
    the connection, and `use` tells people what to write. Raises SettingError."""
    parts = read_url(url, "NATS", "nats+tls", _PORT, (*own, *_CONNECTION), use)
    return NatsAddress(
        server=parts.server,
        stream=checked_name(parts.path, "stream", use),
        is_encrypted=parts.is_encrypted,
        user=parts.user,
        password=parts.password,
        options=parts.options,
    )


def checked_name(value: str, what: str, use: str) -> str:
    return bus_name(value, f"NATS {what}", use, is_valid=_NAME.fullmatch(value) is not None)


def connect_options(address: NatsAddress) -> dict[str, Any]:
    """The options for `nats.connect`. Raises SettingError if a file cannot be read."""
    given = address.options
    options: dict[str, Any] = {"servers": f"{'tls' if address.is_encrypted else 'nats'}://{address.server}"}
    if address.user is not None:
        options |= {"user": address.user, "password": address.password or ""}
    with named_files("NATS"):
        if "credentials" in given:
            with open(given["credentials"], "rb"):
                options["user_credentials"] = given["credentials"]
        if "token_file" in given:
            options["token"] = read_secret(given["token_file"])
        if address.is_encrypted:
            options["tls"] = tls_context(given)
    return options


class TlsMissing(NatsError):
    """The server does not offer TLS, or somebody on the way has removed its offer."""


class _TlsClient(Client):
    """A client that sends no login without TLS. nats-py itself uses TLS only if the server requires it, and would
    otherwise send the password unencrypted. Each connection begins with a call of `_process_info`, before the login."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                assert self._transport is not None  # noqa: S101  # the information came over it
                self._transport.close()  # type: ignore[no-untyped-call]  # nats-py leaves it open
                raise TlsMissing("the server does not offer TLS, so no login was sent; enable TLS on the server")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


async def connect(address: NatsAddress, **callbacks: Any) -> Client:
    """Connect to the server. If it cannot be reached now, this fails; a connection that is lost later comes back by
    itself. `callbacks` are those of the client, such as `reconnected_cb`."""
    last: Exception | None = None
    is_reconnecting = False

    async def note(error: Exception) -> None:
        nonlocal last
        if is_reconnecting and isinstance(error, TlsMissing) and not isinstance(last, TlsMissing):
            _log.warning("NATS at %s: %s", address.server, error)
        last = error

    with files_at_connect():
        options = connect_options(address)
    client = _TlsClient() if address.is_encrypted else Client()
    try:
        # With an unlimited number of reconnects, `connect` itself would wait for the server without end.
        async with asyncio.timeout(_CONNECT_WITHIN):
            await client.connect(
                **options,
                connect_timeout=_CONNECT_WITHIN,
                max_reconnect_attempts=-1,
                reconnect_time_wait=1,
                error_cb=note,
                **callbacks,
            )
    except BaseException as error:
        await client.close()
        if isinstance(error, TimeoutError) and last is not None:
            raise last from error
        raise
    is_reconnecting = True
    return client


def error_text(error: BaseException) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
