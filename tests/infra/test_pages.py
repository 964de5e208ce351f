"""The pages on the AWS parts and on the doctor are true."""

import json
import re
import shlex
from pathlib import Path

import pytest

from oncegate.aws.clients import api_action
from oncegate.aws.cloud import Cloud
from oncegate.cli import exit_codes
from oncegate.infra.rights import TABLE_ACTIONS
from tests.doctor import commands
from tests.infra.conftest import Aws, Infra, zipped

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "aws.md").read_text()
DOCTOR = (ROOT / "docs" / "doctor.md").read_text()
TABLE_PAGE = (ROOT / "docs" / "stores" / "dynamodb.md").read_text()
CALL = re.compile(r'\(\s*"(sqs|events|lambda|iam|dynamodb)",\s*"(\w+)"')
# What goes with other requests: tags with what they are on, and the role with the function.
IMPLIED = {
    "dynamodb:TagResource",
    "events:TagResource",
    "iam:TagRole",
    "iam:PassRole",
    "lambda:TagResource",
    "sqs:TagQueue",
}


def test_the_commands_can_be_typed() -> None:
    """Every command that is shown exists, with its options."""
    shown = re.findall(r"^ {4}(oncegate .+?)(?: > \S+)?$", PAGE + DOCTOR, re.MULTILINE)
    shown += re.findall(r"`(oncegate [^`]+)`", PAGE + DOCTOR)
    assert len(shown) > 12
    for line in shown:
        commands.check(line)


def test_typed_from_top_to_bottom(infra: Infra, aws: Aws, tmp_path: Path) -> None:
    """All that the page says to make, one after the other and before it is taken away again, is a deployment of which
    the doctor has nothing to say, and in which the rule on the partner's bus sends to the queue."""
    (tmp_path / "function.zip").write_bytes(zipped("def handler(event, context): ..."))
    source = "aws.partner/genesys.com/cloud/0e5c3f2a/page"
    typed = re.findall(r"^ {4}oncegate (infra up .+)$", PAGE, re.MULTILINE)
    assert len(typed) > 5
    for line in typed:
        words = shlex.split(line.replace("$SOURCE", source).replace("--name crm", "--name page"))
        assert infra(*words, *(["--yes"] if "--prune" in words else []))[0] == exit_codes.OK, line
    code, out, _ = infra("doctor", "--name", "page", "--output", "json")
    assert (code, json.loads(out)["findings"]) == (exit_codes.OK, [])
    (target,) = aws["events"].list_targets_by_rule(Rule="page-events", EventBusName=source)["Targets"]
    assert target["Arn"].endswith(":page-events")
    assert infra("infra", "show", "--name", "page")[1].count("function") == 0


def test_the_rights_are_those_that_are_asked_for() -> None:
    """The page on the parts lists every action that is asked for, and no other."""
    section = PAGE.partition("## Rights")[2].partition("##")[0]
    listed = re.findall(r"\b(?:dynamodb|events|iam|lambda|sqs):[A-Z]\w+", section)
    # Those that are asked again until the new role is known.
    asked = {"lambda:CreateFunction", "lambda:CreateEventSourceMapping", "lambda:PutFunctionEventInvokeConfig"}
    for path in (ROOT / "src" / "oncegate" / "infra").rglob("*.py"):
        asked |= {f"{service}:{api_action(action)}" for service, action in CALL.findall(path.read_text())}
    assert set(listed) == asked | IMPLIED


def test_the_rights_of_a_doctor(infra: Infra, aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on the doctor lists every action that it asks for, and no other."""
    asked = set()
    ask = Cloud.call

    def noted(cloud: Cloud, service: str, action: str, **parameters: object) -> dict[str, object]:
        asked.add(f"{service}:{api_action(action)}")
        return ask(cloud, service, action, **parameters)

    infra("infra", "up", "--name", "rights", "--bus", "rights")
    aws["lambda"].create_function(
        FunctionName="rights-function",
        Runtime="python3.13",
        Role="arn:aws:iam::000000000000:role/rights",
        Handler="app.handler",
        Code={"ZipFile": zipped("")},
    )
    monkeypatch.setattr(Cloud, "call", noted)
    assert infra("doctor", "--name", "rights")[0] == exit_codes.OK
    listed = re.findall(r"`((?:dynamodb|events|lambda|sqs):[A-Z]\w+)`", DOCTOR)
    assert set(listed) == asked - {"sts:GetCallerIdentity"}


def test_the_rights_of_a_consumer() -> None:
    """What a consumer may do to the table is what the page on the store lists."""
    assert re.findall(r'"(dynamodb:\w+)"', TABLE_PAGE) == list(TABLE_ACTIONS)
