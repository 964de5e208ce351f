"""No command repeats a secret that was written in the wrong place."""

import re

import pytest

from oncegate.cli import exit_codes
from tests.cli.conftest import Run

STORES = [
    "dynamodb://k:hunter2@Table?region=x",
    "dynamodb://hunter2@Table?region=x",
    "dynamodb://k:hunter2@[x",
    "dynamodb://Table?region=x&endpoint=http://k:hunter2@127.0.0.1:1",
    "dynamodb://Table?region=x&endpoint=http://127.0.0.1:1/?key=hunter2",
    "redis://:hunter2#x@h/0",
    "redis://:hunter2/x@h/0",
    "redis://u/hunter2@h/0",
    "redis://u?hunter2@h/0",
    "redis://:hunter2℀@h/0",
    "sqlite://u:hunter2@h/x.db",
    "sqlite://hunter2@h/x.db",
    "sqlite://u:hunter2@[x",
    "memory://u:hunter2@h",
    "memory://?key=hunter2",
    "postgresql://u:hunter2/x@h/db",
    "postgresql://u/hunter2@h/db",
    "postgresql://u:hunter2%zz@h/db",
    "postgresql://u:hunter2@[h/db",
    "postgresql://h/db?hunter2",
    "mysql://u:hunter2@h/db",
    "u:hunter2@h",
]
TARGETS = [
    "http://u:hunter2@127.0.0.1:1/events",
    "http://hunter2@127.0.0.1:1/events",
    "http://127.0.0.1:1/events?key=hunter2",
    "http://127.0.0.1:1/events?hunter2",
    "http://127.0.0.1:hunter2@x/events",
    "http://u:hunter2@exa mple/events",
    "http://u:hunter2@999.0.0.1/events",
    "kafka://u:hunter2@h",
    "sqs://k:hunter2@q?region=x",
    "sqs://q?region=x&endpoint=http://k:hunter2@127.0.0.1:1",
    "eventbridge://k:hunter2@b?region=x",
    "eventbridge://k:hunter2@[x",
]
PLACES = ["sqs://k:hunter2@q?region=x", "https://k:hunter2@h/q", "sqs://q?region=x&endpoint=http://k:hunter2@h"]


def refused(oncegate: Run, *arguments: str) -> str:
    """The error message of a command with an invalid argument."""
    code, out, err = oncegate(*arguments)
    assert code != exit_codes.OK
    assert "hunter2" not in out + err
    assert len(re.findall("^Error: ", err, re.MULTILINE)) == 1, err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("url", STORES)
@pytest.mark.parametrize("command", [("dlq", "list"), ("explain", "x"), ("serve", "--port", "0")])
def test_the_store(oncegate: Run, command: tuple[str, ...], url: str) -> None:
    """The error about an invalid store URL contains no password, user or parameter."""
    assert refused(oncegate, *command, "--store", url).startswith("Error: --store: ")


@pytest.mark.parametrize("url", STORES)
def test_the_doctor(oncegate: Run, url: str) -> None:
    """The doctor reports such a store without secrets too."""
    code, out, err = oncegate("doctor", "--store", url)
    assert code in (exit_codes.ERRORS_FOUND, exit_codes.USAGE)
    assert "hunter2" not in out + err


@pytest.mark.parametrize("url", TARGETS)
def test_where_traffic_is_sent(oncegate: Run, url: str) -> None:
    """The error about an invalid target of simulated traffic contains no secret."""
    refused(oncegate, "simulate", "--to", url, "--events", "1", "--rate", "1000")


@pytest.mark.parametrize("url", PLACES)
def test_a_queue(oncegate: Run, url: str) -> None:
    """The error about an invalid queue URL contains no secret."""
    refused(oncegate, "work", url, "--handler", "json:dumps", "--store", "memory://")
    refused(oncegate, "work", "sqs://q?region=x", "--publish", url, "--store", "memory://")


def test_an_endpoint(oncegate: Run) -> None:
    """The error about an invalid endpoint contains no secret."""
    refused(oncegate, "infra", "show", "--region", "eu-central-1", "--endpoint", "http://k:hunter2@127.0.0.1:1")
