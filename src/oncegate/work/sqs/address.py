"""Where a queue is. Credentials are never in it: they come from where AWS's tools look."""

import re
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from oncegate.aws.endpoints import checked_endpoint
from oncegate.errors import SettingError
from oncegate.masking import quoted

OPTIONS: Final = ("region", "endpoint")
_SCHEME: Final = "sqs://"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_URL: Final = re.compile(r"https?://[^/?#@\s]+/[^?#@\s]*")
_AWS: Final = re.compile(r"(?:sqs\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.(?:queue\.)?amazonaws\.com(?:\.cn)?")


class Address(Struct, frozen=True):
    """A queue by its name, or by its URL if that is known."""

    name: str
    url: str | None = None
    region: str | None = None
    endpoint: str | None = None

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")

    @property
    def place(self) -> str:
        """Where it is, for a sentence."""
        where = self.endpoint or (f"region {self.region}" if self.region else None)
        return f"the SQS queue {self.name} ({where})" if where else f"the SQS queue {self.name}"


def read_address(written: str) -> Address:
    """`sqs://NAME`, `sqs://https://…` or the URL that AWS shows, with `?region=` and `&endpoint=`."""
    bare, _, query = written.removeprefix(_SCHEME).partition("?")
    options = dict(parse_qsl(query))
    if unknown := sorted(options.keys() - set(OPTIONS)):
        raise SettingError(f"the address of a queue has no option {unknown[0]!r}; it has {' and '.join(OPTIONS)}")
    region, endpoint = options.get("region"), checked_endpoint(options.get("endpoint"))
    if _URL.fullmatch(bare):
        return _by_url(bare, region, endpoint)
    if not written.startswith(_SCHEME) or not _NAME.fullmatch(bare):
        raise SettingError(
            f"{quoted(written)} names no queue; write sqs://NAME?region=eu-central-1, or the URL that AWS shows for it"
        )
    return Address(bare, None, region, endpoint)


def _by_url(url: str, region: str | None, endpoint: str | None) -> Address:
    """A URL of AWS's has the region in it; any other is of an emulator or a proxy, and says where to ask."""
    parts = urlsplit(url)
    name = parts.path.rpartition("/")[2]
    if not _NAME.fullmatch(name):
        raise SettingError(f"{quoted(url)} does not end with the name of a queue; copy the URL that AWS shows for it")
    aws = _AWS.fullmatch(parts.netloc)
    if aws is not None:
        return Address(name, url, region or aws[1], endpoint)
    return Address(name, url, region, endpoint or f"{parts.scheme}://{parts.netloc}")
