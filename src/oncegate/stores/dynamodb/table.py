"""Create the table, and check the structure of an existing table."""

import time
from contextlib import suppress
from typing import Any, Final

from oncegate.errors import StoreError, StoreRefused, StoreUnavailable
from oncegate.stores.dynamodb.client import DynamoClient, TableInUse, TableMissing, not_dynamodb

INDEX: Final = "unfinished"
TIME_TO_LIVE: Final = {"AttributeName": "expiresAt", "Enabled": True}
_KEYS: Final = {"id": "HASH"}
_INDEX_KEYS: Final = {"shelf": "HASH", "place": "RANGE"}
_TYPES: Final = {"id": "S", "shelf": "S", "place": "B"}
_WAIT_LIMIT: Final = 120.0  # seconds
_POLL_INTERVAL: Final = 0.5


def definition() -> dict[str, Any]:
    """Return the properties of the table that are the same for CreateTable and for CloudFormation."""
    index = {
        "IndexName": INDEX,
        "KeySchema": _schema(_INDEX_KEYS),
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    return {
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": type_} for name, type_ in _TYPES.items()],
        "KeySchema": _schema(_KEYS),
        "GlobalSecondaryIndexes": [index],
    }


def prepare(client: DynamoClient, *, create: bool, time_to_live: bool) -> None:
    """Check the structure of the table. If the table does not exist and `create` is true, create it first.

    With `time_to_live`, DynamoDB deletes the expired items of a table that is created here."""
    try:
        table = _describe(client)
    except TableMissing:
        if not create:
            raise
        _create(client)
        table = _wait_until_active(client)
        if time_to_live:
            _enable_time_to_live(client)
    check(client.place, table if table["TableStatus"] != "CREATING" else _wait_until_active(client))


def _create(client: DynamoClient) -> None:
    with suppress(TableInUse):  # another process is creating the table
        client.call_table("create_table", **definition())


def _enable_time_to_live(client: DynamoClient) -> None:
    try:
        client.call_table("update_time_to_live", TimeToLiveSpecification=TIME_TO_LIVE)
    except StoreError as error:
        if "already enabled" not in str(error):  # another process may have enabled it
            raise


def _describe(client: DynamoClient) -> dict[str, Any]:
    table: dict[str, Any] | None = client.call_table("describe_table").get("Table")
    if table is None:  # botocore accepts any body of a response with status 200
        raise not_dynamodb(client.place)
    return table


def _wait_until_active(client: DynamoClient) -> dict[str, Any]:
    """Wait until the table is created, and return its description.

    Right after CreateTable, DynamoDB may report that the table does not exist."""
    deadline = time.monotonic() + _WAIT_LIMIT
    while True:
        with suppress(TableMissing):
            table = _describe(client)
            if table["TableStatus"] != "CREATING":
                return table
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"{client.place} was still being created after {_WAIT_LIMIT:.0f} s; retry later")
        time.sleep(_POLL_INTERVAL)


def check(place: str, table: dict[str, Any]) -> None:
    """Raise StoreRefused if the table with this description does not have the structure of an Oncegate table."""
    keys = _keys_of(table)
    if keys != _KEYS:
        raise StoreRefused(
            f"{place} is not an Oncegate table: its key is {', '.join(keys)}, not id; name another table"
        )
    types = {attribute["AttributeName"]: attribute["AttributeType"] for attribute in table["AttributeDefinitions"]}
    indexes = {index["IndexName"]: _keys_of(index) for index in table.get("GlobalSecondaryIndexes", [])}
    if indexes.get(INDEX) != _INDEX_KEYS or not _TYPES.items() <= types.items():
        raise StoreRefused(
            f"{place} lacks the index {INDEX} of shelf (S) and place (B), or its id is not a string (S);"
            " create the table as described in docs/stores/dynamodb.md"
        )


def _schema(keys: dict[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()]


def _keys_of(described: dict[str, Any]) -> dict[str, str]:
    return {key["AttributeName"]: key["KeyType"] for key in described["KeySchema"]}
