"""Plan the parts of a deployment in AWS, and find the parts of an earlier run."""

from typing import Final

from oncegate.aws.cloud import Cloud, Denied
from oncegate.errors import AwsError
from oncegate.infra.design import Design, Placement
from oncegate.infra.parts import KINDS
from oncegate.infra.platform import FoundPart, Part, Platform, Step
from oncegate.infra.wanted import DEFAULT_BUS, Function, Wanted

_COMMAND: Final = "oncegate infra"


def aws_platform(cloud: Cloud) -> Platform[Cloud]:
    return Platform(cloud, KINDS, AwsError, _COMMAND)


def possible_parts(cloud: Cloud, name: str, place: Placement) -> list[Part]:
    """Return all parts that a deployment can have. There is a rule for each bus, because the rule of a deployment may
    be on any bus."""
    function = Function(handler="any.handler")
    parts: dict[tuple[str, str, str], Part] = {}
    for bus in buses(cloud):
        for queue in (True, False):
            wanted = Wanted(name=name, bus=bus, queue=queue, function=function, endpoint=cloud.endpoint)
            for part in Design(wanted, place).parts():
                parts.setdefault(_identity(part), part)
    return list(parts.values())


def _identity(part: Part) -> tuple[str, str, str]:
    return part.kind, part.arn, part.name


def buses(cloud: Cloud) -> list[str]:
    names = [bus["Name"] for bus in cloud.list_all("events", "list_event_buses", "EventBuses")]
    return [DEFAULT_BUS, *(name for name in names if name != DEFAULT_BUS)]


def plan_leftovers(cloud: Cloud, design: Design, *, prune: bool) -> list[Step]:
    """Return the steps for parts that an earlier run created and that this design does not contain.

    With `prune`, the steps delete these parts in reverse order. Otherwise the steps leave the parts. The table never
    has a step, because every design can use the claims in the table."""
    wanted = {_identity(part) for part in design.parts()}
    parts = [part for part in possible_parts(cloud, design.wanted.name, design.place) if _identity(part) not in wanted]
    removable = [part for part in parts if KINDS[part.kind].delete is not None and part.kind != "table"]
    platform = aws_platform(cloud)
    steps = platform.plan_removal(pair for part in removable for pair in _existing_if_readable(platform, part))
    created = [step for step in steps if step.action == "delete"]
    return created if prune else [Step("leave", step.part, step.found, _remaining_effect(step)) for step in created]


def _existing_if_readable(platform: Platform[Cloud], part: Part) -> list[tuple[Part, FoundPart]]:
    """Return the part if it exists. If the caller has no permission to read the part, the part counts as absent: a
    caller that creates no function needs no permission for functions. Raises Denied if the part is a rule."""
    try:
        return list(platform.existing_parts([part]))
    except Denied:
        if part.kind == "rule":
            raise
        return []


def _remaining_effect(step: Step) -> str:
    """Describe what a part still does if it is not deleted."""
    if step.part.kind == "rule" and step.found is not None:
        targets = step.found.properties["Targets"]
        names = " and ".join(target["Arn"].rpartition(":")[2] for target in targets) or "nothing"
        return f"on the bus {step.part.properties['EventBusName']}, it sends to {names}"
    if step.part.kind == "mapping":
        return f"it invokes {step.part.about}"
    return step.why
