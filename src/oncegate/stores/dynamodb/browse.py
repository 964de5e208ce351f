"""Read records. Waiting records and dead letters are read through the sparse index, all other records with a scan."""

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
    AddressPair,
    Item,
    address_of,
    namespace_end,
    place_of,
    record_of,
    waiting_key,
    waiting_place,
)
from oncegate.stores.dynamodb.table import INDEX

_MAX_BATCH: Final = 100  # keys of one BatchGetItem
_WAITING_PAGE: Final = 20
_FIRST_PLACE: Final = b"\0"
_LAST_PLACE: Final = b"\xff"  # no UTF-8 text begins with this byte
_PLACE_RANGE: Final = "shelf = :shelf AND place BETWEEN :first AND :last"


def read_items(client: DynamoClient, ids: Sequence[str]) -> dict[str, Item]:
    """Read items with consistent reads, and return the existing items by id."""
    found: dict[str, Item] = {}
    for start in range(0, len(ids), _MAX_BATCH):
        _read_batch(client, [{"id": {"S": id_}} for id_ in ids[start : start + _MAX_BATCH]], found)
    return found


def _read_batch(client: DynamoClient, keys: list[dict[str, Any]], found: dict[str, Item]) -> None:
    """Add the items of a batch to `found`. If DynamoDB returns only a part of the items, request the missing keys
    again.

    Raises StoreUnavailable if keys are still missing after the timeout."""
    pauses = client.retry_pauses()
    while True:
        request = {client.table: {"Keys": keys, "ConsistentRead": True}}
        response = client.call("batch_get_item", RequestItems=request)
        items = response["Responses"].get(client.table, [])
        found.update((item["id"]["S"], item) for item in items)
        keys = response.get("UnprocessedKeys", {}).get(client.table, {}).get("Keys", [])
        if not keys:
            return
        pause = next(pauses, None)
        if pause is None:
            raise StoreUnavailable(f"{client.place} did not return all keys in time ({len(keys)} missing); retry later")
        time.sleep(0 if items else pause)


def waiting_addresses(client: DynamoClient, namespace: str, now: int) -> Iterator[AddressPair]:
    """Yield the addresses of records that may be taken, in the order of `lease_until`."""
    first, last = place_of(namespace), waiting_place(namespace, now + 1)
    for page in _index_pages(client, WAITING_SHELF, first, last, _WAITING_PAGE):
        yield from ((namespace, waiting_key(namespace, item["place"]["B"])) for item in page)


def dead_letters(client: DynamoClient, namespace: str | None, after: Address | None, limit: int) -> Iterator[Entry]:
    """Yield dead letters in the order of their addresses."""
    first, last = _bounds(namespace)
    if after is not None:
        first = max(first, place_of(after.namespace, after.key))
    if first > last:
        return
    for page in _index_pages(client, DEAD_SHELF, first, last, min(limit + 1, _MAX_BATCH)):
        found = read_items(client, [item["id"]["S"] for item in page])
        entries = [_entry(found[item["id"]["S"]]) for item in page if item["id"]["S"] in found]
        yield from (entry for entry in entries if entry.record.state == DEAD)


def _bounds(namespace: str | None) -> tuple[bytes, bytes]:
    """The first and the last place of a namespace, or of all namespaces."""
    return (_FIRST_PLACE, _LAST_PLACE) if namespace is None else (place_of(namespace), namespace_end(namespace))


def count_dead_letters(client: DynamoClient, namespace: str | None, limit: int) -> int:
    """Return the number of dead letters of a namespace, or of all namespaces, in the index; `limit` if there are
    more."""
    query = _index_query(DEAD_SHELF, *_bounds(namespace), limit)
    count = 0
    for response in _responses(client, "query", query | {"Select": "COUNT"}):
        count += response["Count"]
        if count >= limit:
            break
    return min(count, limit)


def _index_pages(client: DynamoClient, shelf: str, first: bytes, last: bytes, size: int) -> Iterator[list[Item]]:
    """Yield pages of index keys between two places of a shelf (see items.py).

    DynamoDB updates the index shortly after the table, so a page may miss the latest writes."""
    return _pages(client, "query", _index_query(shelf, first, last, size))


def _index_query(shelf: str, first: bytes, last: bytes, size: int) -> dict[str, Any]:
    values = {":shelf": {"S": shelf}, ":first": {"B": first}, ":last": {"B": last}}
    query = {"IndexName": INDEX, "KeyConditionExpression": _PLACE_RANGE, "ExpressionAttributeValues": values}
    return query | {"Limit": size}


def scan_records(client: DynamoClient, namespace: str | None, key: bytes | None) -> Iterator[Entry]:
    """Yield all records, or only the records of a namespace or a key, in no particular order. Reads the whole table."""
    conditions, values = ["attribute_exists(#status)"], {}
    names = {"#status": "status"}
    for name, value in (("namespace", namespace), ("key", None if key is None else key.hex())):
        if value is not None:
            conditions.append(f"#{name} = :{name}")
            names[f"#{name}"] = name
            values[f":{name}"] = {"S": value}
    scan: dict[str, Any] = {"FilterExpression": " AND ".join(conditions), "ExpressionAttributeNames": names}
    if values:
        scan["ExpressionAttributeValues"] = values
    for page in _pages(client, "scan", scan | {"ConsistentRead": True}):
        yield from map(_entry, page)


def _pages(client: DynamoClient, action: str, parameters: dict[str, Any]) -> Iterator[list[Item]]:
    return (response["Items"] for response in _responses(client, action, parameters))


def _responses(client: DynamoClient, action: str, parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the responses to a query or a scan. Each response has one page."""
    start: dict[str, Any] = {}
    while True:
        response = client.call_table(action, **parameters, **start)
        yield response
        if "LastEvaluatedKey" not in response:
            return
        start = {"ExclusiveStartKey": response["LastEvaluatedKey"]}


def _entry(item: Item) -> Entry:
    return Entry(*address_of(item), record_of(item))
