"""The AWS emulator and clients of it, and what the tests of all publishers to buses use."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import pytest

from oncegate.sinks import publish
from tests.stores.dynamo_server import REGION, DynamoServer

Client = Callable[[str], Any]
To = Callable[[str], Any]  # makes the publisher to a URL


@pytest.fixture
def aws(dynamo_server: DynamoServer) -> DynamoServer:
    return dynamo_server


@pytest.fixture
def client(aws: DynamoServer) -> Iterator[Client]:
    """botocore clients of the emulator, closed after the test."""
    made: dict[str, Any] = {}

    def make(service: str) -> Any:
        if service not in made:
            session = botocore.session.Session()
            made[service] = session.create_client(service, region_name=REGION, endpoint_url=aws.endpoint)
        return made[service]

    yield make
    for each in made.values():
        each.close()


@pytest.fixture
def to() -> Iterator[To]:
    """Publishers, closed after the test."""
    made: list[Any] = []

    def make(url: str) -> Any:
        made.append(publish(url))
        return made[-1]

    yield make
    for each in made:
        each.close()


def succeeds_in_child(call: Callable[[], object]) -> bool:
    """Whether a call in a forked child returns without an error."""
    child = os.fork()
    if child == 0:
        try:
            call()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0
