"""DynamoDB for tests: the emulator `ministack`, whose conditional writes are atomic."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from oncegate.stores.dynamodb import DynamoStore
from tests.stores.servers import ServerProcess, free_port, missing, until

REGION = "eu-central-1"
# The emulator accepts any credentials. These keep the credentials of the machine from being sent.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}


def executable() -> str:
    """The emulator in the folder of this Python, or in PATH."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("ministack", path=beside) or shutil.which("ministack")
    return found or missing("the emulator of DynamoDB", "pip install ministack")


class DynamoServer(ServerProcess):
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._tables = 0
        listening = [f"GATEWAY_PORT={self.port}", "BIND_HOST=127.0.0.1"]
        super().__init__(["/usr/bin/env", *listening, executable()], folder)
        try:
            until(self.answers, f"the emulator in {folder}")
        except BaseException:
            super().stop()
            raise
        self.client: Any = self.client_of("dynamodb")
        self.client.list_tables()  # the emulator loads a service at its first request, which may take a second

    def client_of(self, service: str) -> Any:
        """A client of another service of the emulator."""
        return botocore.session.Session().create_client(
            service,
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",  # noqa: S106  # the emulator accepts any
        )

    def answers(self) -> bool:
        assert self.running, (self.folder / "output.log").read_text()[-2_000:]
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=2)) as connection:
            try:
                connection.request("GET", "/_ministack/health")
                return connection.getresponse().status == HTTPStatus.OK
            except (OSError, HTTPException):
                return False

    def url(self, table: str, port: int | None = None, **options: str) -> str:
        given = "".join(f"&{name}={value}" for name, value in options.items())
        return f"dynamodb://{table}?region={REGION}&endpoint=http://127.0.0.1:{port or self.port}{given}"

    def new_table(self) -> str:
        """The name of a table that does not exist yet."""
        self._tables += 1
        return f"Claims{self._tables}"

    def stop(self) -> None:
        self.client.close()
        super().stop()


@contextmanager
def emulated(folder: Path) -> Iterator[DynamoServer]:
    """An emulator, with credentials for it in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        server = DynamoServer(folder)
        try:
            yield server
        finally:
            server.stop()


class _EmulatorProcess(ForkServerProcess):
    def run(self) -> None:
        os.environ.update(CREDENTIALS)
        super().run()


class EmulatorForks(ForkServerContext):
    """`tests.FORKS` for stores in the emulator: a process of a fork server has the environment from before the tests,
    so it sets the credentials."""

    Process = _EmulatorProcess


class Wire:
    """Records the names of the requests that a store sends. `before` may return a response instead of DynamoDB."""

    def __init__(self, store: DynamoStore) -> None:
        self.sent: list[str] = []
        self.capacity = 0.0
        self.before: Callable[[str], AWSResponse | None] = lambda _action: None
        events = store._client.botocore_client().meta.events
        events.register("provide-client-params.dynamodb", self._request_capacity)
        events.register("before-send.dynamodb", self._send)
        events.register("after-call.dynamodb", self._count_capacity)

    def _send(self, request: AWSPreparedRequest, **_rest: Any) -> AWSResponse | None:
        target = request.headers["X-Amz-Target"]
        action = (target.decode() if isinstance(target, bytes) else target).partition(".")[2]
        self.sent.append(action)
        return self.before(action)

    def _request_capacity(self, params: dict[str, Any], model: Any, **_rest: Any) -> dict[str, Any]:
        return params | ({"ReturnConsumedCapacity": "TOTAL"} if model.name in _COUNTED else {})

    def _count_capacity(self, parsed: dict[str, Any], **_rest: Any) -> None:
        self.capacity += parsed.get("ConsumedCapacity", {}).get("CapacityUnits", 0.0)


_COUNTED = ("PutItem", "GetItem", "DeleteItem", "Query", "Scan")


def reply(status: int, code: str, message: str = "", **more: Any) -> AWSResponse:
    """A response of AWS that the emulator never gives."""
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message, **more}).encode()
    return AWSResponse("http://dynamodb.invalid", status, {"x-amzn-errortype": code}, _Raw(body))


class _Raw:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body
