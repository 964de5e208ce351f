"""The output of `oncegate infra template`: valid CloudFormation templates, and the policy of a consumer."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from oncegate.cli import exit_codes
from oncegate.infra.design import Design, Placement
from oncegate.infra.rights import TABLE_ACTIONS
from oncegate.infra.template import template
from oncegate.infra.wanted import Function, Wanted
from tests.cli.conftest import Run
from tests.infra.conftest import HANDLER, Aws, Infra, attributes, zipped
from tests.stores.dynamo_server import REGION
from tests.stores.servers import until

VARIANTS = {
    "queue": (),
    "function": ("--lambda-handler", "app.handler"),
    "both": ("--queue", "--lambda-handler", "app.handler", "--partner-source", "aws.partner/genesys.com/cloud/a/b"),
    "bus": ("--bus", "calls"),
}


def printed(oncegate: Run, *arguments: str) -> dict[str, Any]:
    code, out, err = oncegate("infra", "template", "--name", "crm", *arguments)
    silent = not {"--bus", "--partner-source", "--policy"} & set(arguments)
    assert (code, err.startswith("Warning: the rule is on the default bus, where no Genesys")) == (
        exit_codes.OK,
        silent,
    )
    body: dict[str, Any] = json.loads(out)
    return body


def test_templates_are_valid(oncegate: Run, tmp_path: Path) -> None:
    """cfn-lint accepts every variant, and finds a property that does not exist."""
    bodies = {name: printed(oncegate, *arguments) for name, arguments in VARIANTS.items()}
    places = ("--publish", "sqs://cases", "--publish", "eventbridge://default")
    bodies["publishing"] = printed(oncegate, *VARIANTS["function"], *places)
    bodies["wrong"] = printed(oncegate)
    bodies["wrong"]["Resources"]["EventsQueue"]["Properties"]["Visibility"] = 180
    for name, body in bodies.items():
        (tmp_path / name).write_text(json.dumps(body))
    command = [str(Path(sys.executable).parent / "cfn-lint"), "--format", "json", "--template", *bodies]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    found = [(each["Filename"], each["Location"]["Path"][-1]) for each in json.loads(done.stdout)]
    assert found == [("wrong", "Visibility")]


@pytest.mark.parametrize("function", [None, Function(handler="app.handler")], ids=["queue", "function"])
def test_the_template_has_the_parts_of_up(function: Function | None) -> None:
    """Each part is a resource, and no ARN is a literal."""
    wanted = Wanted(name="crm", queue=function is None, function=function)
    parts = Design(wanted, Placement("aws", "eu-central-1", "123456789012")).parts()
    body = template(wanted)
    assert len(body["Resources"]) == len(parts)
    assert '"arn:aws:' not in json.dumps(body)


class Stack:
    """A stack of a template in the emulator."""

    def __init__(self, aws: Aws, name: str, body: dict[str, Any]) -> None:
        self._stacks = aws["cloudformation"]
        values = {"CodeBucket": "code", "CodeKey": "function.zip"}
        listed = [{"ParameterKey": key, "ParameterValue": values[key]} for key in body.get("Parameters", {})]
        self._given = {"StackName": name, "TemplateBody": json.dumps(body), "Parameters": listed}
        self._given["Capabilities"] = ["CAPABILITY_NAMED_IAM"]

    def create(self) -> None:
        self._stacks.create_stack(**self._given)
        self._ends("CREATE_COMPLETE")

    def update(self) -> list[str]:
        """Update the stack with the same template; returns the resources that were replaced or changed."""
        before = self._resources()
        try:
            self._stacks.update_stack(**self._given)
        except ClientError as error:  # AWS answers so; the emulator carries out an update without a change
            if "No updates" in str(error):
                return []
            raise
        self._ends("UPDATE_COMPLETE")
        return [name for name, physical in self._resources().items() if before.get(name) != physical]

    def delete(self) -> None:
        self._stacks.delete_stack(StackName=self._given["StackName"])

        def is_gone() -> bool:
            try:
                found = self._stacks.describe_stacks(StackName=self._given["StackName"])["Stacks"]
            except ClientError:
                return True
            return not found or found[0]["StackStatus"] == "DELETE_COMPLETE"

        until(is_gone, "the stack to be deleted")

    def _ends(self, status: str) -> None:
        def has_ended() -> bool:
            found = str(self._stacks.describe_stacks(StackName=self._given["StackName"])["Stacks"][0]["StackStatus"])
            assert "ROLLBACK" not in found
            assert "FAILED" not in found
            return found == status

        until(has_ended, f"the stack to reach {status}")

    def _resources(self) -> dict[str, str]:
        listed = self._stacks.list_stack_resources(StackName=self._given["StackName"])["StackResourceSummaries"]
        return {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in listed}


@pytest.fixture
def stack(oncegate: Run, aws: Aws) -> Callable[..., Stack]:
    """Make a stack with the template of these options. The package of a function is in a bucket."""
    with suppress(ClientError):
        aws["s3"].create_bucket(Bucket="code", CreateBucketConfiguration={"LocationConstraint": REGION})
    aws["s3"].put_object(Bucket="code", Key="function.zip", Body=zipped(HANDLER))

    def made(name: str, *arguments: str) -> Stack:
        code, out, _ = oncegate("infra", "template", "--name", name, *arguments)
        assert code == exit_codes.OK
        return Stack(aws, name, json.loads(out))

    return made


# The kinds of parts that `infra up` would create beside those of a stack. CloudFormation gives a permission an id of
# its own, and the emulator ignores the retries of a function.
STACKS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "queue": ((), set()),
    "function": (VARIANTS["function"], {"permission", "retries"}),
    # The emulator cannot tag a rule on a partner bus, so this bus is of another kind.
    "both": (("--queue", *VARIANTS["function"], "--bus", "both"), set()),
    "bus": (VARIANTS["bus"], set()),
}


@pytest.mark.parametrize("variant", STACKS)
def test_a_stack_is_what_up_creates(
    stack: Callable[..., Stack], infra: Infra, aws: Aws, variant: str, package: str
) -> None:
    """A stack of each variant can be created, updated without a change, and deleted. `infra up` has nothing to change
    in it. The table and the queues outlive the stack, because they may hold events; all else is deleted with it."""
    name, (options, beside) = f"stack-{variant}", STACKS[variant]
    created = stack(name, *options)
    created.create()
    if "--lambda-handler" in options:
        options = (*options, "--lambda-zip", package)
    _, out, _ = infra("infra", "up", "--name", name, *options, "--dry-run", "--output", "json")
    parts = json.loads(out)["parts"]
    # The emulator ignores these two properties of a table in a stack. cfn-lint knows them.
    changes = {f"{name}-claims": "TimeToLiveSpecification, PointInTimeRecoverySpecification"}
    if "--lambda-handler" in options:  # `infra up` adds the address of the emulator to the URL of the store
        changes[f"{name}-function"] = "Environment"
    assert {part["name"]: part["why"] for part in parts if part["action"] == "change"} == changes
    assert {part["part"] for part in parts if part["action"] == "create"} == beside
    assert created.update() == []
    created.delete()
    left = {row["part"] for row in json.loads(infra("infra", "show", "--name", name, "--output", "json")[1])["parts"]}
    assert left == {"table", "queue"}
    infra("infra", "down", "--name", name, "--yes")


def test_stored_events_are_protected(oncegate: Run, infra: Infra, aws: Aws) -> None:
    """The queues are encrypted and the table can be restored, in a template and by `infra up`, which also turns this
    on again."""
    resources = printed(oncegate)["Resources"]
    assert all(resources[queue]["Properties"]["SqsManagedSseEnabled"] is True for queue in ("EventsQueue", "DeadQueue"))
    assert resources["Table"]["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert infra("infra", "up", "--name", "safe", "--bus", "safe")[0] == exit_codes.OK
    for queue in ("safe-events", "safe-dead"):
        url, found = attributes(aws, queue)
        assert found["SqsManagedSseEnabled"] == "true"
        aws["sqs"].set_queue_attributes(QueueUrl=url, Attributes={"SqsManagedSseEnabled": "false"})
    off = {"PointInTimeRecoveryEnabled": False}
    aws["dynamodb"].update_continuous_backups(TableName="safe-claims", PointInTimeRecoverySpecification=off)
    again = json.loads(infra("infra", "up", "--name", "safe", "--bus", "safe", "--output", "json")[1])["parts"]
    assert {part["name"]: part["why"] for part in again if part["action"] == "change"} == {
        "safe-claims": "PointInTimeRecoverySpecification",
        "safe-events": "SqsManagedSseEnabled",
        "safe-dead": "SqsManagedSseEnabled",
    }
    backups = aws["dynamodb"].describe_continuous_backups(TableName="safe-claims")["ContinuousBackupsDescription"]
    assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


@pytest.mark.parametrize("variant", VARIANTS)
def test_queue_policies_allow_one_rule(oncegate: Run, variant: str) -> None:
    """The policy of each queue allows one action, to EventBridge, for the one rule of the deployment."""
    resources = printed(oncegate, *VARIANTS[variant])["Resources"]
    policies = [each for each in resources.values() if each["Type"] == "AWS::SQS::QueuePolicy"]
    assert policies
    for policy in policies:
        (statement,) = policy["Properties"]["PolicyDocument"]["Statement"]
        assert statement["Principal"] == {"Service": "events.amazonaws.com"}
        assert statement["Action"] == "sqs:SendMessage"
        (queue,) = policy["Properties"]["Queues"]
        assert statement["Resource"] == {"Fn::GetAtt": [queue["Ref"], "Arn"]}
        (condition,) = statement["Condition"].items()
        assert condition[0] == "ArnEquals"
        assert list(condition[1]) == ["aws:SourceArn"]
        assert "*" not in json.dumps(condition[1])


def test_the_policy_of_a_consumer(oncegate: Run) -> None:
    """A worker may use the table and the queue; a function may also log and send its failures. No wildcards."""
    worker = {one["Sid"]: one for one in printed(oncegate, "--policy")["Statement"]}
    assert list(worker) == ["Claims", "Events"]
    assert worker["Claims"]["Action"] == list(TABLE_ACTIONS)
    assert worker["Claims"]["Resource"] == [
        "arn:aws:dynamodb:*:*:table/crm-claims",
        "arn:aws:dynamodb:*:*:table/crm-claims/index/unfinished",
    ]
    function = {one["Sid"]: one for one in printed(oncegate, "--policy", *VARIANTS["function"])["Statement"]}
    assert list(function) == ["Claims", "Log", "Failures"]
    assert function["Failures"]["Resource"] == ["arn:aws:sqs:*:*:crm-dead"]
    for statement in [*worker.values(), *function.values()]:
        assert not any(action.endswith("*") for action in statement["Action"])
        assert "*" not in statement["Resource"]


def test_the_policy_of_a_publisher(oncegate: Run) -> None:
    """The policy allows the publication to the named queues and buses only. The region and the account are those of the
    URL, if the URL names them."""
    places: tuple[str, ...] = ("sqs://cases?region=eu-central-1", "sqs://calls.fifo?account=123456789012")
    places += ("eventbridge://default", "eventbridge://aws.partner/example.com/a?region=eu-west-1&source=x", places[0])
    options = [f"--publish={place}" for place in places]
    body = printed(oncegate, "--policy", "--no-table", "--no-queue", "--no-rule", *options)
    statements = {one["Sid"]: (one["Effect"], one["Action"], one["Resource"]) for one in body["Statement"]}
    assert statements == {
        "PublishToQueues": (
            "Allow",
            ["sqs:GetQueueUrl", "sqs:SendMessage"],
            ["arn:aws:sqs:eu-central-1:*:cases", "arn:aws:sqs:*:123456789012:calls.fifo"],
        ),
        "PublishToBuses": (
            "Allow",
            ["events:PutEvents"],
            [
                "arn:aws:events:*:*:event-bus/default",
                "arn:aws:events:eu-west-1:*:event-bus/aws.partner/example.com/a",
            ],
        ),
    }
    sids = [one["Sid"] for one in printed(oncegate, "--policy", options[0])["Statement"]]
    assert sids == ["Claims", "Events", "PublishToQueues"]


def test_the_role_of_a_publishing_function(oncegate: Run) -> None:
    """In a template, the role of the function may publish in the region and account of the stack."""
    body = printed(oncegate, *VARIANTS["function"], "--publish", "sqs://cases")
    (policy,) = body["Resources"]["Role"]["Properties"]["Policies"]
    (statement,) = (one for one in policy["PolicyDocument"]["Statement"] if one["Sid"] == "PublishToQueues")
    assert statement["Resource"] == [{"Fn::Sub": "arn:${AWS::Partition}:sqs:${AWS::Region}:${AWS::AccountId}:cases"}]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--publish", "sqs://cases"), "--publish needs a function or --policy"),
        (("--policy", "--publish", "kafka://cases"), "--publish: unknown scheme 'kafka'"),
    ],
)
def test_publish_is_checked(oncegate: Run, options: tuple[str, ...], problem: str) -> None:
    """A destination without a policy that contains it, and a URL that is no destination, are refused."""
    code, out, err = oncegate("infra", "template", "--name", "crm", *options)
    assert (code, out, problem in err) == (exit_codes.USAGE, "", True)
