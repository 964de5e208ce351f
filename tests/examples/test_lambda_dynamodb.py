"""The example of a Lambda function: the commands of its README, against the emulator."""

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.examples.readme import Readme
from tests.stores.dynamo_server import executable
from tests.stores.servers import until

CRM, AWS = 9000, 4566


@pytest.fixture
def readme(tmp_path: Path) -> Iterator[Readme]:
    executable()
    readme = Readme("lambda_dynamodb", tmp_path, (CRM, AWS))
    yield readme
    readme.close()


def answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status > 0
    except OSError:
        return False
    finally:
        connection.close()


def test_it_does_what_it_says(readme: Readme) -> None:
    """100 events with their duplicates open 100 cases, through a rule, a queue and the function."""
    crm, emulator, package, up, simulate, verify, show = readme.commands("Try it without AWS")
    readme.start(crm)
    readme.start(emulator)
    until(lambda: answers(readme.ports[AWS], "/_ministack/health"), "the emulator", 30)
    until(lambda: answers(readme.ports[CRM], "/"), "the CRM")
    readme.done(package)
    assert "9 parts created or changed." in readme.done(up)
    assert "Sent " in readme.done(simulate)
    until(lambda: readme.effects() >= 100, "all events to take effect", 60)
    assert readme.done(verify).startswith("Exactly once: 100 events, 100 effects; ")
    (key, *_) = re.findall(r'"key": "(\w+)"', (readme.folder / "effects.jsonl").read_text())
    assert readme.done(show.replace("KEY", key)).startswith("Processed ")
