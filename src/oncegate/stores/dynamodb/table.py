"""The table: made when asked for, and refused when it is another's."""

import time
from contextlib import suppress
from typing import Any, Final

from oncegate.errors import StoreError, StoreRefused, StoreUnavailable
from oncegate.stores.dynamodb.client import DynamoClient, TableInUse, TableMissing, unlike

INDEX: Final = "unfinished"
SWEEPING: Final = {"AttributeName": "expiresAt", "Enabled": True}
_KEYS: Final = {"id": "HASH"}
_INDEX_KEYS: Final = {"shelf": "HASH", "place": "RANGE"}
_TYPES: Final = {"id": "S", "shelf": "S", "place": "B"}
_PATIENCE: Final = 120.0
_LOOK_EVERY: Final = 0.5


def definition() -> dict[str, Any]:
    """What the table is made of, in the words that a request for it and a template have in common."""
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


def prepare(calls: DynamoClient, *, create: bool, sweeping: bool) -> None:
    """Make sure that the table is there and is ours. `sweeping` has DynamoDB delete what has expired."""
    try:
        table = _described(calls)
    except TableMissing:
        if not create:
            raise
        _create(calls)
        table = _active(calls)
        if sweeping:
            _sweep(calls)
    check(calls.place, table if table["TableStatus"] != "CREATING" else _active(calls))


def _create(calls: DynamoClient) -> None:
    with suppress(TableInUse):  # another process is making it
        calls.ask("create_table", **definition())


def _sweep(calls: DynamoClient) -> None:
    try:
        calls.ask("update_time_to_live", TimeToLiveSpecification=SWEEPING)
    except StoreError as error:
        if "already enabled" not in str(error):  # by another process, which is making the table too
            raise


def _described(calls: DynamoClient) -> dict[str, Any]:
    table: dict[str, Any] | None = calls.ask("describe_table").get("Table")
    if table is None:  # botocore takes any body of a 200 for an answer
        raise unlike(calls.place)
    return table


def _active(calls: DynamoClient) -> dict[str, Any]:
    """The table, once it is made. Just after it was asked for, DynamoDB may not know of it yet."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        with suppress(TableMissing):
            table = _described(calls)
            if table["TableStatus"] != "CREATING":
                return table
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"{calls.place} was still being created after {_PATIENCE:.0f} s; try again later")
        time.sleep(_LOOK_EVERY)


def check(place: str, table: dict[str, Any]) -> None:
    """Refuse a table that is described so unless it is one of ours."""
    keys = _keys_of(table)
    if keys != _KEYS:
        raise StoreRefused(f"{place} is no table of Oncegate: its key is {', '.join(keys)} and not id; name another")
    types = {one["AttributeName"]: one["AttributeType"] for one in table["AttributeDefinitions"]}
    indexes = {one["IndexName"]: _keys_of(one) for one in table.get("GlobalSecondaryIndexes", [])}
    if indexes.get(INDEX) != _INDEX_KEYS or not _TYPES.items() <= types.items():
        raise StoreRefused(
            f"{place} lacks the index {INDEX} of shelf (S) and place (B), or its id is no string (S);"
            " create the table as docs/stores/dynamodb.md says"
        )


def _schema(keys: dict[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()]


def _keys_of(described: dict[str, Any]) -> dict[str, str]:
    return {key["AttributeName"]: key["KeyType"] for key in described["KeySchema"]}
