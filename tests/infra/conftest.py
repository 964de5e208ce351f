"""An emulator of AWS for the commands that make and judge deployments, and the commands themselves."""

import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest

from tests.cli.conftest import Run, oncegate
from tests.stores.conftest import dynamo_server
from tests.stores.dynamo_server import REGION, DynamoServer

__all__ = ["dynamo_server", "oncegate"]

Infra = Callable[..., tuple[int, str, str]]


def zipped(source: str) -> bytes:
    """The package of a function: one module, app.py."""
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("app.py", source)
    return archive.getvalue()


class Aws:
    """Clients of the emulator."""

    def __init__(self, server: DynamoServer) -> None:
        self.endpoint = server.endpoint
        self._server = server
        self._clients: dict[str, Any] = {}

    def __getitem__(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._server.client_of(service)
        return self._clients[service]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture(scope="session")
def aws(dynamo_server: DynamoServer) -> Iterator[Aws]:
    aws = Aws(dynamo_server)
    yield aws
    aws.close()


@pytest.fixture
def infra(oncegate: Run, aws: Aws) -> Infra:
    """Run `oncegate infra …` or `oncegate doctor …` against the emulator."""

    def call(*arguments: str) -> tuple[int, str, str]:
        return oncegate(*arguments, "--region", REGION, "--endpoint", aws.endpoint)

    return call
