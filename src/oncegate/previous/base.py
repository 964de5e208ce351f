"""The interface of an old place: a table, or keys of Redis, in which earlier code marks the events that it has
processed. Oncegate only reads old places."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, quote
from uuid import UUID

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.previous.templates import Template
from oncegate.text import masked
from oncegate.times import microseconds_of, moment

OPTIONS: Final = ("key", "table", "columns", "expires", "until")  # of the URL of an old place
KEY_TEXT: Final = "key"  # the column that holds the whole key of Redis
# Names of columns with the time of expiry, if no other column is named.
EXPIRY_COLUMNS: Final = ("expiresAt", "expires_at", "expireAt", "expire_at", "expiration", "ttl", "TTL")
_Item = TypeVar("_Item")
# Values that mean "does not expire": "infinity" is a timestamp of Postgres, and DynamoDB never deletes an item whose
# time to live is 0.
_NEVER: Final = ("", "infinity", "0", 0)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
LONGEST_POSITION: Final = 200  # characters that the position of a row shows of a key


class OldRow(Struct, frozen=True):
    """A row of an old place. `expires_at` is in microseconds since 1970; None if the row does not expire.
    `has_invalid_expiry`: the expiry is not a time, so the row counts as a row that does not expire."""

    position: str
    columns: Mapping[str, Any]
    expires_at: int | None = None
    has_invalid_expiry: bool = False


class BadRow(Struct, frozen=True):
    """A row that cannot be read."""

    position: str
    problem: str


class OldMark(Struct, frozen=True):
    """An old place has marked an event as processed. `expires_at` is in microseconds since 1970; None if the mark does
    not expire."""

    expires_at: int | None = None


class KeyPart(Struct, frozen=True):
    """One part of the key of an old place: the column, and the template that makes its value from an event."""

    column: str
    template: Template


class OldPlace(Protocol):
    """An old place. `name` is its text in messages. `remote` says whether it is reached over a network. It opens its
    connections when they are first needed. Every failure is a StoreError."""

    name: str
    remote: bool

    def parts(self) -> Sequence[KeyPart]:
        """Return the parts of the key. Raises StoreError if the key is not the key of the place."""

    def find(self, keys: Sequence[Sequence[Any]]) -> list[OldMark | None]:
        """Look up keys with as few requests as possible. A key has one value for each part. The answer is None if the
        place has no such key."""

    def key_columns(self) -> Sequence[str]:
        """Return the columns of the primary key. Empty if the place has none."""

    def rows(self) -> Iterator[OldRow | BadRow]:
        """Yield all rows. Rows that have expired may be among them."""

    def close(self) -> None: ...


# ── URLs ──────────────────────────────────────────────────────────────────────────────────────────────────


class PlaceUrl(Struct, frozen=True):
    """The URL of an old place. `address` is the URL without the options in OPTIONS. `until` is in microseconds since
    1970. `match` is the pattern of keys that `rows` reads from Redis; it is not part of a URL."""

    address: str
    key: tuple[str, ...] = ()
    table: str | None = None
    columns: tuple[str, ...] = ()
    expires: str | None = None
    until: int | None = None
    match: str | None = None

    def __repr__(self) -> str:
        return f"PlaceUrl({self.shown!r})"

    @property
    def scheme(self) -> str:
        return self.address.partition("://")[0]

    @property
    def shown(self) -> str:
        """The URL as it is written in a settings file, with the password masked."""
        until = None if self.until is None else _as_text(self.until)
        pairs = [("table", self.table), ("columns", ",".join(self.columns)), *(("key", each) for each in self.key)]
        pairs += [("expires", self.expires), ("until", until)]
        options = "&".join(f"{name}={quote(value, safe='{}:,.-_/*')}" for name, value in pairs if value)
        address = masked(self.address)
        return f"{address}{'&' if '?' in address else '?'}{options}" if options else address


def read_place_url(url: str) -> PlaceUrl:
    """Split a URL into the address of a server or file and the options of an old place. Raises SettingError if an
    option is invalid. The address is checked when the place is opened."""
    base, _, query = url.partition("?")
    pairs = query.split("&") if query else []
    ours = [pair for pair in pairs if pair.partition("=")[0] in OPTIONS]
    rest = "&".join(pair for pair in pairs if pair not in ours)
    options = parse_qsl("&".join(ours), keep_blank_values=True)
    if empty := [name for name, value in options if not value]:
        raise SettingError(f"{empty[0]}= has no value")
    for name in OPTIONS[1:]:
        if sum(each == name for each, _ in options) > 1:
            raise SettingError(f"{name}= is given twice")
    given = dict(options)
    return PlaceUrl(
        f"{base}?{rest}" if rest else base,
        tuple(value for name, value in options if name == "key"),
        given.get("table"),
        tuple(name.strip() for name in given.get("columns", "").split(",") if name.strip()),
        given.get("expires"),
        _until(given["until"]) if "until" in given else None,
    )


def _until(text: str) -> int:
    when = moment(text.replace(" ", "+"))  # a + in a query is read as a blank
    if when is None:
        raise SettingError(f"until={text!r} is not a time; write it like until=2026-12-01T00:00:00Z")
    return microseconds_of(when)


def _as_text(time_us: int) -> str:
    from_epoch = moment(-(-time_us // 1_000_000))  # rounded up: the gate must not stop asking too early
    return "" if from_epoch is None else from_epoch.isoformat().replace("+00:00", "Z")


def column_parts(url: PlaceUrl) -> tuple[KeyPart, ...]:
    """Return the parts of the key of a table: `key=COLUMN:TEMPLATE` for each column, or `columns=a,b` for columns whose
    names are paths of the event."""
    if url.key and url.columns:
        raise SettingError("give either columns= or key=, not both")
    if url.columns:
        return tuple(KeyPart(name, Template(f"{{{name}}}")) for name in url.columns)
    return tuple(column_part(each) for each in url.key)


def column_part(text: str) -> KeyPart:
    column, colon, template = text.partition(":")
    if not colon or not column or "{" in column:
        raise SettingError(f"{text!r} names no column; write it like pk:{{conversationId}}#{{timestamp}}")
    return KeyPart(column, Template(template))


# ── values of rows ────────────────────────────────────────────────────────────────────────────────────────


def plain_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that can be part of a key or a time. Absent values, lists, objects and binary values are left
    out."""
    found = {name: _plain(value) for name, value in columns.items()}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, Decimal):
        return None if not value.is_finite() else int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else None


