"""Recorded lines and documents of CloudWatch Logs: the logged document, and the time at which it was logged."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from oncegate.times import microseconds_of, moment

# The lines of an export to S3: `2026-01-05T09:00:00.000Z {"version": …`.
_EXPORTED: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)\s+(?=[\[{])")
_DIGITS: Final = b"0123456789"
# A document of a subscription has `logEvents`; the answer of `filter-log-events` and `get-log-events` has `events`.
_MARKERS: Final = (b'"logEvents"', b'"logStreamName"', b'"ingestionTime"')
_EARLY: Final = 4_096


class LoggedDocument(Struct, frozen=True, gc=False):
    """A document, and the time at which it was logged, in microseconds; None if the time is not known."""

    raw: bytes
    logged_at: int | None = None


def is_log_line(raw: bytes) -> bool:
    """Whether this is a line of an export of CloudWatch Logs to S3: a time, a blank and a document."""
    return raw[:1] in _DIGITS and _EXPORTED.match(raw) is not None


def logged_documents(raw: bytes) -> Iterator[LoggedDocument]:
    """The documents in one line or document of a recording. Text that is not from CloudWatch Logs is returned
    unchanged."""
    if raw[:1] in _DIGITS and (found := _EXPORTED.match(raw)):
        yield LoggedDocument(raw[found.end() :], _time(found[1].decode()))
        return
    lines = _log_events(raw) if any(raw.find(marker, 0, _EARLY) >= 0 for marker in _MARKERS) else None
    if lines is None:
        yield LoggedDocument(raw)
        return
    for line in lines:
        yield LoggedDocument(line["message"].strip().encode("utf-8", "surrogatepass"), _time(line.get("timestamp")))


def _log_events(raw: bytes) -> list[dict[str, Any]] | None:
    """The lines of a document of CloudWatch Logs; None for any other document."""
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    lines = document.get("logEvents", document.get("events")) if isinstance(document, dict) else None
    if not isinstance(lines, list) or not all(map(_is_line, lines)):
        return None
    return lines


def _is_line(line: Any) -> bool:
    return isinstance(line, dict) and isinstance(line.get("message"), str) and "timestamp" in line


def _time(value: Any) -> int | None:
    found = moment(value)
    return None if found is None else microseconds_of(found)
