"""URLs of the Redis store."""

import re
import subprocess
import sys

import pytest

from oncegate import open_store
from oncegate.errors import SettingError
from oncegate.stores.redis.settings import RedisSettings, settings_of

URL_ERRORS = [
    ("redis://", "has no host, or has a #fragment; write redis://host:6379"),
    ("redis:///0", "has no host"),
    ("redis://host:port", "is malformed"),
    ("redis://host:0", "port 0 is not valid"),
    ("rediss://host?ca_file=/no/such.pem", "ca_file='/no/such.pem' is not a file"),
    ("redis://host/zero", "not the number of a Redis database"),
    (
        "redis://host?colour=red",
        "has no option 'colour' with redis://; use prefix, connect_timeout, timeout, wait_replicas",
    ),
    ("redis://host?buckets=4", "has no option 'buckets' with redis://"),
    ("redis://host?ca_file=x", "has no option 'ca_file' with redis://"),
    ("redis://host?prefix=", "is not valid; use 1 to 64"),
    ("redis://host?prefix={x}", "is not valid; use 1 to 64"),
    ("redis://host?timeout=5", "timeout='5' is not a duration"),
    ("redis://host?wait_replicas=many", "is not a number from 0 to 100"),
    ("redis+cluster://host/1", "a cluster has no database '1'"),
    ("redis+cluster://host?buckets=0", "is not a number from 1 to 1024"),
]


@pytest.mark.parametrize(("url", "message"), URL_ERRORS)
def test_invalid_urls(url: str, message: str) -> None:
    """An invalid URL raises SettingError, and the message says what to write."""
    with pytest.raises(SettingError, match=re.escape(message)):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host", RedisSettings("host")),
        ("redis://n%40me:p%2Fw@host:7000/3", RedisSettings("host", 7000, 3, "n@me", "p/w")),
        ("rediss+cluster://host?buckets=4", RedisSettings("host", tls=True, cluster=True, buckets=4)),
        ("redis://host?timeout=500ms&evicting=allowed", RedisSettings("host", timeout=0.5, evicting=True)),
    ],
)
def test_parts_of_a_url(url: str, expected: RedisSettings) -> None:
    """Every part of a URL becomes a setting; percent-encoded characters are decoded."""
    assert settings_of(url) == expected


@pytest.mark.parametrize("url", ["redis://:p@ss@host:port", "redis://u:p?w@host", "redis://u:p/w@host"])
def test_no_password_in_a_message(url: str) -> None:
    """A password with unescaped characters makes the URL invalid, and the message does not quote it."""
    with pytest.raises(SettingError, match="%40 for @") as caught:
        settings_of(url)
    assert not re.search("p@ss|p/w|p[?]w", str(caught.value))


def test_without_the_extra() -> None:
    """If redis-py is missing, the error has the command that installs it."""
    code = "import sys; sys.modules['redis'] = None; from oncegate import open_store; open_store('redis://localhost')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtra: the Redis store needs an optional dependency: pip install 'oncegate[redis]'" in done.stderr