def item_columns(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts, numbers and booleans of a DynamoDB item, which has a type beside each value. Raises ValueError
    if it is not such an item."""
    columns: dict[str, Any] = {}
    for name, typed_value in item.items():
        if not isinstance(typed_value, dict) or len(typed_value) != 1:
            raise ValueError(f"{name} has no type")
        ((kind, value),) = typed_value.items()
        if kind in ("S", "BOOL"):
            columns[name] = value
        elif kind == "N":
            columns[name] = _decimal(value)
    return columns


def _decimal(text: Any) -> Decimal:
    try:
        return Decimal(text)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(f"{text!r} is not a number") from error


def expiry_column(columns: Collection[str], given: str | None) -> str | None:
    """Return the column with the time of expiry: the given column, otherwise a column with a usual name."""
    return given or next((name for name in EXPIRY_COLUMNS if name in columns), None)


def expiry(value: Any) -> int | None:
    """Return a time of expiry in microseconds since 1970; None if there is none. Seconds and milliseconds differ in
    size. A date without a time is the end of this day in UTC. Raises ValueError if the value is not a time."""
    value = _plain(value)
    if value is None or (value in _NEVER and not isinstance(value, bool)):
        return None
    is_date = isinstance(value, str) and _DATE.fullmatch(value)
    when = moment(f"{value}T00:00" if is_date else value)
    if when is None:
        raise ValueError(f"the expiry {value!r} is not a time")
    return microseconds_of(when + timedelta(days=1) if is_date else when)


def mark_of(expires: Any) -> OldMark:
    """Return the mark of a row that was found. If its expiry is not a time, the row counts as a mark that does not
    expire: an event that may have been processed must not run again."""
    try:
        return OldMark(expiry(expires))
    except ValueError:
        return OldMark()


def row_of(position: str, columns: Mapping[str, Any], expires: Any) -> OldRow:
    """Return a row. `expires` is the value of its expiry. A value that is not a time has the meaning that it has for
    `mark_of`: the row does not expire."""
    try:
        return OldRow(position, plain_columns(columns), expiry(expires))
    except ValueError:
        return OldRow(position, plain_columns(columns), has_invalid_expiry=True)


def pages(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield the items in lists of at most `size` items."""
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page
