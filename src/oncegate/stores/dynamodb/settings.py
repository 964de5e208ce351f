"""Parse the URL of a DynamoDB store. The URL has no credentials: these come from the standard AWS sources."""

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
_MAX_PARALLEL: Final = 256
_DEFAULT_SKEW: Final = 2_000_000


class DynamoSettings(Struct, frozen=True):
    """`skew` is in microseconds, like the times of records; `timeout` is in seconds, like socket timeouts."""

    table: str
    region: str | None = None
    endpoint: str | None = None
    skew: int | None = None
    timeout: float = 5.0
    parallel: int = 16

    def margin(self, *, tested: bool) -> int:
        """Return how many microseconds two clocks may differ. The default is 0 if a test supplies the only clock
        (`tested`)."""
        if self.skew is not None:
            return self.skew
        return 0 if tested else _DEFAULT_SKEW

    @property
    def place(self) -> str:
        """The name and location of the table as text for messages."""
        where = self.endpoint or (f"region {self.region}" if self.region else None)
        return f"the DynamoDB table {self.table} ({where})" if where else f"the DynamoDB table {self.table}"


def read_url(url: str) -> DynamoSettings:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingError(f"{quoted(url)} is not a URL; write 'dynamodb://Table?region=eu-central-1'") from None
    if parts.netloc and "@" not in parts.netloc and not _TABLE.fullmatch(parts.netloc):
        raise SettingError(f"invalid table name {parts.netloc!r}; use 3 to 255 letters, digits, and _ . -")
    if not parts.netloc or "@" in parts.netloc or parts.path.strip("/") or parts.fragment:
        raise SettingError(
            f"{quoted(url)} names no table; write 'dynamodb://Table?region=eu-central-1'"
            " (3 to 255 letters, digits, and _ . -; without credentials)"
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


def _parallel(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= _MAX_PARALLEL:
        raise SettingError(f"parallel={text!r} is not a number from 1 to {_MAX_PARALLEL}")
    return int(text)
