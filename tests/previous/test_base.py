"""URLs of old places, and the values of their rows."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from oncegate.errors import SettingError
from oncegate.gate.options import validate
from oncegate.previous.base import (
    OldMark,
    OldRow,
    PlaceUrl,
    column_parts,
    expiry,
    expiry_column,
    item_columns,
    mark_of,
    pages,
    plain_columns,
    read_place_url,
    row_of,
)
from oncegate.times import microseconds_of

NOON = microseconds_of(datetime(2026, 12, 1, 12, tzinfo=UTC))


def test_the_options_of_a_url() -> None:
    """The options of an old place are separated from the address, whose other options stay."""
    url = read_place_url(
        "dynamodb://Dedup?region=eu-central-1&key=pk:{conversationId}%23{timestamp}&expires=ttl"
        "&endpoint=http://127.0.0.1:8000&until=2026-12-01T12:00:00Z"
    )
    assert url.address == "dynamodb://Dedup?region=eu-central-1&endpoint=http://127.0.0.1:8000"
    assert (url.key, url.expires, url.until) == (("pk:{conversationId}#{timestamp}",), "ttl", NOON)
    table = read_place_url("postgresql://h/db?sslmode=require&table=public.dedup&columns=a,b")
    assert (table.address, table.table, table.columns) == (
        "postgresql://h/db?sslmode=require",
        "public.dedup",
        ("a", "b"),
    )


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:6379/0?key=event:dedup:{id}",
        "dynamodb://T?region=r&key=pk:{conversationId}%23{timestamp}&until=2026-12-01T12:00:00Z",
        "postgresql://u@h/db?table=public.dedup&columns=a,b&expires=expires_at",
        "sqlite:///old.db?table=de%22dup%26x%3D&columns=a",
    ],
)
def test_a_url_that_is_shown(url: str) -> None:
    """The URL for a settings file has the same meaning as the URL that was read."""
    assert read_place_url(read_place_url(url).shown) == read_place_url(url)


def test_a_password_is_masked() -> None:
    """The URL that is shown has no password."""
    assert read_place_url("redis://u:hunter2@h/0?key=a:{id}").shown == "redis://u:***@h/0?key=a:{id}"


def test_no_password_in_the_repr() -> None:
    """Neither the URL nor the configuration of a gate shows the password in its `repr`."""
    url = "redis://u:hunter2@h/0?key=a:{id}"
    for shown in (repr(read_place_url(url)), repr(validate({"previous": url}))):
        assert "redis://u:***@h/0" in shown
        assert "hunter2" not in shown
    assert "namespace='default'" in repr(validate({}))


def test_until_is_never_too_early() -> None:
    """The time until which the place is asked is rounded up to a second."""
    assert PlaceUrl("redis://h", until=NOON + 1).shown == "redis://h?until=2026-12-01T12:00:01Z"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://h?key=", "key= has no value"),
        ("sqlite:///a?table=a&table=b", "table= is given twice"),
        ("redis://h?key=a:{id}&until=tomorrow", "until='tomorrow' is not a time"),
    ],
)
def test_invalid_options(url: str, problem: str) -> None:
    """An invalid option is refused with the reason."""
    with pytest.raises(SettingError, match=problem):
        read_place_url(url)


def test_the_parts_of_a_key() -> None:
    """A column is a path of its own name, or has a template."""
    (one, two) = column_parts(PlaceUrl("", columns=("conversationId", "detail.time")))
    assert [(part.column, part.template.names) for part in (one, two)] == [
        ("conversationId", ("conversationId",)),
        ("detail.time", ("detail.time",)),
    ]
    (part,) = column_parts(PlaceUrl("", key=("pk:{a}#{b}",)))
    assert (part.column, part.template.text) == ("pk", "{a}#{b}")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (PlaceUrl("", key=("{a}",)), "names no column"),
        (PlaceUrl("", key=("a:{b:int}:{c",)), "single brace"),
        (PlaceUrl("", key=("a:{b}",), columns=("c",)), "not both"),
    ],
)
def test_invalid_parts(url: PlaceUrl, problem: str) -> None:
    """A part without a column or with an invalid template is refused."""
    with pytest.raises(SettingError, match=problem):
        column_parts(url)


@pytest.mark.parametrize(
    "value",
    [
        1_796_126_400,
        1_796_126_400_000,
        "1796126400",
        Decimal(1796126400),
        "2026-12-01T12:00:00Z",
        "2026-12-01 12:00:00+00",
        datetime(2026, 12, 1, 12, tzinfo=UTC),
        datetime(2026, 12, 1, 12),  # noqa: DTZ001  # a column without a time zone
        "2026-12-01 12:00:00",
    ],
)
def test_an_expiry(value: Any) -> None:
    """Seconds, milliseconds, ISO text and timestamps are times of expiry."""
    assert expiry(value) == NOON


@pytest.mark.parametrize("value", ["2026-12-01", date(2026, 12, 1)])
def test_a_date(value: Any) -> None:
    """A date without a time is the end of this day in UTC."""
    assert expiry(value) == NOON + 12 * 3_600_000_000


@pytest.mark.parametrize("value", [None, "", "infinity", 0, "0", Decimal(0), 0.0])
def test_no_expiry(value: Any) -> None:
    """A row without a value, or with the value 0, does not expire."""
    assert expiry(value) is None
    assert row_of("row 1", {"a": 1}, value) == OldRow("row 1", {"a": 1})
    assert mark_of(value) == OldMark()


@pytest.mark.parametrize(
    "value", ["soon", 5, -1, float("nan"), float("inf"), 10**40, True, False, "2026-13-01", "2026-02-30"]
)
def test_an_expiry_that_is_no_time(value: Any) -> None:
    """A row or a mark whose expiry is not a time counts, and does not expire."""
    with pytest.raises(ValueError, match="is not a time"):
        expiry(value)
    assert row_of("row 1", {"a": 1}, value) == OldRow("row 1", {"a": 1}, has_invalid_expiry=True)
    assert mark_of(value) == OldMark()


def test_columns() -> None:
    """Only texts, numbers, times and UUIDs are columns of a key."""
    name = UUID(int=5)
    columns = {"a": "x", "b": Decimal(5), "c": Decimal("1.5"), "d": name, "e": None, "f": b"x", "g": [1], "h": {"a": 1}}
    assert plain_columns(columns) == {"a": "x", "b": 5, "c": 1.5, "d": str(name)}
    assert row_of("row 1", {"a": 1, "e": NOON}, NOON) == OldRow("row 1", {"a": 1, "e": NOON}, NOON)


def test_an_item_of_dynamodb() -> None:
    """An item has a type beside each value."""
    item = {
        "a": {"S": "x"},
        "b": {"N": "5"},
        "c": {"BOOL": True},
        "d": {"M": {}},
        "e": {"NULL": True},
        "f": {"B": "eA"},
    }
    assert item_columns(item) == {"a": "x", "b": 5, "c": True}
    wrong: list[dict[str, Any]] = [
        {"a": "x"},
        {"a": {}},
        {"a": {"S": "x", "N": "5"}},
        {"a": {"N": "x"}},
        {"a": {"N": None}},
    ]
    for each in wrong:
        with pytest.raises(ValueError, match=r"no type|not a number"):
            item_columns(each)


def test_the_column_of_the_expiry() -> None:
    """A named column is used, otherwise a column with a usual name."""
    assert expiry_column(["a", "ttl"], None) == "ttl"
    assert expiry_column(["a", "ttl", "expiresAt"], None) == "expiresAt"
    assert expiry_column(["a", "ttl"], "a") == "a"
    assert expiry_column(["a"], None) is None


def test_pages() -> None:
    """Items are yielded in lists of a limited size."""
    assert list(pages(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(pages([], 2)) == []
