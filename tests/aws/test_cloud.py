"""Errors of AWS that an emulator never returns, and waiting for slow operations."""

import json
import subprocess
import sys
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from oncegate import backoff
from oncegate.aws.cloud import Cloud, Denied, Missing, Unanswered
from oncegate.errors import AwsError
from oncegate.infra.parts import Part
from oncegate.infra.parts.functions import FUNCTION
from tests.stores.dynamo_server import CREDENTIALS, REGION, reply


class ScriptedCloud(Cloud):
    """Returns the given responses one after the other, and then empty successes."""

    def __init__(self, *answers: AWSResponse) -> None:
        self.waited: list[str] = []
        super().__init__(REGION, None, self.waited.append)
        self.answers = list(answers)
        self.urls: list[str] = []

    def _client(self, service: str) -> Any:
        found = super()._client(service)
        found.meta.events.register_first("before-send", self._send, unique_id="scripted")
        return found

    def _send(self, request: Any, **_rest: Any) -> AWSResponse:
        self.urls.append(request.url)
        return self.answers.pop(0) if self.answers else reply(200, "")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            reply(400, "AccessDeniedException", "User: me is not authorized"),
            Denied,
            "AWS in eu-central-1 does not allow dynamodb:DescribeTable (User: me is not authorized); ask for",
        ),
        (
            reply(400, "ResourceNotFoundException", "no table"),
            Missing,
            "no such resource in AWS in eu-central-1 (dynamodb:DescribeTable: no table)",
        ),
        (reply(400, "UnrecognizedClientException", "x"), Unanswered, "does not accept these AWS credentials"),
        (reply(400, "ExpiredTokenException", "x"), Unanswered, "does not accept these AWS credentials (ExpiredToken"),
        (
            reply(400, "ValidationException", "two at once"),
            AwsError,
            "refused dynamodb:DescribeTable (ValidationException: two",
        ),
    ],
)
def test_one_sentence_each(answer: AWSResponse, kind: type[AwsError], message: str) -> None:
    """The message of an error names the request and says what to do."""
    cloud = ScriptedCloud(answer)
    with pytest.raises(kind) as raised:
        cloud.call("dynamodb", "describe_table", TableName="crm")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    cloud.close()


def test_invalid_and_missing_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid region is refused, and the message for a missing region says how to set it."""
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/none")
    with pytest.raises(ValueError, match="cannot create a client for AWS in eu central"):
        Cloud("eu central").identity()
    with pytest.raises(Unanswered, match="needs a region; write --region eu-central-1 or set AWS_REGION"):
        Cloud().identity()


def test_pages() -> None:
    """A list of several pages is read to the end."""
    body: list[dict[str, Any]] = [{"EventBuses": [{"Name": "a"}], "NextToken": "2"}, {"EventBuses": [{"Name": "b"}]}]
    cloud = ScriptedCloud(*(reply(200, "", **one) for one in body))
    assert [bus["Name"] for bus in cloud.list_all("events", "list_event_buses", "EventBuses")] == ["a", "b"]
    cloud.close()


def test_a_new_role_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lambda does not know a new role at once: creating the function is retried, and `on_wait` is called."""
    monkeypatch.setattr("oncegate.infra.parts.functions.time.sleep", lambda _seconds: None)
    unknown = reply(
        400, "InvalidParameterValueException", "The role defined for the function cannot be assumed by Lambda."
    )
    cloud = ScriptedCloud(unknown, unknown)
    properties = {
        "FunctionName": "crm",
        "Runtime": "python3.13",
        "Handler": "app.handler",
        "Role": "arn:aws:iam::1:role/r",
    }
    FUNCTION.create(cloud, Part("function", "crm", "", properties, "crm", code=b"zip"))
    assert cloud.waited == ["Lambda to know the new role"] * 2
    assert len([url for url in cloud.urls if url.endswith("/functions")]) == 3
    cloud.close()


def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a resource that never becomes ready fails after the limit."""
    monkeypatch.setattr(backoff, "_WAIT_LIMIT", 0.01)
    monkeypatch.setattr(backoff, "_WAIT_INTERVAL", 0.001)
    with pytest.raises(AwsError, match="the table crm was not ready after 0 s; run the command again later"):
        Cloud(REGION).wait_until(lambda: False, "the table crm")


def test_without_the_extra() -> None:
    """Only commands that call AWS import botocore. Without it, they say what to install; the doctor checks the rest."""
    code = (
        "import sys; from oncegate.cli.main import run; assert 'botocore' not in sys.modules;"
        "sys.modules['botocore'] = None;"
        "print(run(['infra', 'show', '--name', 'crm']), run(['doctor', '--queue', 'crm', '--output', 'json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    install = "needs an optional dependency: pip install 'oncegate[aws]'"
    assert f"oncegate infra (botocore is not installed) {install}" in done.stderr
    assert done.stdout.endswith("\n1 10\n")
    (finding,) = json.loads(done.stdout.removesuffix("1 10\n"))["findings"]
    assert finding["found"] == f"reading from AWS {install}"
