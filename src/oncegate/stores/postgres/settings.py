"""The URL of a Postgres store: libpq's parameters as everywhere, and ours, whose names begin with `oncegate_`."""

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

_OURS: Final = "oncegate_"
_KNOWN: Final = ("oncegate_schema", "oncegate_connections", "oncegate_timeout")
_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_MOST_CONNECTIONS: Final = 1_000
_PORTS: Final = re.compile(r"[0-9,]*", re.ASCII)
_WRITTEN: Final = (
    "write postgresql://host/database, and in a name or password %40 for @, %2F for /, %3A for :, %3F for ?"
)
# What libpq is told unless the URL says otherwise. A connection that was cut without a word is found out in time.
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
        """Where it is, for a sentence: no user and no password."""
        host = self.parameters.get("host") or self.parameters.get("hostaddr") or "this machine's socket"
        port, name = self.parameters.get("port"), self.parameters.get("dbname")
        return f"Postgres at {host}{f':{port}' if port else ''}{f'/{name}' if name else ''}"


def read_url(url: str) -> PostgresSettings:
    ours, theirs = _parted(url)
    unknown = [name for name in ours if name not in _KNOWN]
    if unknown:
        raise SettingError(f"the Postgres store has no option {unknown[0]!r}; it has {', '.join(_KNOWN)}")
    if "@" in theirs.partition("?")[0].partition("://")[2].partition("/")[2]:
        raise SettingError(f"the store URL has an @ behind its host; {_WRITTEN}")
    try:
        parameters = conninfo_to_dict(theirs)
    except psycopg.Error as error:
        raise SettingError(f"the store URL is not one that Postgres understands: {_unsaid(str(error))}") from None
    if not _PORTS.fullmatch(str(parameters.get("port", ""))):
        raise SettingError(f"the store URL has a port that is no number; {_WRITTEN}")
    return PostgresSettings(
        {**_DEFAULTS, **parameters, "client_encoding": "utf8"},
        _schema(ours.get("oncegate_schema", SCHEMA)),
        _connections(ours.get("oncegate_connections", "8")),
        microseconds(ours.get("oncegate_timeout", "5s"), "oncegate_timeout") / 1e6,
    )


def _parted(url: str) -> tuple[dict[str, str], str]:
    """Our options, and the URL without them, otherwise letter for letter as it was."""
    base, _, query = url.partition("?")
    pairs = query.split("&") if query else []
    ours = "&".join(pair for pair in pairs if pair.startswith(_OURS))
    theirs = "&".join(pair for pair in pairs if not pair.startswith(_OURS))
    return dict(parse_qsl(ours, keep_blank_values=True)), f"{base}?{theirs}" if theirs else base


def _unsaid(said: str) -> str:
    """An error of libpq without what it quotes of the URL, which may be of a password; but for a parameter's name."""
    named = re.match(r'invalid URI query parameter: "[a-z_]+"', said)
    return named[0] if named else said.partition('"')[0].rstrip(" :\n")


def _schema(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"oncegate_schema={name!r} is not a plain name; write it in small letters, digits and underscores"
        )
    return name


def _connections(written: str) -> int:
    if not written.isascii() or not written.isdigit() or not 1 <= int(written) <= _MOST_CONNECTIONS:
        raise SettingError(f"oncegate_connections={written!r} is not a number from 1 to {_MOST_CONNECTIONS}")
    return int(written)
