"""The pages on the AWS parts and on the doctor are correct."""

import json
import re
import shlex
from pathlib import Path

import pytest

from oncegate.aws.clients import api_action
from oncegate.aws.cloud import Cloud
from oncegate.cli import exit_codes
from oncegate.infra.rights import TABLE_ACTIONS
from tests.cli.conftest import Run
from tests.doctor import commands
from tests.infra.conftest import Aws, Infra, zipped

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "aws.md").read_text()
DOCTOR = (ROOT / "docs" / "doctor.md").read_text()
TABLE_PAGE = (ROOT / "docs" / "stores" / "dynamodb.md").read_text()
CALL = re.compile(r'\(\s*"(sqs|events|lambda|iam|dynamodb)",\s*"(\w+)"')
# Permissions that AWS checks as part of other requests: tags of new resources, and the role of a function.
IMPLIED = {
    "dynamodb:TagResource",
    "events:TagResource",
    "iam:TagRole",
    "iam:PassRole",
    "lambda:TagResource",
    "sqs:TagQueue",
}


def test_the_commands_exist() -> None:
    """Every command on the pages exists, with its options."""
    shown = re.findall(r"^ {4}(oncegate .+?)(?: > \S+)?$", PAGE + DOCTOR, re.MULTILINE)
    shown += re.findall(r"`(oncegate [^`]+)`", PAGE + DOCTOR)
    assert len(shown) > 12
    for line in shown:
        commands.check(line)


def test_the_commands_in_order(infra: Infra, aws: Aws, tmp_path: Path) -> None:
    """The `infra up` commands of the page, run in order, create a deployment without findings of the doctor. Its rule
    on the partner bus sends to the queue."""
    (tmp_path / "function.zip").write_bytes(zipped("def handler(event, context): ..."))
    source = "aws.partner/genesys.com/cloud/0e5c3f2a/page"
    commands_up = re.findall(r"^ {4}oncegate (infra up .+)$", PAGE, re.MULTILINE)
    assert len(commands_up) > 5
    for line in commands_up:
        words = shlex.split(line.replace("$SOURCE", source).replace("--name crm", "--name page"))
        assert infra(*words, *(["--yes"] if "--prune" in words else []))[0] == exit_codes.OK, line
    code, out, _ = infra("doctor", "--name", "page", "--output", "json")
    assert (code, json.loads(out)["findings"]) == (exit_codes.OK, [])
    (target,) = aws["events"].list_targets_by_rule(Rule="page-events", EventBusName=source)["Targets"]
    assert target["Arn"].endswith(":page-events")
    assert infra("infra", "show", "--name", "page")[1].count("function") == 0


def test_the_permissions_of_the_page() -> None:
    """The page on the parts lists exactly the actions that `oncegate infra` uses."""
    section = PAGE.partition("## Rights")[2].partition("##")[0]
    listed = re.findall(r"\b(?:dynamodb|events|iam|lambda|sqs):[A-Z]\w+", section)
    # Requests that are retried until the new role is known have another form in the source.
    used = {"lambda:CreateFunction", "lambda:CreateEventSourceMapping", "lambda:PutFunctionEventInvokeConfig"}
    for path in (ROOT / "src" / "oncegate" / "infra").rglob("*.py"):
        used |= {f"{service}:{api_action(action)}" for service, action in CALL.findall(path.read_text())}
    assert set(listed) == used | IMPLIED


def test_the_permissions_of_the_doctor(infra: Infra, aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on the doctor lists exactly the actions that the doctor uses."""
    used = set()
    call = Cloud.call

    def recording(cloud: Cloud, service: str, action: str, **parameters: object) -> dict[str, object]:
        used.add(f"{service}:{api_action(action)}")
        return call(cloud, service, action, **parameters)

    infra("infra", "up", "--name", "rights", "--bus", "rights")
    aws["lambda"].create_function(
        FunctionName="rights-function",
        Runtime="python3.13",
        Role="arn:aws:iam::000000000000:role/rights",
        Handler="app.handler",
        Code={"ZipFile": zipped("")},
    )
    monkeypatch.setattr(Cloud, "call", recording)
    assert infra("doctor", "--name", "rights")[0] == exit_codes.OK
    listed = re.findall(r"`((?:dynamodb|events|lambda|sqs):[A-Z]\w+)`", DOCTOR)
    assert set(listed) == used - {"sts:GetCallerIdentity"}


def test_the_permissions_of_a_consumer() -> None:
    """The page on the store lists the permissions of a consumer for the table."""
    assert re.findall(r'"(dynamodb:\w+)"', TABLE_PAGE) == list(TABLE_ACTIONS)


def test_the_permissions_of_a_publisher(oncegate: Run) -> None:
    """The page lists the actions and the resource of each destination that its commands name, as they print them."""
    section = PAGE.partition("## Permissions to publish")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `(.+)` \| (.+) \| `(.+)` \|$", section, re.MULTILINE)
    rows = {place: (actions, arn) for place, actions, arn in shown}
    lines = re.findall(r"^ {4}oncegate (.+)$", section, re.MULTILINE)
    assert len(lines) == len(rows) == 3
    for line in lines:
        words = shlex.split(line)
        code, out, _ = oncegate(*words)
        (statement,) = (one for one in json.loads(out)["Statement"] if one["Sid"].startswith("PublishTo"))
        actions, arn = rows[words[-1]]
        assert (code, re.findall(r"`(.+?)`", actions), [arn]) == (0, statement["Action"], statement["Resource"])
