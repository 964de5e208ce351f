"""Compare the wanted parts with AWS, plan the steps, and execute them."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from oncegate.aws.cloud import Cloud, Denied
from oncegate.errors import AwsError
from oncegate.infra.design import Design, Placement
from oncegate.infra.parts import KINDS, FoundPart, Part
from oncegate.infra.wanted import DEFAULT_BUS, Function, Wanted
from oncegate.stores.dynamodb.table import check

Action: TypeAlias = Literal["create", "change", "keep", "delete", "leave"]


class Step(Struct, frozen=True):
    """An action on a part, and the reason."""

    action: Action
    part: Part
    found: FoundPart | None = None
    why: str = ""


def plan(cloud: Cloud, parts: Iterable[Part]) -> list[Step]:
    """Return the steps that create or change the parts.

    Raises AwsError if a resource with the name of a part exists and Oncegate did not create it."""
    return [_step(part, KINDS[part.kind].read(cloud, part)) for part in parts]


def _step(part: Part, found: FoundPart | None) -> Step:
    if found is None:
        return Step("create", part)
    kind = KINDS[part.kind]
    if not found.made_for(part.deployment):
        if kind.shared:
            return Step("keep", part, found, "not created by Oncegate, only used")
        raise AwsError(
            f"the {part.kind} {part.about or part.name} exists, but was not made by oncegate infra for"
            f" {part.deployment}; choose another --name, or delete it first"
        )
    if part.kind == "table":
        check(f"the DynamoDB table {part.name}", dict(found.properties))
    changes = [name for name in part.properties if name not in kind.fixed and not _is_as_wanted(name, part, found)]
    return Step("change", part, found, ", ".join(changes)) if changes else Step("keep", part, found)


def _is_as_wanted(name: str, part: Part, found: FoundPart) -> bool:
    current, wanted = found.properties.get(name), part.properties[name]
    return _contains(current, wanted) if name in KINDS[part.kind].open else bool(current == wanted)


def _contains(found: Any, wanted: Any) -> bool:
    """Return whether `found` contains all wanted values. `found` may contain further values."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_contains(found.get(name), value) for name, value in wanted.items())
    return bool(found == wanted)


def carry_out(cloud: Cloud, step: Step) -> None:
    kind = KINDS[step.part.kind]
    if step.action == "create":
        kind.create(cloud, step.part)
    elif step.action == "change" and step.found is not None:
        kind.change(cloud, step.part, step.found)
    elif step.action == "delete" and step.found is not None and kind.delete is not None:
        kind.delete(cloud, step.part, step.found)


# ── existing parts ────────────────────────────────────────────────────────────────────────────────────────


def existing_parts(cloud: Cloud, parts: Iterable[Part]) -> Iterator[tuple[Part, FoundPart]]:
    """Yield the parts that exist, each with its state in AWS. Parts that Oncegate did not create are included, except
    for a bus."""
    for part in parts:
        found = KINDS[part.kind].read(cloud, part)
        if found is not None and (found.made_for(part.deployment) or not KINDS[part.kind].shared):
            yield part, found


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
    steps = plan_removal(pair for part in removable for pair in _existing_if_readable(cloud, part))
    created = [step for step in steps if step.action == "delete"]
    return created if prune else [Step("leave", step.part, step.found, _remaining_effect(step)) for step in created]


def _existing_if_readable(cloud: Cloud, part: Part) -> list[tuple[Part, FoundPart]]:
    """Return the part if it exists. If the caller has no permission to read the part, the part counts as absent: a
    caller that creates no function needs no permission for functions. Raises Denied if the part is a rule."""
    try:
        return list(existing_parts(cloud, [part]))
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


def plan_removal(existing: Iterable[tuple[Part, FoundPart]]) -> list[Step]:
    """Return the steps that delete the parts in reverse order. A part that Oncegate did not create gets a step that
    leaves the part.

    If AWS deletes a part together with another part, the part has no step."""
    deletable = [(part, found) for part, found in existing if KINDS[part.kind].delete is not None]
    return [
        Step("delete", part, found, found.note)
        if found.made_for(part.deployment)
        else Step("leave", part, found, f"not made by oncegate infra for {part.deployment}")
        for part, found in reversed(deletable)
    ]
