"""What AWS says when it will not, and no emulator does, is one sentence each; and what takes long is waited for."""

import json
import subprocess
import sys
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from oncegate.aws import cloud as clouds
from oncegate.aws.cloud import Cloud, Denied, Missing, Unanswered
from oncegate.errors import AwsError
from oncegate.infra.parts import Part
from oncegate.infra.parts.functions import FUNCTION
from tests.stores.dynamo_server import CREDENTIALS, REGION, reply


class Answering(Cloud):
    """AWS as it may answer: what is listed, one after the other, and then an empty success."""

    def __init__(self, *answers: AWSResponse) -> None:
        self.waited: list[str] = []
        super().__init__(REGION, None, self.waited.append)
        self.answers = list(answers)
        self.asked: list[str] = []

    def _client(self, service: str) -> Any:
        found = super()._client(service)
        found.meta.events.register_first("before-send", self._send, unique_id="answering")
        return found

    def _send(self, request: Any, **_rest: Any) -> AWSResponse:
        self.asked.append(request.url)
        return self.answers.pop(0) if self.answers else reply(200, "")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (
            reply(400, "AccessDeniedException", "User: me is not authorized"),
            Denied,
            "AWS in eu-central-1 does not allow dynamodb:DescribeTable (User: me is not authorized); ask for",
        ),
        (
            reply(400, "ResourceNotFoundException", "no table"),
            Missing,
            "has no such thing (dynamodb:DescribeTable: no table)",
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
def test_one_sentence_each(answer: AWSResponse, kind: type[AwsError], said: str) -> None:
    """A refusal says what was asked for, and what to do."""
    cloud = Answering(answer)
    with pytest.raises(kind) as raised:
        cloud.ask("dynamodb", "describe_table", TableName="crm")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    cloud.close()


def test_a_region_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be a region is refused, and none at all is asked for."""
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/none")
    with pytest.raises(ValueError, match="AWS in eu central cannot be asked"):
        Cloud("eu central").identity()
    with pytest.raises(Unanswered, match="needs a region; write --region eu-central-1 or set AWS_REGION"):
        Cloud().identity()


def test_pages() -> None:
    """What is listed on several pages is read to the end."""
    body: list[dict[str, Any]] = [{"EventBuses": [{"Name": "a"}], "NextToken": "2"}, {"EventBuses": [{"Name": "b"}]}]
    cloud = Answering(*(reply(200, "", **one) for one in body))
    assert [bus["Name"] for bus in cloud.each("events", "list_event_buses", "EventBuses")] == ["a", "b"]
    cloud.close()


def test_a_new_role_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lambda does not know a new role at once: the function is asked for again, and that is told."""
    monkeypatch.setattr("oncegate.infra.parts.functions.time.sleep", lambda _seconds: None)
    unknown = reply(
        400, "InvalidParameterValueException", "The role defined for the function cannot be assumed by Lambda."
    )
    cloud = Answering(unknown, unknown)
    properties = {
        "FunctionName": "crm",
        "Runtime": "python3.13",
        "Handler": "app.handler",
        "Role": "arn:aws:iam::1:role/r",
    }
    FUNCTION.create(cloud, Part("function", "crm", "", properties, "crm", code=b"zip"))
    assert cloud.waited == ["the new role to be known to Lambda"] * 2
    assert len([url for url in cloud.asked if url.endswith("/functions")]) == 3
    cloud.close()


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never becomes ready is said so."""
    monkeypatch.setattr(clouds, "_PATIENCE", 0.01)
    monkeypatch.setattr(clouds, "_LOOK_EVERY", 0.001)
    with pytest.raises(AwsError, match="the table crm was not ready after 0 s; try again later"):
        Cloud(REGION).until(lambda: False, "the table crm")


def test_without_the_extra() -> None:
    """No command but those that ask AWS loads botocore; without it they say what to install, and the doctor judges the
    rest."""
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
