"""Helpers for the tests of the Redis store."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from oncegate import Event, open_store
from oncegate.errors import StoreError, StoreRefused
from tests.stores.redis_server import RedisServer


def assert_refused(url: str, message: str, kind: type[StoreError] = StoreRefused) -> None:
    """Opening this URL raises an error with this message. The error does not quote the password, "secret"."""
    with pytest.raises(kind, match=re.escape(message)) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@contextmanager
def configured(server: RedisServer, **settings: str) -> Iterator[None]:
    """Set these settings of the server, and restore them afterwards."""
    names = {name.replace("_", "-"): value for name, value in settings.items()}
    before = {name: server.client.config_get(name)[name] for name in names}
    server.client.config_set(*[part for item in names.items() for part in item])
    try:
        yield
    finally:
        server.client.config_set(*[part for item in before.items() for part in item])


def never(event: Event) -> None:
    """A handler that must not run."""
    pytest.fail(f"{event.id} was run")
