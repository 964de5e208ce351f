"""Durations: parsing and formatting."""

from datetime import timedelta
from typing import Any

import pytest

from oncegate.durations import microseconds, spoken, times
from oncegate.errors import SettingError


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("500ms", 500_000),
        ("30s", 30_000_000),
        ("5m", 300_000_000),
        ("24h", 86_400_000_000),
        ("7d", 604_800_000_000),
        ("1.5s", 1_500_000),
        (" 2 s ", 2_000_000),
        (timedelta(minutes=1), 60_000_000),
    ],
)
def test_parsing(written: Any, expected: int) -> None:
    """Every unit is parsed, with and without a fraction, and so is timedelta."""
    assert microseconds(written) == expected


@pytest.mark.parametrize("written", ["", "30", "s", "30 sec", "-5s", "1h30m", "30S", 30, 1.5, None, "٣s" * 2])
def test_not_a_duration(written: Any) -> None:
    """A number without a unit, or with an unknown one, is rejected with the name of the setting and an example."""
    with pytest.raises(SettingError, match=r"lease=.* is not a duration; write it like 500ms, 30s"):
        microseconds(written, "lease")


@pytest.mark.parametrize("written", ["0s", "0.0001ms", "40000d", timedelta(0), timedelta(days=-1)])
def test_out_of_range(written: Any) -> None:
    """Zero and very long durations are rejected."""
    with pytest.raises(SettingError, match="longer than 0 and at most 100 years"):
        microseconds(written)


@pytest.mark.parametrize("written", [0, "0s", timedelta(0)])
def test_zero(written: Any) -> None:
    """Where `or_none` allows it, zero is accepted, also without a unit. Negative durations are not."""
    assert microseconds(written, or_none=True) == 0
    with pytest.raises(SettingError):
        microseconds(timedelta(days=-1), or_none=True)
    with pytest.raises(SettingError):
        microseconds(5, or_none=True)


@pytest.mark.parametrize(
    ("duration", "text"),
    [(-5, "0 ms"), (0, "0 ms"), (999_999, "999 ms"), (1_000_000, "1 s"), (119_000_000, "1 m"), (10**12, "11 d")],
)
def test_formatting(duration: int, text: str) -> None:
    """A duration is printed in one unit, rounded down."""
    assert spoken(duration) == text


def test_counting() -> None:
    """A count has a singular and a plural."""
    assert [times(count, "attempt") for count in (0, 1, 2)] == ["0 attempts", "1 attempt", "2 attempts"]
