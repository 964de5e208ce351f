"""Places on AWS that events are sent to, as URLs: `sqs://QUEUE?region=…` and `eventbridge://BUS?region=…`.

Credentials are never in them: they come from where AWS's tools look.
"""

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from msgspec import Struct

from oncegate.aws.endpoints import checked_endpoint
from oncegate.durations import microseconds
from oncegate.errors import SettingError
from oncegate.text import quoted

FIFO: Final = ".fifo"
_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_BUS: Final = re.compile(r"[A-Za-z0-9_./-]{1,256}")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_EXAMPLES: Final = "events are published to sqs://QUEUE?region=eu-central-1 or eventbridge://BUS?region=eu-central-1"
_COMMON: Final = ("region", "endpoint", "timeout")


class Place(Struct, frozen=True, kw_only=True):
    """`account` is the owner of a queue that is another's; `source` is what events on a bus say that they come from."""

    service: str
    name: str
    region: str | None = None
    endpoint: str | None = None
    timeout: float = 10.0
    account: str | None = None
    source: str = "oncegate"

    def canonical(self, region: str | None) -> str:
        """One spelling for the same queue or bus, wherever it is written: its name, and the region that it is asked for
        in. Neither who owns it nor how it is reached is part of it, as both need not be written."""
        scheme = "sqs" if self.service == "sqs" else "eventbridge"
        return f"{scheme}://{self.name}?region={region}"

    @property
    def spoken(self) -> str:
        """Where it is, for a sentence."""
        where = self.endpoint or (f"region {self.region}" if self.region else None)
        named = f"the {'SQS queue' if self.service == 'sqs' else 'EventBridge bus'} {self.name}"
        return f"{named} ({where})" if where else named


def read_place(url: str) -> Place:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingError(f"{quoted(url)} is not a URL; {_EXAMPLES}") from None
    if parts.scheme == "sqs":
        return _queue(parts, url)
    if parts.scheme == "eventbridge":
        return _bus(parts, url)
    raise SettingError(_EXAMPLES)


def _queue(parts: SplitResult, url: str) -> Place:
    options = _options(parts, "account")
    if not _QUEUE.fullmatch(parts.netloc) or parts.path.strip("/"):
        raise SettingError(
            f"{quoted(url)} names no queue; write sqs://QUEUE?region=eu-central-1, with {FIFO} if it is one"
        )
    account = options.get("account")
    if account is not None and not _ACCOUNT.fullmatch(account):
        raise SettingError(f"account={account!r} is no account of AWS; it has 12 digits")
    return Place(service="sqs", name=parts.netloc, account=account, **_shared(options))  # type: ignore[arg-type]


def _bus(parts: SplitResult, url: str) -> Place:
    options = _options(parts, "source")
    name = f"{parts.netloc}{parts.path}".rstrip("/")
    if not _BUS.fullmatch(name):
        raise SettingError(f"{quoted(url)} names no bus; write eventbridge://default?region=eu-central-1")
    source = options.get("source", "oncegate")
    if source.startswith("aws.") or not 0 < len(source) <= 256:
        raise SettingError(f"source={source!r} must be text of 1 to 256 characters, and aws. is Amazon's own")
    return Place(service="events", name=name, source=source, **_shared(options))  # type: ignore[arg-type]


def _options(parts: SplitResult, own: str) -> dict[str, str]:
    options = dict(parse_qsl(parts.query))
    known = (*_COMMON, own)
    if unknown := sorted(options.keys() - set(known)):
        raise SettingError(f"{parts.scheme}:// has no option {unknown[0]!r}; it has {', '.join(known)}")
    return options


def _shared(options: dict[str, str]) -> dict[str, object]:
    endpoint = checked_endpoint(options.get("endpoint"))
    timeout = microseconds(options.get("timeout", "10s"), "timeout") / 1e6
    return {"region": options.get("region"), "endpoint": endpoint, "timeout": timeout}
