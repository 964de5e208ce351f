"""The parts of a deployment."""

import json

import pytest

from oncegate.infra.design import Design, Placement
from oncegate.infra.rights import sid
from oncegate.infra.wanted import Function, Wanted

PLACE = Placement("aws", "eu-central-1", "123456789012")
FUNCTION = Function(handler="app.handler")


@pytest.mark.parametrize("function", [None, FUNCTION], ids=["worker", "function"])
@pytest.mark.parametrize("queue", [True, False], ids=["queue", "direct"])
def test_the_order_of_parts(queue: bool, function: Function | None) -> None:
    """A part refers only to queues, functions and roles that are created before it."""
    design = Design(Wanted(name="crm", queue=queue or function is None, function=function), PLACE)
    parts = design.parts()
    kinds = ("queue", "function", "role")
    for index, part in enumerate(parts):
        later = [other.arn for other in parts[index + 1 :] if other.kind in kinds]
        text = json.dumps(part.properties)
        references = [arn for arn in later if f'"{arn}"' in text]
        assert references == [], part.kind


def test_names_are_unique_in_a_region() -> None:
    """A role is global, so its name contains the region."""
    other = Placement("aws", "us-east-1", "123456789012")
    wanted = Wanted(name="crm", function=FUNCTION)
    assert Design(wanted, PLACE).role_arn != Design(wanted, other).role_arn


def test_the_store_url() -> None:
    """The URL of the store names the table and the region, and the endpoint if there is one."""
    assert Design(Wanted(name="crm"), PLACE).store_url == "dynamodb://crm-claims?region=eu-central-1"
    local = Design(Wanted(name="crm", endpoint="http://127.0.0.1:4566"), PLACE)
    assert local.store_url == "dynamodb://crm-claims?region=eu-central-1&endpoint=http://127.0.0.1:4566"


def test_statement_ids() -> None:
    """Rules of the same name on different buses have different statement ids."""
    default, calls = Design(Wanted(name="crm"), PLACE), Design(Wanted(name="crm", bus="calls"), PLACE)
    assert sid(default.rule_arn) != sid(calls.rule_arn)
    assert sid(default.rule_arn) == sid(Design(Wanted(name="crm"), Placement("aws", "us-east-1", "1")).rule_arn)
