"""A running service with a console, and a client that can log in to it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from tests.service.running import Service

TOKEN = "a token for tests, long enough"  # noqa: S105
ENVIRON = {"ONCEGATE_CONSOLE_TOKEN": TOKEN}
LOGIN = "/console/login"


@contextmanager
def logged_in(service: Service, user: str = "Ada") -> Iterator[httpx2.Client]:
    """A client with a session of its own."""
    with httpx2.Client(base_url=service.url, timeout=30, trust_env=False) as client:
        assert client.post(LOGIN, data={"token": TOKEN, "user": user}).status_code == 303
        yield client


def csrf_of(client: httpx2.Client) -> str:
    """The CSRF token in the forms of the first page."""
    found = re.search(r'name="csrf" value="([^"]+)"', client.get("/console").text)
    assert found
    return found[1]
