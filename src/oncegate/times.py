"""Parse the times that senders write (ISO text, numbers since 1970, protobuf timestamps), and write times. All times
are in UTC."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# In microseconds. A number outside the years 2000 to 2199 is a placeholder or not a time.
_EARLIEST, _LATEST = 946_684_800_000_000, 7_258_118_400_000_000

_from_timestamp = datetime.fromtimestamp
_WITH_CLOCK = re.compile(r"\s*\d{4}-?\d\d-?\d\d[T ]\d\d", re.ASCII | re.IGNORECASE)
_DIGITS = re.compile(r"\d{1,20}(?:\.\d{1,9})?", re.ASCII)


def moment(value: Any) -> datetime | None:
    """Parse a time. Returns None if the value is not a time. The size of a number shows its unit. Text without a time
    zone is read as UTC."""
    kind = type(value)
    if kind is int:
        if 946_684_800_000 <= value < 7_258_118_400_000:  # fast path for milliseconds, the most frequent unit
            return _from_timestamp(value / 1_000, UTC)
        return _since_epoch(_scaled(value))
    if kind is str:
        return _read_text(value)
    if kind is float:
        return _since_epoch(round(_scaled(value))) if 0 < value < 1e20 else None
    if kind is dict:
        return _read_pair(value)
    return None


def microseconds_of(when: datetime) -> int:
    """Whole microseconds since 1970. The result is exact, unlike the float that `timestamp()` returns. A time without a
    zone is read as UTC."""
    since = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def readable_time(time_us: int | None, *, sep: str = " ", exact: bool = False) -> str | None:
    """A time of a store in UTC, to the millisecond. `exact`: to the microsecond if the time has microseconds."""
    if time_us is None:
        return None
    when = EPOCH + timedelta(microseconds=time_us)
    unit = "microseconds" if exact and time_us % 1_000 else "milliseconds"
    return when.isoformat(sep=sep, timespec=unit).replace("+00:00", "Z")


def rfc3339(time_us: int | None) -> str | None:
    """A time of a store for programs: RFC 3339, without loss of precision."""
    return readable_time(time_us, sep="T", exact=True)


def _scaled(number: Any) -> Any:
    """Convert seconds, milliseconds, microseconds or nanoseconds to microseconds. The size of the number shows the
    unit: for times between 1973 and 5138, the ranges of the units do not overlap."""
    if number < 100_000_000_000:
        return number * 1_000_000
    if number < 100_000_000_000_000:
        return number * 1_000
    return number if number < 100_000_000_000_000_000 else number // 1_000


def _since_epoch(microseconds: int) -> datetime | None:
    if not _EARLIEST <= microseconds < _LATEST:
        return None
    return EPOCH + timedelta(0, microseconds // 1_000_000, microseconds % 1_000_000)


def _read_text(text: str) -> datetime | None:
    if len(text) > 40:
        return None
    if not _WITH_CLOCK.match(text):
        return _read_digits(text.strip())
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return _read_loosely(text)
    return _in_utc(found)


def _read_loosely(text: str) -> datetime | None:
    """Parse ISO text in lower case or with blanks around it."""
    try:
        return _in_utc(datetime.fromisoformat(text.strip().upper()))
    except ValueError:
        return None


def _in_utc(found: datetime) -> datetime | None:
    if not 1970 <= found.year < 2200:
        return None
    if found.tzinfo is UTC:
        return found
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _read_digits(text: str) -> datetime | None:
    if not _DIGITS.fullmatch(text):
        return None
    return moment(float(text) if "." in text else int(text))


def _read_pair(pair: dict[str, Any]) -> datetime | None:
    """Parse a protobuf timestamp. `seconds` has 64 bits, so its JSON form is text."""
    seconds, nanos = _whole(pair.get("seconds")), _whole(pair.get("nanos"))
    nanos = 0 if nanos is None else nanos
    if type(seconds) is not int or type(nanos) is not int or not 0 <= nanos < 1_000_000_000:
        return None
    return _since_epoch(seconds * 1_000_000 + nanos // 1_000)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 13 else value
