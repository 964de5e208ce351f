"""Reading: what waits and what is dead, by way of the sparse index; everything else for people, by a scan."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from oncegate.claims import DEAD, Address
from oncegate.errors import StoreUnavailable
from oncegate.stores.base import Entry
from oncegate.stores.dynamodb.client import DynamoClient
from oncegate.stores.dynamodb.items import (
    DEAD_SHELF,
    WAITING_SHELF,
    Item,
    Where,
    past_namespace,
    place_of,
    record_of,
    waiting_key,
    waiting_place,
    where_of,
)
from oncegate.stores.dynamodb.table import INDEX

_BATCH: Final = 100
_FEW: Final = 20
_START: Final = b"\0"
_END: Final = b"\xff"  # no text begins with it
_SHELVED: Final = "shelf = :shelf AND place BETWEEN :first AND :last"


def items_of(calls: DynamoClient, ids: Sequence[str]) -> dict[str, Item]:
    """Items by their ids, as they are now; those that are not there are left out."""
    found: dict[str, Item] = {}
    for start in range(0, len(ids), _BATCH):
        _fetch(calls, [{"id": {"S": id_}} for id_ in ids[start : start + _BATCH]], found)
    return found


def _fetch(calls: DynamoClient, keys: list[dict[str, Any]], found: dict[str, Item]) -> None:
    """Have a batch answered. DynamoDB may answer a part of it and leave the rest to be asked again."""
    pauses = calls.pauses()
    while True:
        answer = calls.ask_of_any("batch_get_item", RequestItems={calls.table: {"Keys": keys, "ConsistentRead": True}})
        answered = answer["Responses"].get(calls.table, [])
        found.update((item["id"]["S"], item) for item in answered)
        keys = answer.get("UnprocessedKeys", {}).get(calls.table, {}).get("Keys", [])
        if not keys:
            return
        pause = next(pauses, None)
        if pause is None:
            raise StoreUnavailable(f"{calls.place} did not answer for all keys in time; try again later")
        time.sleep(0 if answered else pause)


def waiting(calls: DynamoClient, namespace: str, now: int) -> Iterator[Where]:
    """What a dispatcher may find free, first what was let go first."""
    first, last = place_of(namespace), waiting_place(namespace, now + 1)
    for page in _shelved(calls, WAITING_SHELF, first, last, _FEW):
        yield from ((namespace, waiting_key(namespace, item["place"]["B"])) for item in page)


def dead(calls: DynamoClient, namespace: str | None, after: Address | None, limit: int) -> Iterator[Entry]:
    """Dead letters in the order of their addresses."""
    first = place_of(namespace) if namespace is not None else _START
    last = past_namespace(namespace) if namespace is not None else _END
    if after is not None:
        first = max(first, place_of(after.namespace, after.key))
    if first > last:
        return
    for page in _shelved(calls, DEAD_SHELF, first, last, min(limit + 1, _BATCH)):
        found = items_of(calls, [item["id"]["S"] for item in page])
        entries = [_entry(found[item["id"]["S"]]) for item in page if item["id"]["S"] in found]
        yield from (entry for entry in entries if entry.record.state == DEAD)


def _shelved(calls: DynamoClient, shelf: str, first: bytes, last: bytes, size: int) -> Iterator[list[Item]]:
    """The keys on a stretch of a shelf, in pages of a size. The index lags behind the table by a moment."""
    values = {":shelf": {"S": shelf}, ":first": {"B": first}, ":last": {"B": last}}
    asked = {"IndexName": INDEX, "KeyConditionExpression": _SHELVED, "ExpressionAttributeValues": values}
    return _pages(calls, "query", asked | {"Limit": size})


def every(calls: DynamoClient, namespace: str | None, key: bytes | None) -> Iterator[Entry]:
    """All records, or those of a namespace or a key, in no order: reads the whole table."""
    conditions, values = ["attribute_exists(#status)"], {}
    names = {"#status": "status"}
    for name, value in (("namespace", namespace), ("key", None if key is None else key.hex())):
        if value is not None:
            conditions.append(f"#{name} = :{name}")
            names[f"#{name}"] = name
            values[f":{name}"] = {"S": value}
    asked: dict[str, Any] = {"FilterExpression": " AND ".join(conditions), "ExpressionAttributeNames": names}
    if values:
        asked["ExpressionAttributeValues"] = values
    for page in _pages(calls, "scan", asked | {"ConsistentRead": True}):
        yield from map(_entry, page)


def _pages(calls: DynamoClient, action: str, asked: dict[str, Any]) -> Iterator[list[Item]]:
    start: dict[str, Any] = {}
    while True:
        answer = calls.ask(action, **asked, **start)
        yield answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return
        start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


def _entry(item: Item) -> Entry:
    return Entry(*where_of(item), record_of(item))
