"""An emulator of AWS, and the commands `oncegate infra` and `oncegate doctor` that use it."""

import sys
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, oncegate
from tests.stores.dynamo_server import CREDENTIALS, REGION, DynamoServer

__all__ = ["oncegate"]

Infra = Callable[..., tuple[int, str, str]]
PATTERN = '{"source": ["com.example.crm"]}'
PARTNER = "aws.partner/genesys.com/cloud/0e5c3f2a/crm"
HANDLER = """
import os

from oncegate import Gate

def open_case(event):
    return {"case": event.entity}

handler = Gate(os.environ["ONCEGATE_STORE"]).lambda_handler(open_case)
"""


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


@pytest.fixture
def package(tmp_path: Path) -> str:
    path = tmp_path / "function.zip"
    path.write_bytes(zipped(HANDLER))
    return str(path)


def as_function(package: str) -> list[str]:
    variables = [f"--env={name}={value}" for name, value in CREDENTIALS.items()]
    return ["--lambda-zip", package, "--lambda-runtime", f"python3.{sys.version_info.minor}", *variables]


def attributes(aws: Aws, queue: str) -> tuple[str, dict[str, str]]:
    url = aws["sqs"].get_queue_url(QueueName=queue)["QueueUrl"]
    return url, aws["sqs"].get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
