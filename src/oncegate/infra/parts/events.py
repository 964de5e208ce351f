"""Read and write EventBridge buses and rules, and wait for the event source of a partner."""

import json
from typing import Any, Final

from oncegate.aws.cloud import Cloud, Missing
from oncegate.errors import AwsError
from oncegate.infra.parts.base import as_list, as_mapping
from oncegate.infra.platform import FoundPart, Part, PartKind


def _read_source(cloud: Cloud, part: Part) -> FoundPart | None:
    answer = cloud.find("events", "describe_event_source", Name=part.name)
    if answer is None or answer.get("State") == "DELETED":
        return None
    return FoundPart(answer["Arn"], {}, {}, note=str(answer.get("State", "")).lower())


def _await_source(cloud: Cloud, part: Part) -> None:
    cloud.wait_until(lambda: _read_source(cloud, part) is not None, f"the partner event source {part.name}")


# The partner creates the source. AWS deletes it when the partner deletes its side.
SOURCE: Final = PartKind[Cloud](
    "partner event source",
    _read_source,
    _await_source,
    lambda _cloud, _part, _found: None,
    shared=True,
    awaited=True,
)

# ── buses ─────────────────────────────────────────────────────────────────────────────────────────────────


def read_bus(cloud: Cloud, part: Part) -> FoundPart | None:
    answer = cloud.find("events", "describe_event_bus", Name=part.name)
    if answer is None or "Arn" not in answer:
        return None
    return FoundPart(answer["Arn"], _tags(cloud, answer["Arn"]), {})


def _create_bus(cloud: Cloud, part: Part) -> None:
    """Create the bus. If the properties name a partner event source, EventBridge also connects the source with the
    bus."""
    cloud.call("events", "create_event_bus", **part.properties, Tags=as_list(part.tags))


def _delete_bus(cloud: Cloud, part: Part, _found: FoundPart) -> None:
    cloud.call("events", "delete_event_bus", Name=part.name)


BUS: Final = PartKind[Cloud](
    "AWS::Events::EventBus",
    read_bus,
    _create_bus,
    lambda _cloud, _part, _found: None,
    _delete_bus,
    fixed=("Name", "EventSourceName"),
    shared=True,
)

# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────


def read_rule(cloud: Cloud, part: Part) -> FoundPart | None:
    bus = part.properties["EventBusName"]
    answer = cloud.find("events", "describe_rule", Name=part.name, EventBusName=bus)
    if answer is None:
        return None
    targets = list(cloud.list_all("events", "list_targets_by_rule", "Targets", Rule=part.name, EventBusName=bus))
    properties = {
        "Name": part.name,
        "EventBusName": bus,
        "Description": answer.get("Description", ""),
        "State": answer["State"],
        "EventPattern": json.loads(answer.get("EventPattern") or "null"),
        "Targets": sorted(targets, key=lambda target: str(target["Id"])),
    }
    return FoundPart(answer["Arn"], _rule_tags(cloud, part, answer), properties)


def _rule_tags(cloud: Cloud, part: Part, answer: dict[str, Any]) -> dict[str, str]:
    """Return the tags of a rule. Emulators of AWS do not find the tags of a rule on a partner bus. In this case the
    description of the rule shows whether Oncegate created the rule."""
    try:
        return _tags(cloud, answer["Arn"])
    except Missing:
        return part.tags if answer.get("Description") == part.properties["Description"] else {}


def _create_rule(cloud: Cloud, part: Part) -> None:
    _put_rule(cloud, part, Tags=as_list(part.tags))


def _change_rule(cloud: Cloud, part: Part, found: FoundPart) -> None:
    wanted = {target["Id"] for target in part.properties["Targets"]}
    _remove_targets(cloud, part, [target["Id"] for target in found.properties["Targets"] if target["Id"] not in wanted])
    _put_rule(cloud, part)


def _put_rule(cloud: Cloud, part: Part, **tags: Any) -> None:
    wanted = part.properties
    bus = {"EventBusName": wanted["EventBusName"]}
    basics = {name: wanted[name] for name in ("Name", "Description", "State")}
    pattern = json.dumps(wanted["EventPattern"])
    cloud.call("events", "put_rule", **basics, EventPattern=pattern, **bus, **tags)
    answer = cloud.call("events", "put_targets", Rule=part.name, Targets=wanted["Targets"], **bus)
    for failed in answer.get("FailedEntries", []):
        raise AwsError(
            f"EventBridge refused the target of rule {part.name} ({failed['ErrorMessage']}); run the command again"
        )


def _delete_rule(cloud: Cloud, part: Part, found: FoundPart) -> None:
    _remove_targets(cloud, part, [target["Id"] for target in found.properties["Targets"]])
    cloud.call("events", "delete_rule", Name=part.name, EventBusName=part.properties["EventBusName"])


def _remove_targets(cloud: Cloud, part: Part, ids: list[str]) -> None:
    if ids:
        cloud.call("events", "remove_targets", Rule=part.name, EventBusName=part.properties["EventBusName"], Ids=ids)


def _tags(cloud: Cloud, arn: str) -> dict[str, str]:
    return as_mapping(cloud.call("events", "list_tags_for_resource", ResourceARN=arn).get("Tags", []))


RULE: Final = PartKind[Cloud](
    "AWS::Events::Rule", read_rule, _create_rule, _change_rule, _delete_rule, fixed=("Name", "EventBusName")
)
