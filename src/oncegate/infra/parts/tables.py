"""Read, create, change and delete the DynamoDB table of claims."""

import time
from typing import Any, Final

from oncegate.aws.cloud import Cloud
from oncegate.errors import AwsError
from oncegate.infra.parts.base import as_list, as_mapping
from oncegate.infra.platform import FoundPart, Part, PartKind
from oncegate.stores.dynamodb.table import check, definition

_TTL: Final = "TimeToLiveSpecification"
_RECOVERY: Final = "PointInTimeRecoverySpecification"
_BACKUP_DELAY: Final = 60.0  # seconds


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
        _TTL: {
            "AttributeName": ttl.get("AttributeName"),
            "Enabled": ttl["TimeToLiveStatus"] in ("ENABLED", "ENABLING"),
        },
        _RECOVERY: {"PointInTimeRecoveryEnabled": _is_recoverable(cloud, part)},
    }
    count = table.get("ItemCount", 0)
    return FoundPart(table["TableArn"], as_mapping(tags), properties, note=f"{count} records" if count else "")


def _create(cloud: Cloud, part: Part) -> None:
    wanted = {name: value for name, value in part.properties.items() if name not in (_TTL, _RECOVERY)}
    cloud.call("dynamodb", "create_table", **wanted, Tags=as_list(part.tags))
    cloud.wait_until(lambda: _status(cloud, part) == "ACTIVE", f"the table {part.name}")
    _update_ttl(cloud, part, part.properties[_TTL])
    _update_recovery(cloud, part)


def _change(cloud: Cloud, part: Part, found: FoundPart) -> None:
    if found.properties["BillingMode"] != part.properties["BillingMode"]:
        cloud.call("dynamodb", "update_table", TableName=part.name, BillingMode=part.properties["BillingMode"])
        cloud.wait_until(lambda: _status(cloud, part) == "ACTIVE", f"the table {part.name}")
    if found.properties[_RECOVERY] != part.properties[_RECOVERY]:
        _update_recovery(cloud, part)
    wanted, current = part.properties[_TTL], found.properties[_TTL]
    if current == wanted:
        return
    if current["Enabled"]:  # a table can have only one TTL attribute: disable the current attribute first
        _update_ttl(cloud, part, {"AttributeName": current["AttributeName"], "Enabled": False})
    _update_ttl(cloud, part, wanted)


def _update_ttl(cloud: Cloud, part: Part, specification: dict[str, Any]) -> None:
    cloud.call("dynamodb", "update_time_to_live", TableName=part.name, TimeToLiveSpecification=specification)


def _is_recoverable(cloud: Cloud, part: Part) -> bool:
    answer = cloud.call("dynamodb", "describe_continuous_backups", TableName=part.name)
    found = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    return bool(found.get("PointInTimeRecoveryStatus") == "ENABLED")


def _update_recovery(cloud: Cloud, part: Part) -> None:
    """Set point-in-time recovery. DynamoDB refuses this for a short time after it has created the table."""
    recovery = {_RECOVERY: part.properties[_RECOVERY]}
    deadline = time.monotonic() + _BACKUP_DELAY
    while True:
        try:
            cloud.call("dynamodb", "update_continuous_backups", TableName=part.name, **recovery)
        except AwsError as error:
            if "ContinuousBackupsUnavailable" not in str(error) or time.monotonic() > deadline:
                raise
            cloud.on_wait("the backups of the table")
            time.sleep(1)
        else:
            return


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


def _check(part: Part, found: FoundPart) -> None:
    check(f"the DynamoDB table {part.name}", dict(found.properties))


_STRUCTURE: Final = tuple(name for name in definition() if name != "BillingMode")
TABLE: Final = PartKind[Cloud](
    "AWS::DynamoDB::Table", read, _create, _change, _delete, fixed=("TableName", *_STRUCTURE), check=_check
)
