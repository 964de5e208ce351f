"""Parts that an earlier `oncegate infra up` created and a later one does not want: reported, kept or pruned."""

import json
import re

import pytest

from oncegate.aws.cloud import Cloud, Denied
from oncegate.cli import exit_codes
from tests.infra.conftest import PARTNER, PATTERN, Aws, Infra, as_function, attributes
from tests.stores.dynamo_server import REGION


def rules_in(policy: str) -> set[str]:
    """The rules that a policy allows, by bus and name."""
    conditions = json.dumps([statement["Condition"] for statement in json.loads(policy)["Statement"]])
    return set(re.findall(r":rule/([^\"]+)", conditions))


def test_a_rule_on_another_bus_keeps_its_permissions(infra: Infra, aws: Aws, package: str) -> None:
    """A run without the partner source reports the parts on the partner bus. Their rule may still send to both queues,
    like the new rule, and both rules may invoke a function."""
    source = ("--partner-source", f"{PARTNER}-again")
    infra("infra", "up", "--name", "again", *source, "--pattern", PATTERN)
    code, out, err = infra("infra", "up", "--name", "again", "--pattern", PATTERN)
    assert (code, err) == (exit_codes.OK, "")
    assert f"left     rule        again-events  (on the bus {source[1]}, it sends to again-events)" in out
    assert "An earlier run has made 2 parts for again that this one does not ask for" in out
    assert "with --prune deletes what is left." in out
    for name in ("again-events", "again-dead"):
        assert rules_in(attributes(aws, name)[1]["Policy"]) == {f"{source[1]}/again-events", "again-events"}
    for more in ((), source):
        infra("infra", "up", "--name", "again", "--pattern", PATTERN, *as_function(package), *more)
    policy = aws["lambda"].get_policy(FunctionName="again-function")["Policy"]
    assert rules_in(policy) == {f"{source[1]}/again-events", "again-events"}


def test_pruning(infra: Infra, package: str) -> None:
    """A dry run reports the parts that the new design does not need. --prune with --yes deletes them; the table and the
    wanted parts stay."""
    infra("infra", "up", "--name", "prune", "--bus", "prune", "--queue", *as_function(package))
    command = ("infra", "up", "--name", "prune", "--no-table")
    code, out, _ = infra(*command, "--dry-run")
    assert (code, out.count("\nleave ")) == (exit_codes.OK, 5)
    assert infra(*command, "--prune")[0] == exit_codes.USAGE
    assert "prune-function" in infra("infra", "show", "--name", "prune")[1]
    code, out, _ = infra(*command, "--prune", "--yes")
    assert [line.split()[1:3] for line in out.splitlines() if line.startswith("deleted")] == [
        ["rule", "prune-events"],
        ["bus", "prune"],
        ["mapping", "prune-events"],
        ["function", "prune-function"],
        ["role", f"prune-function-{REGION}"],
    ]
    assert "\n3 parts made or changed, 5 deleted.\n" in out
    shown = json.loads(infra("infra", "show", "--name", "prune", "--output", "json")[1])["parts"]
    assert [part["part"] for part in shown] == ["table", "queue", "queue", "policy", "policy", "rule"]
    assert "left" not in infra(*command)[1]


def test_without_permissions_for_functions(infra: Infra, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that creates no function needs no permission to read functions."""
    call = Cloud.call

    def refusing(cloud: Cloud, service: str, action: str, **parameters: object) -> dict[str, object]:
        if service in ("lambda", "iam"):
            raise Denied(f"AWS does not allow {service}:{action}")
        return call(cloud, service, action, **parameters)

    monkeypatch.setattr(Cloud, "call", refusing)
    assert infra("infra", "up", "--name", "humble")[0] == exit_codes.OK
