"""Parse durations such as `500ms`, `30s`, `5m`, `24h` and `7d` into microseconds, and format them for messages."""

import re
from datetime import timedelta

from oncegate.errors import SettingError

Duration = str | timedelta

_UNITS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PATTERN = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*(ms|s|m|h|d)", re.ASCII)
_LONGEST = 36_500 * _UNITS["d"]


def microseconds(value: Duration | int, setting: str = "duration", *, or_none: bool = False) -> int:
    """Parse a duration. `setting` is the name of the duration in error messages. A number without a unit is an error,
    because the unit would be a guess. With `or_none`, 0 is allowed. Raises SettingError."""
    if or_none and value == 0:
        return 0
    if isinstance(value, timedelta):
        duration_us = value // timedelta(microseconds=1)
    else:
        match = _PATTERN.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            text = f"{setting}={value!r} is not a duration; write it like 500ms, 30s, 5m, 24h or 7d"
            raise SettingError(text, settings=[setting])
        duration_us = int(float(match[1]) * _UNITS[match[2]])
    if not (0 < duration_us <= _LONGEST or (or_none and duration_us == 0)):
        raise SettingError(f"{setting}={value!r} must be longer than 0 and at most 100 years", settings=[setting])
    return duration_us


def times(count: int, thing: str) -> str:
    """A count with its noun: `1 attempt`, `2 attempts`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def spoken(duration_us: int) -> str:
    """A duration for a message: in one unit, rounded down, such as `5 m`."""
    for unit in ("d", "h", "m", "s"):
        if duration_us >= _UNITS[unit]:
            return f"{duration_us // _UNITS[unit]} {unit}"
    return f"{max(duration_us, 0) // 1_000} ms"
