"""The URL of the Postgres store."""

import re
import subprocess
import sys

import pytest

from oncegate import open_store
from oncegate.errors import SettingError
from oncegate.stores.postgres.settings import read_url

URL_ERRORS = [
    ("postgresql://me:secret@host/db?oncegate_colour=blue", "has no option 'oncegate_colour'; it has oncegate_schema"),
    ("postgresql://me:secret@host/db?oncegate_schema=My-Schema", "'My-Schema' is not a valid schema name"),
    ("postgresql://me:secret@host/db?oncegate_schema=pg_catalog", "'pg_catalog' is not a valid schema name"),
    ("postgresql://me:secret@host/db?oncegate_connections=0", "'0' is not a number from 1 to 1000"),
    ("postgresql://me:secret@host/db?oncegate_timeout=5", "is not a duration"),
    ("postgresql://me:secret@host/db?colour=blue", 'invalid URI query parameter: "colour"'),
    ("postgresql://me:secret@[host/db", "is not a valid Postgres URL"),
    ("postgresql://me:secret@[::1]x/db", "is not a valid Postgres URL"),
]


@pytest.mark.parametrize(("url", "message"), URL_ERRORS)
def test_invalid_urls(url: str, message: str) -> None:
    """A URL with an unknown option or value is refused; the message says what is allowed and hides the password."""
    with pytest.raises(SettingError, match=re.escape(message)) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_libpq_parameters() -> None:
    """The options of Oncegate are removed from the URL; the others reach libpq and override the defaults."""
    url = "postgres://me:p%40ss@host:6432/db?sslmode=require&oncegate_schema=mine&connect_timeout=9&oncegate_timeout=250ms"
    settings = read_url(url)
    assert (settings.schema, settings.timeout, settings.connections) == ("mine", 0.25, 8)
    expected = {"user": "me", "password": "p@ss", "host": "host", "sslmode": "require", "connect_timeout": "9"}
    assert expected.items() <= settings.parameters.items()
    assert settings.place == "Postgres at host:6432/db"


def test_a_url_without_a_host() -> None:
    """A URL may name no host, or the directory of a socket."""
    assert read_url("postgresql://").place == "Postgres at this machine's socket"
    settings = read_url("postgresql:///db?oncegate_schema=mine&host=/run/postgresql")
    assert (settings.schema, settings.place) == ("mine", "Postgres at /run/postgresql/db")


def test_without_the_extra() -> None:
    """Without psycopg the error contains the command that installs it."""
    code = "import sys; sys.modules['psycopg'] = None; import oncegate; oncegate.open_store('postgresql://host/db')"
    stderr = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert "MissingExtra: the Postgres store needs an optional dependency: pip install 'oncegate[postgres]'" in stderr
