"""The output of `oncegate infra template`: valid CloudFormation templates, and the policy of a consumer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oncegate.cli import exit_codes
from oncegate.infra.design import Design, Placement
from oncegate.infra.rights import TABLE_ACTIONS
from oncegate.infra.template import template
from oncegate.infra.wanted import Function, Wanted
from tests.cli.conftest import Run
from tests.infra.conftest import Aws, Infra
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


def test_a_stack_needs_no_changes(oncegate: Run, infra: Infra, aws: Aws) -> None:
    """`infra up` has nothing to change in a stack of the template, except the TTL of the table."""
    body = json.dumps(printed(oncegate))
    stacks = aws["cloudformation"]
    stacks.create_stack(StackName="crm", TemplateBody=body)

    def is_created() -> bool:
        return str(stacks.describe_stacks(StackName="crm")["Stacks"][0]["StackStatus"]) == "CREATE_COMPLETE"

    until(is_created, "the stack to be created")
    _, out, _ = infra("infra", "up", "--name", "crm", "--dry-run", "--output", "json")
    # The emulator ignores the TTL of a table in a stack.
    different = {part["name"]: part["why"] for part in json.loads(out)["parts"] if part["action"] != "keep"}
    assert different == {"crm-claims": "TimeToLiveSpecification"}


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
