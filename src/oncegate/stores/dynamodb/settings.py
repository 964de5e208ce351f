"""What a URL of the DynamoDB store says. Credentials are never in it: they come from where AWS's tools look."""

import re
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from oncegate.aws.clients import checked_endpoint
from oncegate.durations import microseconds
from oncegate.errors import SettingError
from oncegate.text import quoted

OPTIONS: Final = ("region", "endpoint", "skew", "timeout", "parallel")
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_MOST_PARALLEL: Final = 256
_SKEW: Final = 2_000_000


class DynamoSettings(Struct, frozen=True):
    """`skew` is in microseconds, as records are; `timeout` in seconds, as sockets take it."""

    table: str
    region: str | None = None
    endpoint: str | None = None
    skew: int | None = None
    timeout: float = 5.0
    parallel: int = 16

    def margin(self, *, tested: bool) -> int:
        """By how much two clocks may differ. A test that moves the one clock there is needs none unless it says so."""
        if self.skew is not None:
            return self.skew
        return 0 if tested else _SKEW

    @property
    def place(self) -> str:
        """Where it is, for a sentence."""
        where = self.endpoint or (f"region {self.region}" if self.region else None)
        return f"the DynamoDB table {self.table} ({where})" if where else f"the DynamoDB table {self.table}"


def read_url(url: str) -> DynamoSettings:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingError(f"{quoted(url)} is not a URL; write dynamodb://Table?region=eu-central-1") from None
    if parts.netloc and "@" not in parts.netloc and not _TABLE.fullmatch(parts.netloc):
        raise SettingError(f"no table can be called {parts.netloc!r}; its name has 3 to 255 letters, digits, and _ . -")
    if not parts.netloc or "@" in parts.netloc or parts.path.strip("/") or parts.fragment:
        raise SettingError(
            f"{quoted(url)} names no table; write dynamodb://Table?region=eu-central-1"
            " (3 to 255 letters, digits, and _ . -; credentials are not written in it)"
        )
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - set(OPTIONS)):
        raise SettingError(f"the DynamoDB store has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
    return DynamoSettings(
        parts.netloc,
        options.get("region"),
        checked_endpoint(options.get("endpoint"), "http://127.0.0.1:8000"),
        microseconds(options["skew"], "skew") if "skew" in options else None,
        microseconds(options.get("timeout", "5s"), "timeout") / 1e6,
        _parallel(options.get("parallel", "16")),
    )


def _parallel(written: str) -> int:
    if not written.isascii() or not written.isdecimal() or not 1 <= int(written) <= _MOST_PARALLEL:
        raise SettingError(f"parallel={written!r} is not a number from 1 to {_MOST_PARALLEL}")
    return int(written)
