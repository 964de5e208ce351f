"""The AWS emulator, and clients of it."""

from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import pytest

from tests.stores.dynamo_server import REGION, DynamoServer

Client = Callable[[str], Any]


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
