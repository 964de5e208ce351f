"""Durations as people write them (`500ms`, `30s`, `5m`, `24h`, `7d`), in microseconds inside."""

import re
from datetime import timedelta

from oncegate.errors import SettingError

Duration = str | timedelta

_UNITS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_WRITTEN = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*(ms|s|m|h|d)", re.ASCII)
_LONGEST = 36_500 * _UNITS["d"]


def microseconds(value: Duration | int, setting: str = "duration", *, or_none: bool = False) -> int:
    """Read a duration; a bare number is refused, because its unit would be a guess, but for 0 where none at all will
    do."""
    if or_none and value == 0:
        return 0
    if isinstance(value, timedelta):
        found = value // timedelta(microseconds=1)
    else:
        written = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
        if written is None:
            raise SettingError(f"{setting}={value!r} is not a duration; write it like 500ms, 30s, 5m, 24h or 7d")
        found = int(float(written[1]) * _UNITS[written[2]])
    if not (0 < found <= _LONGEST or (or_none and found == 0)):
        raise SettingError(f"{setting}={value!r} must be longer than nothing and shorter than 100 years")
    return found


def times(count: int, thing: str) -> str:
    """A number of things for a sentence: `1 attempt`, `2 attempts`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def spoken(duration_us: int) -> str:
    """A duration for a sentence: one unit, rounded down, never more exact than a person needs."""
    for unit in ("d", "h", "m", "s"):
        if duration_us >= _UNITS[unit]:
            return f"{duration_us // _UNITS[unit]} {unit}"
    return f"{max(duration_us, 0) // 1_000} ms"
