"""Reading: what waits and what is dead, by way of the sparse index; everything else for people, by a scan."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from oncegate.claims import Address
from oncegate.errors import StoreUnavailable
from oncegate.stores.base import Entry
from oncegate.stores.dynamodb.calls import Calls
from oncegate.stores.dynamodb.items import (
    DEAD_SHELF,
    WAITING_SHELF,
    Item,
    past_namespace,
    place_of,
    record_of,
    waiting_place,
    where_of,
)
from oncegate.stores.dynamodb.table import INDEX

_BATCH: Final = 100
_START: Final = b"\0"
_END: Final = b"\xff"  # no text begins with it
_SHELVED: Final = "shelf = :shelf AND place BETWEEN :first AND :last"


def items_of(calls: Calls, ids: Sequence[str]) -> dict[str, Item]:
    """Items by their ids, as they are now; those that are not there are left out."""
    found: dict[str, Item] = {}
    for start in range(0, len(ids), _BATCH):
        _fetch(calls, [{"id": {"S": id_}} for id_ in ids[start : start + _BATCH]], found)
    return found


def _fetch(calls: Calls, keys: list[dict[str, Any]], found: dict[str, Item]) -> None:
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


def waiting(calls: Calls, namespace: str, now: int) -> Iterator[Item]:
    """What a dispatcher may find free, first what was let go first."""
    last = waiting_place(namespace, now + 1)
    for ids in _shelved(calls, WAITING_SHELF, place_of(namespace), last):
        found = items_of(calls, ids)
        yield from (found[id_] for id_ in ids if id_ in found)


def dead(calls: Calls, namespace: str | None, after: Address | None) -> Iterator[Entry]:
    """Dead letters in the order of their addresses."""
    first = place_of(namespace) if namespace is not None else _START
    last = past_namespace(namespace) if namespace is not None else _END
    if after is not None:
        first = max(first, place_of(after.namespace, after.key))
    if first > last:
        return
    for ids in _shelved(calls, DEAD_SHELF, first, last):
        found = items_of(calls, ids)
        yield from (
            _entry(found[id_]) for id_ in ids if id_ in found and found[id_].get("shelf", {}).get("S") == DEAD_SHELF
        )


def _shelved(calls: Calls, shelf: str, first: bytes, last: bytes) -> Iterator[list[str]]:
    """The ids on a stretch of a shelf, in pages. The index lags behind the table by a moment."""
    values = {":shelf": {"S": shelf}, ":first": {"B": first}, ":last": {"B": last}}
    asked = {"IndexName": INDEX, "KeyConditionExpression": _SHELVED, "ExpressionAttributeValues": values}
    for page in _pages(calls, "query", asked | {"Limit": _BATCH}):
        yield [item["id"]["S"] for item in page]


def every(calls: Calls, namespace: str | None, key: bytes | None) -> Iterator[Entry]:
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


def _pages(calls: Calls, action: str, asked: dict[str, Any]) -> Iterator[list[Item]]:
    start: dict[str, Any] = {}
    while True:
        answer = calls.ask(action, **asked, **start)
        yield answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return
        start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


def _entry(item: Item) -> Entry:
    return Entry(*where_of(item), record_of(item))
