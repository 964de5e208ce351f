"""Signed timestamps: whether a request was signed just now."""

import re
from typing import Final

from oncegate.durations import spoken
from oncegate.signatures.verdict import Refused

TOLERANCE: Final = "5m"

# Seconds since 1970 until the year 5138, or milliseconds, by their number of digits.
_SECONDS: Final = re.compile(r"\d{1,11}", re.ASCII)
_MILLISECONDS: Final = re.compile(r"\d{13}", re.ASCII)


def untimely(written: str, header: str, now: int, tolerance: int) -> Refused | None:
    """Why this timestamp is refused, if it is: it may be older or newer than now by the tolerance, in microseconds."""
    signed = _moment(written)
    if signed is None:
        return Refused(401, f"the header {header} is no time in seconds since 1970")
    away = now - signed
    if abs(away) <= tolerance:
        return None
    found = f"{spoken(abs(away))} {'old' if away > 0 else 'ahead of the time here'}"
    return Refused(401, f"the time in {header} is {found}, more than the {spoken(tolerance)} that are allowed")


def _moment(written: str) -> int | None:
    if _SECONDS.fullmatch(written):
        return int(written) * 1_000_000
    return int(written) * 1_000 if _MILLISECONDS.fullmatch(written) else None
