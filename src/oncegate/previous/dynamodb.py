"""An old place in a DynamoDB table: an item for each processed event, as a conditional PutItem writes it."""

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from msgspec import Struct

from oncegate import forks
from oncegate.errors import SettingError, StoreError, StoreRefused, StoreUnavailable
from oncegate.previous.base import (
    LONGEST_POSITION,
    KeyPart,
    OldMark,
    OldRow,
    PlaceUrl,
    column_parts,
    expiry_column,
    item_columns,
    mark_of,
    pages,
    plain_columns,
    row_of,
)
from oncegate.previous.templates import Template
from oncegate.stores.dynamodb import read_url
from oncegate.stores.dynamodb.client import DynamoClient

_MOST_KEYS: Final = 100  # in one BatchGetItem
_LONGEST: Final = {"HASH": 2_048, "RANGE": 1_024}  # bytes of a key attribute
_MOST_DIGITS: Final = 38
_LARGEST_EXPONENT: Final = 125
_PLAIN_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")

_ItemKey = tuple[str | Decimal, ...]


class _KeyAttribute(Struct, frozen=True):
    name: str
    type: str  # S or N
    longest: int


class _Layout(Struct, frozen=True):
    """The key attributes of the table, and its time-to-live attribute; None if time to live is off."""

    attributes: tuple[_KeyAttribute, ...]
    ttl_attribute: str | None


class DynamoPlace:
    remote = True

    def __init__(self, url: PlaceUrl) -> None:
        if url.table:
            raise SettingError("table= is for SQL; write the name of the table as the host: dynamodb://Table?region=…")
        settings = read_url(url.address)
        self._client = DynamoClient(settings)
        self._parts = column_parts(url)
        self._expires = url.expires
        self._lock = threading.Lock()
        self._watch = forks.holding(self._lock)
        self._found_layout: _Layout | None = None
        self.name = settings.place

    def parts(self) -> Sequence[KeyPart]:
        names = [attribute.name for attribute in self._layout().attributes]
        if not self._parts:
            return tuple(KeyPart(name, Template(f"{{{name}}}")) for name in names)
        by_column = {part.column: part for part in self._parts}
        if by_column.keys() != set(names):
            named, given = ", ".join(names), ", ".join(by_column)
            raise StoreRefused(
                f"the key of {self.name} is {named}, but the URL names {given}; write key={names[0]}:{{…}}"
            )
        return tuple(by_column[name] for name in names)

    def key_columns(self) -> Sequence[str]:
        return [attribute.name for attribute in self._layout().attributes]

    # ── look-ups ──────────────────────────────────────────────────────────────────────────────────────────

    def find(self, keys: Sequence[Sequence[Any]]) -> list[OldMark | None]:
        encoded = [self._encoded(key) for key in keys]
        unique = [key for key in dict.fromkeys(encoded) if key is not None]
        marks: dict[_ItemKey, OldMark] = {}
        for page in pages(unique, _MOST_KEYS):
            for item in self._items(page):
                marks[self._key_of(item)] = mark_of(self._expiry_in(item_columns(item)))
        return [None if key is None else marks.get(key) for key in encoded]

    def _encoded(self, key: Sequence[Any]) -> _ItemKey | None:
        """Return the values of the key attributes; None if no item of the table can have them."""
        values = [_encoded(attribute, value) for attribute, value in zip(self._layout().attributes, key, strict=True)]
        return tuple(value for value in values if value is not None) if None not in values else None

    def _items(self, keys: Sequence[_ItemKey]) -> Iterator[dict[str, Any]]:
        attributes = self._layout().attributes
        wanted = [
            {each.name: {each.type: str(value)} for each, value in zip(attributes, key, strict=True)} for key in keys
        ]
        pauses = self._client.retry_pauses()
        while wanted:
            request = {self._client.table: {"Keys": wanted, "ConsistentRead": True}}
            response = self._client.call("batch_get_item", RequestItems=request)
            yield from response.get("Responses", {}).get(self._client.table, [])
            wanted = response.get("UnprocessedKeys", {}).get(self._client.table, {}).get("Keys", [])
            if wanted:
                pause = next(pauses, None)
                if pause is None:
                    raise StoreUnavailable(f"{self.name} is throttled and returned only a part of a batch; retry")
                time.sleep(pause)

    def _key_of(self, item: Mapping[str, Any]) -> _ItemKey:
        found = (item[each.name][each.type] for each in self._layout().attributes)
        return tuple(
            Decimal(value) if each.type == "N" else value
            for each, value in zip(self._layout().attributes, found, strict=True)
        )

    # ── all rows ──────────────────────────────────────────────────────────────────────────────────────────

    def rows(self) -> Iterator[OldRow]:
        start: dict[str, Any] = {}
        while True:
            page = self._client.call_table("scan", ConsistentRead=True, **start)
            for item in page.get("Items", []):
                columns = item_columns(item)
                yield row_of(self._position(columns), columns, self._expiry_in(columns))
            if not page.get("LastEvaluatedKey"):
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def _position(self, columns: Mapping[str, Any]) -> str:
        found = plain_columns(columns)
        names = [attribute.name for attribute in self._layout().attributes]
        return ", ".join(f"{name}={found.get(name)!r}" for name in names)[:LONGEST_POSITION]

    def _expiry_in(self, columns: Mapping[str, Any]) -> Any:
        name = self._expires or self._layout().ttl_attribute or expiry_column(columns, None)
        return None if name is None else columns.get(name)

    def _layout(self) -> _Layout:
        with self._lock:
            if self._found_layout is None:
                self._found_layout = self._read_layout()
            return self._found_layout

    def _read_layout(self) -> _Layout:
        table = self._client.call_table("describe_table")["Table"]
        types = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
        attributes = [
            _KeyAttribute(each["AttributeName"], types[each["AttributeName"]], _LONGEST[each["KeyType"]])
            for each in sorted(table["KeySchema"], key=lambda each: str(each["KeyType"]))  # HASH before RANGE
        ]
        if binary := [attribute.name for attribute in attributes if attribute.type == "B"]:
            raise StoreRefused(
                f"the key attribute {binary[0]} of {self.name} is binary; only text and numbers are read"
            )
        return _Layout(tuple(attributes), None if self._expires else self._ttl_attribute())

    def _ttl_attribute(self) -> str | None:
        """Return the time-to-live attribute. A caller without the permission to read it needs no such attribute: the
        expiry is then read from an attribute with a usual name."""
        try:
            described = self._client.call_table("describe_time_to_live").get("TimeToLiveDescription", {})
        except StoreUnavailable:
            raise
        except StoreError:
            return None
        return described.get("AttributeName") if described.get("TimeToLiveStatus") == "ENABLED" else None

    def close(self) -> None:
        self._client.close()


def _encoded(attribute: _KeyAttribute, value: Any) -> str | Decimal | None:
    if attribute.type == "S":
        text = str(value)
        return text if 0 < len(text.encode()) <= attribute.longest else None
    if isinstance(value, str) and not _PLAIN_NUMBER.fullmatch(value):
        return None  # Decimal reads more than DynamoDB does: blanks, underscores, digits of other scripts
    number = Decimal(str(value))
    if not number.is_finite() or len(number.as_tuple().digits) > _MOST_DIGITS:
        return None
    return number if abs(number.adjusted()) <= _LARGEST_EXPONENT else None
