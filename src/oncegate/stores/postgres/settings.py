"""Parse the URL of a Postgres store.

The URL contains libpq parameters, and options of Oncegate, whose names begin with `oncegate_`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict

from oncegate.durations import microseconds
from oncegate.errors import SettingError
from oncegate.stores.postgres.arrays import SCHEMA

_PREFIX: Final = "oncegate_"
OPTIONS: Final = ("oncegate_schema", "oncegate_connections", "oncegate_timeout")
_SCHEMA_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_MAX_CONNECTIONS: Final = 1_000
_PORTS: Final = re.compile(r"[0-9,]*", re.ASCII)
_URL_HINT: Final = (
    "write postgresql://host/database, and in a name or password %40 for @, %2F for /, %3A for :, %3F for ?"
)
# libpq parameters that the URL may override. If the network drops a connection without notice, the keepalives detect
# this within a minute.
_DEFAULTS: Final = {
    "connect_timeout": 5,
    "fallback_application_name": "oncegate",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


class PostgresSettings(Struct, frozen=True):
    parameters: Mapping[str, Any]
    schema: str = SCHEMA
    connections: int = 8
    timeout: float = 5.0

    @property
    def place(self) -> str:
        """The server and database as text for messages, without user and password."""
        host = self.parameters.get("host") or self.parameters.get("hostaddr") or "this machine's socket"
        port, name = self.parameters.get("port"), self.parameters.get("dbname")
        return f"Postgres at {host}{f':{port}' if port else ''}{f'/{name}' if name else ''}"


def read_url(url: str) -> PostgresSettings:
    options, libpq_url = _split_options(url)
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise SettingError(f"the Postgres store has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
    if "@" in libpq_url.partition("?")[0].partition("://")[2].partition("/")[2]:
        raise SettingError(f"the store URL has an @ after its host; {_URL_HINT}")
    try:
        parameters = conninfo_to_dict(libpq_url)
    except psycopg.Error as error:
        reason = _without_secrets(str(error))
        raise SettingError(f"the store URL is not a valid Postgres URL: {reason}; {_URL_HINT}") from None
    if not _PORTS.fullmatch(str(parameters.get("port", ""))):
        raise SettingError(f"the port in the store URL is not a number; {_URL_HINT}")
    return PostgresSettings(
        {**_DEFAULTS, **parameters, "client_encoding": "utf8"},
        _schema(options.get("oncegate_schema", SCHEMA)),
        _connections(options.get("oncegate_connections", "8")),
        microseconds(options.get("oncegate_timeout", "5s"), "oncegate_timeout") / 1e6,
    )


def _split_options(url: str) -> tuple[dict[str, str], str]:
    """Return the options of Oncegate, and the URL without these options. The rest of the URL is unchanged."""
    base, _, query = url.partition("?")
    pairs = query.split("&") if query else []
    options = "&".join(pair for pair in pairs if pair.startswith(_PREFIX))
    rest = "&".join(pair for pair in pairs if not pair.startswith(_PREFIX))
    return dict(parse_qsl(options, keep_blank_values=True)), f"{base}?{rest}" if rest else base


def _without_secrets(message: str) -> str:
    """Return the message of a libpq error without the parts of the URL that it quotes, except for the name of a
    parameter. A quoted part may be part of a password."""
    parameter = re.match(r'invalid URI query parameter: "[a-z_]+"', message)
    return parameter[0] if parameter else message.partition('"')[0].rstrip(" :\n")


def _schema(name: str) -> str:
    if not _SCHEMA_NAME.fullmatch(name):
        raise SettingError(
            f"oncegate_schema={name!r} is not a valid schema name;"
            " use lower-case letters, digits and underscores, without the prefix pg_"
        )
    return name


def _connections(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_CONNECTIONS:
        raise SettingError(f"oncegate_connections={text!r} is not a number from 1 to {_MAX_CONNECTIONS}")
    return int(text)
