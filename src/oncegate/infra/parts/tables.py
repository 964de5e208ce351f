"""Read, create, change and delete the DynamoDB table of claims."""

from typing import Any, Final

from oncegate.aws.cloud import Cloud
from oncegate.infra.parts.base import FoundPart, Part, PartKind, as_list, as_mapping
from oncegate.stores.dynamodb.table import definition


def read(cloud: Cloud, part: Part) -> FoundPart | None:
    answer = cloud.find("dynamodb", "describe_table", TableName=part.name)
    if answer is None:
        return None
    table = answer["Table"]
    ttl = cloud.call("dynamodb", "describe_time_to_live", TableName=part.name)["TimeToLiveDescription"]
    tags = cloud.call("dynamodb", "list_tags_of_resource", ResourceArn=table["TableArn"])["Tags"]
    properties = {
        **{name: table[name] for name in _STRUCTURE if name in table},
        "BillingMode": table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED"),
        "TimeToLiveSpecification": {
            "AttributeName": ttl.get("AttributeName"),
            "Enabled": ttl["TimeToLiveStatus"] in ("ENABLED", "ENABLING"),
        },
    }
    count = table.get("ItemCount", 0)
    return FoundPart(table["TableArn"], as_mapping(tags), properties, note=f"{count} records" if count else "")


def _create(cloud: Cloud, part: Part) -> None:
    wanted = {name: value for name, value in part.properties.items() if name != "TimeToLiveSpecification"}
    cloud.call("dynamodb", "create_table", **wanted, Tags=as_list(part.tags))
    cloud.wait_until(lambda: _status(cloud, part) == "ACTIVE", f"the table {part.name}")
    _update_ttl(cloud, part, part.properties["TimeToLiveSpecification"])


def _change(cloud: Cloud, part: Part, found: FoundPart) -> None:
    if found.properties["BillingMode"] != part.properties["BillingMode"]:
        cloud.call("dynamodb", "update_table", TableName=part.name, BillingMode=part.properties["BillingMode"])
        cloud.wait_until(lambda: _status(cloud, part) == "ACTIVE", f"the table {part.name}")
    wanted, current = part.properties["TimeToLiveSpecification"], found.properties["TimeToLiveSpecification"]
    if current == wanted:
        return
    if current["Enabled"]:  # a table can have only one TTL attribute: disable the current attribute first
        _update_ttl(cloud, part, {"AttributeName": current["AttributeName"], "Enabled": False})
    _update_ttl(cloud, part, wanted)


def _update_ttl(cloud: Cloud, part: Part, specification: dict[str, Any]) -> None:
    cloud.call("dynamodb", "update_time_to_live", TableName=part.name, TimeToLiveSpecification=specification)


def _delete(cloud: Cloud, part: Part, _found: FoundPart) -> None:
    cloud.call("dynamodb", "delete_table", TableName=part.name)
    cloud.wait_until(
        lambda: cloud.find("dynamodb", "describe_table", TableName=part.name) is None,
        f"the deletion of table {part.name}",
    )


def _status(cloud: Cloud, part: Part) -> str:
    """Return the status of the table; an empty text if the table does not exist. Right after CreateTable, DynamoDB may
    report that the table does not exist."""
    answer = cloud.find("dynamodb", "describe_table", TableName=part.name)
    return "" if answer is None else str(answer["Table"]["TableStatus"])


_STRUCTURE: Final = tuple(name for name in definition() if name != "BillingMode")
TABLE: Final = PartKind("AWS::DynamoDB::Table", read, _create, _change, _delete, fixed=("TableName", *_STRUCTURE))
