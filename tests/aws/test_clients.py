"""Creating clients for AWS services."""

import pytest

from oncegate.aws.clients import api_action, checked_endpoint, create_client
from oncegate.errors import SettingError


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:4566", "https://host/path"])
def test_valid_endpoints(endpoint: str | None) -> None:
    """A plain URL, or no endpoint at all, is returned unchanged."""
    assert checked_endpoint(endpoint) == endpoint


@pytest.mark.parametrize("endpoint", ["", "host:8000", "ftp://host", "http://me:secret@host", "http://host?a=b"])
def test_invalid_endpoints(endpoint: str) -> None:
    """Any other endpoint is refused, without a password in the message."""
    with pytest.raises(SettingError, match="is not a valid URL; write it without credentials") as refused:
        checked_endpoint(endpoint)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_the_region_of_the_environment(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Without a region the client uses either variable of the environment."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "eu-west-3")
    client = create_client("sqs", None, None, "the queue")
    assert client.meta.region_name == "eu-west-3"
    client.close()


def test_retries_are_off() -> None:
    """A client sends a request once unless the caller asks for more attempts."""
    for attempts in (1, 3):
        client = create_client("sqs", "eu-west-3", None, "the queue", attempts=attempts)
        assert client.meta.config.retries["total_max_attempts"] == attempts
        client.close()


def test_action_names() -> None:
    """The AWS name of a method has capital letters and no underscores."""
    assert api_action("describe_time_to_live") == "DescribeTimeToLive"
