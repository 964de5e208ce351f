"""The fake itself: it finds what the SDK does not know, in requests and in answers."""

import json
from contextlib import suppress

import pytest

from oncegate.errors import GenesysError
from oncegate.genesys.client import GenesysClient
from tests.genesys.server import FakeGenesys, metadata

INTEGRATIONS = "/api/v2/integrations"


@pytest.mark.parametrize(
    ("method", "path", "options", "problem"),
    [
        ("GET", "/api/v2/integrations/eventbridge/sources", {}, "is not an operation"),
        ("PATCH", INTEGRATIONS, {}, "is not an operation"),
        ("GET", INTEGRATIONS, {"query": {"size": 1}}, "unknown parameter size"),
        ("GET", INTEGRATIONS, {"query": {"pageSize": "many"}}, "parameter pageSize='many'"),
        ("GET", INTEGRATIONS, {"body": {}}, "a body is sent, but the operation has none"),
        ("POST", INTEGRATIONS, {"body": {"integrationType": {"id": "x"}, "title": "x"}}, "title"),
        ("POST", INTEGRATIONS, {"body": {"integrationType": "x"}}, "is not of type"),
        ("PATCH", f"{INTEGRATIONS}/i", {"body": {"intendedState": "ON"}}, '"ON" is not one of'),
        ("PUT", "/api/v2/notifications/channels/c/subscriptions", {}, "the body is missing"),
    ],
)
def test_a_request_that_the_sdk_does_not_know(
    client: GenesysClient, fake: FakeGenesys, method: str, path: str, options: dict[str, object], problem: str
) -> None:
    """An unknown path, parameter, field, type or value of an enumeration is a violation."""
    with suppress(GenesysError):
        client.call(method, path, **options)  # type: ignore[arg-type]  # on purpose
    assert any(problem in violation for violation in fake.violations), fake.violations
    fake.violations.clear()


def test_an_answer_that_the_sdk_does_not_know(
    client: GenesysClient, fake: FakeGenesys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer with an unknown field is a violation of the fake."""
    monkeypatch.setattr(fake, "_get_tokens_me", lambda query: (200, {"organisation": {"id": "x"}}))
    client.call("GET", "/api/v2/tokens/me")
    assert [violation for violation in fake.violations if "organisation" in violation]
    fake.violations.clear()


def test_frames() -> None:
    """The frame of a heartbeat is the one that clients of Genesys know."""
    assert json.loads(metadata("pong")) == {"topicName": "channel.metadata", "eventBody": {"message": "pong"}}
