"""Servers that the tests of several stores share: started once, when the first test asks for them."""

from collections.abc import Iterator

import pytest

from tests.stores.dynamo_server import CREDENTIALS, DynamoServer


@pytest.fixture(scope="session")
def dynamo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoServer]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        server = DynamoServer(tmp_path_factory.mktemp("dynamodb"))
        try:
            yield server
        finally:
            server.stop()
