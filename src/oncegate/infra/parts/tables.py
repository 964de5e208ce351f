"""The table of claims, as the DynamoDB store has it."""

from contextlib import closing
from typing import Final

from oncegate.aws.cloud import Cloud
from oncegate.infra.parts.base import Found, Kind, Part, as_list, as_mapping
from oncegate.stores.dynamodb.calls import Calls
from oncegate.stores.dynamodb.settings import Settings
from oncegate.stores.dynamodb.table import definition, prepare


def read(cloud: Cloud, part: Part) -> Found | None:
    answer = cloud.find("dynamodb", "describe_table", TableName=part.name)
    if answer is None:
        return None
    table = answer["Table"]
    sweep = cloud.ask("dynamodb", "describe_time_to_live", TableName=part.name)["TimeToLiveDescription"]
    tags = cloud.ask("dynamodb", "list_tags_of_resource", ResourceArn=table["TableArn"])["Tags"]
    properties = {
        **{name: table[name] for name in _SHAPE if name in table},
        "BillingMode": table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED"),
        "TimeToLiveSpecification": {
            "AttributeName": sweep.get("AttributeName"),
            "Enabled": sweep["TimeToLiveStatus"] in ("ENABLED", "ENABLING"),
        },
    }
    count = table.get("ItemCount", 0)
    return Found(table["TableArn"], as_mapping(tags), properties, note=f"{count} records" if count else "")


def _create(cloud: Cloud, part: Part) -> None:
    cloud.waiting(f"the table {part.name}")
    with closing(Calls(Settings(part.name, cloud.region, cloud.endpoint))) as calls:
        prepare(calls, create=True, sweeping=True, Tags=as_list(part.tags))


def _change(cloud: Cloud, part: Part, found: Found) -> None:
    if found.properties["BillingMode"] != part.properties["BillingMode"]:
        cloud.ask("dynamodb", "update_table", TableName=part.name, BillingMode=part.properties["BillingMode"])
        cloud.until(lambda: _status(cloud, part) == "ACTIVE", f"the table {part.name}")
    wanted, sweep = part.properties["TimeToLiveSpecification"], found.properties["TimeToLiveSpecification"]
    if sweep == wanted:
        return
    if sweep["Enabled"]:  # DynamoDB sweeps by one attribute: the other has to go first
        off = {"AttributeName": sweep["AttributeName"], "Enabled": False}
        cloud.ask("dynamodb", "update_time_to_live", TableName=part.name, TimeToLiveSpecification=off)
    cloud.ask("dynamodb", "update_time_to_live", TableName=part.name, TimeToLiveSpecification=wanted)


def _delete(cloud: Cloud, part: Part, _found: Found) -> None:
    cloud.ask("dynamodb", "delete_table", TableName=part.name)
    cloud.until(
        lambda: cloud.find("dynamodb", "describe_table", TableName=part.name) is None,
        f"the deletion of table {part.name}",
    )


def _status(cloud: Cloud, part: Part) -> str:
    return str(cloud.ask("dynamodb", "describe_table", TableName=part.name)["Table"]["TableStatus"])


_SHAPE: Final = tuple(name for name in definition() if name != "BillingMode")
TABLE: Final = Kind("AWS::DynamoDB::Table", read, _create, _change, _delete, fixed=("TableName", *_SHAPE))
