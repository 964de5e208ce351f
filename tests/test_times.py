"""Times: every format of senders, exact to the microsecond, and values that are not times."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.times import microseconds_of, moment

WHEN = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
MILLIS = WHEN + timedelta(milliseconds=123)
MICROS = WHEN + timedelta(microseconds=123456)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2026-02-03T04:05:06Z", WHEN),
        ("2026-02-03T04:05:06.123Z", MILLIS),
        ("2026-02-03T04:05:06.123456Z", MICROS),
        ("2026-02-03T04:05:06.123456789Z", MICROS),
        ("2026-02-03T04:05:06.123+00:00", MILLIS),
        ("2026-02-02T21:05:06.123-07:00", MILLIS),
        ("2026-02-03T05:05:06.123+0100", MILLIS),
        ("2026-02-03t04:05:06.123z", MILLIS),
        ("2026-02-03 04:05:06", WHEN),
        (" 1770091506123 ", MILLIS),
        (" 2026-02-03T04:05:06.123Z", MILLIS),
        ("2026-02-03T04:05:06.123Z ", MILLIS),
        (1770091506123, MILLIS),
        (1770091506, WHEN),
        (1770091506.123, MILLIS),
        ("1770091506.123", MILLIS),
        (1770091506123456, MICROS),
        (1770091506123456789, MICROS),
        ({"seconds": 1770091506, "nanos": 123456789}, MICROS),
        ({"seconds": "1770091506"}, WHEN),
        ({"seconds": "1770091506", "nanos": None}, WHEN),
        ({"seconds": "1770091506", "nanos": "123456789"}, MICROS),
    ],
)
def test_every_format(written: Any, expected: datetime) -> None:
    """All of these formats give one second of 2026, as exact as they are written, in UTC."""
    found = moment(written)
    assert found == expected
    assert found is not None
    assert found.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "nonsense",
    [
        *(None, True, False, 0, -5, 10**30, float("nan"), float("inf"), 1e300, [], [1770091506], {}, "", "soon"),
        *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00", "2026-02-30T00:00:00Z", "2026-02-03", "2026"),
        *("0001-01-01T00:00:00+14:00", "2026-02-03T25:00:00Z", "9" * 50, "١٧٧٠٠٩١٥٠٦", "²"),
        *(
            {"seconds": True},
            {"seconds": 1770091506, "nanos": -1},
            {"seconds": 1770091506, "nanos": "x"},
            {"seconds": "x"},
            {"seconds": 10**40, "nanos": 10**40},
        ),
    ],
)
def test_values_that_are_not_times(nonsense: Any) -> None:
    """Placeholders, dates without a clock time and other values are not times, and none of them raises."""
    assert moment(nonsense) is None


@given(st.integers(946_684_800 * 10**9, 7 * 10**18))
def test_nanoseconds_are_cut_to_the_microsecond(nanos: int) -> None:
    """Nanoseconds are truncated to microseconds, exactly."""
    found = moment(nanos)
    assert found is not None
    assert microseconds_of(found) == nanos // 1000


@given(st.integers(946_684_800_000, 7_258_118_399_999))
def test_milliseconds_are_exact(millis: int) -> None:
    """Milliseconds, the most frequent unit, are exact."""
    found = moment(millis)
    assert found is not None
    assert microseconds_of(found) == millis * 1000


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_moment_never_raises(value: Any) -> None:
    """For any value, the result is a time or None."""
    assert moment(value) is None or isinstance(moment(value), datetime)
