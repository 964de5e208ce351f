"""The plan: what there is against what is wanted, part by part, and carrying it out."""

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
    """What is to be done with a part, and why."""

    action: Action
    part: Part
    found: FoundPart | None = None
    why: str = ""


def plan(cloud: Cloud, parts: Iterable[Part]) -> list[Step]:
    """How to get what is wanted. AwsError if a name is taken by something that Oncegate has not made."""
    return [_step(part, KINDS[part.kind].read(cloud, part)) for part in parts]


def _step(part: Part, found: FoundPart | None) -> Step:
    if found is None:
        return Step("create", part)
    kind = KINDS[part.kind]
    if not found.made_for(part.deployment):
        if kind.shared:
            return Step("keep", part, found, "it is not Oncegate's, and only used")
        raise AwsError(
            f"there is a {part.kind} {part.about or part.name} that was not made by oncegate infra for"
            f" {part.deployment}; choose another --name, or delete it first"
        )
    if part.kind == "table":
        check(f"the DynamoDB table {part.name}", dict(found.properties))
    changes = [name for name in part.properties if name not in kind.fixed and not _is_as_wanted(name, part, found)]
    return Step("change", part, found, ", ".join(changes)) if changes else Step("keep", part, found)


def _is_as_wanted(name: str, part: Part, found: FoundPart) -> bool:
    there, wanted = found.properties.get(name), part.properties[name]
    return _has(there, wanted) if name in KINDS[part.kind].open else bool(there == wanted)


def _has(found: Any, wanted: Any) -> bool:
    """Whether all that is wanted was found; there may be more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_has(found.get(name), value) for name, value in wanted.items())
    return bool(found == wanted)


def carry_out(cloud: Cloud, step: Step) -> None:
    kind = KINDS[step.part.kind]
    if step.action == "create":
        kind.create(cloud, step.part)
    elif step.action == "change" and step.found is not None:
        kind.change(cloud, step.part, step.found)
    elif step.action == "delete" and step.found is not None and kind.delete is not None:
        kind.delete(cloud, step.part, step.found)


# ── what there is ─────────────────────────────────────────────────────────────────────────────────────────


def existing_parts(cloud: Cloud, parts: Iterable[Part]) -> Iterator[tuple[Part, FoundPart]]:
    """Those of these parts that exist, whoever made them; but a bus only if we did."""
    for part in parts:
        found = KINDS[part.kind].read(cloud, part)
        if found is not None and (found.made_for(part.deployment) or not KINDS[part.kind].shared):
            yield part, found


def possible_parts(cloud: Cloud, name: str, place: Placement) -> list[Part]:
    """All parts that a deployment can have: its rule may be on any bus."""
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
    """What an earlier run has made of the deployment and this design does not want: to be left, or deleted, last made
    first. The table is no part of it: what it remembers is of use to any shape."""
    wanted = {_identity(part) for part in design.parts()}
    parts = [part for part in possible_parts(cloud, design.wanted.name, design.place) if _identity(part) not in wanted]
    removable = [part for part in parts if KINDS[part.kind].delete is not None and part.kind != "table"]
    steps = plan_removal(pair for part in removable for pair in _readable(cloud, part))
    ours = [step for step in steps if step.action == "delete"]
    return ours if prune else [Step("leave", step.part, step.found, _still(step)) for step in ours]


def _readable(cloud: Cloud, part: Part) -> list[tuple[Part, FoundPart]]:
    """Who makes no function needs no right to look for one; without rights to the rules nothing could be told."""
    try:
        return list(existing_parts(cloud, [part]))
    except Denied:
        if part.kind == "rule":
            raise
        return []


def _still(step: Step) -> str:
    """What a part that is left still does."""
    if step.part.kind == "rule" and step.found is not None:
        targets = step.found.properties["Targets"]
        sent = " and ".join(target["Arn"].rpartition(":")[2] for target in targets) or "nothing"
        return f"on the bus {step.part.properties['EventBusName']}, it sends to {sent}"
    if step.part.kind == "mapping":
        return f"it feeds {step.part.about}"
    return step.why


def plan_removal(standing: Iterable[tuple[Part, FoundPart]]) -> list[Step]:
    """What to delete, last made first, and what to leave because Oncegate has not made it. What goes with the thing it
    belongs to is not listed."""
    listed = [(part, found) for part, found in standing if KINDS[part.kind].delete is not None]
    return [_removed(part, found) for part, found in reversed(listed)]


def _removed(part: Part, found: FoundPart) -> Step:
    if found.made_for(part.deployment):
        return Step("delete", part, found, found.note)
    return Step("leave", part, found, f"not made by oncegate infra for {part.deployment}")
