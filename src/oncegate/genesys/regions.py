"""The regions of Genesys Cloud, and the addresses of its login and its API."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from oncegate.errors import SettingError
from oncegate.settings import Settings
from oncegate.text import quoted

# The domain of each region, by the name of the AWS region.
REGIONS: Final[Mapping[str, str]] = {
    "us-east-1": "mypurecloud.com",
    "us-east-2": "use2.us-gov-pure.cloud",
    "us-west-2": "usw2.pure.cloud",
    "ca-central-1": "cac1.pure.cloud",
    "mx-central-1": "mxc1.pure.cloud",
    "sa-east-1": "sae1.pure.cloud",
    "eu-west-1": "mypurecloud.ie",
    "eu-west-2": "euw2.pure.cloud",
    "eu-central-1": "mypurecloud.de",
    "eu-central-2": "euc2.pure.cloud",
    "eusc-de-east-1": "edee1.eusc-pure.cloud",
    "me-central-1": "mec1.pure.cloud",
    "ap-south-1": "aps1.pure.cloud",
    "ap-southeast-1": "apse1.pure.cloud",
    "ap-southeast-2": "mypurecloud.com.au",
    "ap-northeast-1": "mypurecloud.jp",
    "ap-northeast-2": "apne2.pure.cloud",
    "ap-northeast-3": "apne3.pure.cloud",
}
# A new region has a domain of this form. Another domain is refused: the secret must not be sent to a wrong host.
_NEW_DOMAIN: Final = re.compile(r"[a-z]{2,6}[0-9]\.(?:pure|us-gov-pure|eusc-pure)\.cloud")
_PREFIXES: Final = ("api.", "login.", "apps.")
_ENDPOINT: Final = re.compile(r"http://(?:127\.0\.0\.1|localhost|\[::1\]):\d+|https://[^/?#@\s]+")


class GenesysPlace(Struct, frozen=True):
    """Where requests are sent. `name` is the domain of the region, for messages."""

    name: str
    login: str
    api: str


def place_of(region: str, endpoint: str | None = None) -> GenesysPlace:
    """Returns the addresses of a region, or of an emulator at `endpoint`. The region is a domain such as
    mypurecloud.de, or the name of the AWS region. Raises SettingError if the region or the endpoint is invalid."""
    if endpoint is not None:
        return _emulator(endpoint)
    written = region.strip().lower()
    host = _host_of(written) if "://" in written else written
    for prefix in _PREFIXES:
        host = host.removeprefix(prefix)
    domain = REGIONS.get(host, host)
    if domain not in REGIONS.values() and not _NEW_DOMAIN.fullmatch(domain):
        known = ", ".join(REGIONS.values())
        raise SettingError(
            f"{quoted(region)} is not a region of Genesys Cloud; use one of: {known}; or the AWS region, such as"
            " eu-central-1"
        )
    return GenesysPlace(domain, f"https://login.{domain}", f"https://api.{domain}")


def configured_place(settings: Settings) -> GenesysPlace | None:
    """Returns the addresses that the settings `[genesys]` select; None if they select none. Raises SettingError if they
    are invalid."""
    region, endpoint = settings["genesys.region"], settings["genesys.endpoint"]
    if region is None and endpoint is None:
        return None
    with settings.placed("genesys.region" if endpoint is None else "genesys.endpoint"):
        return place_of(region or "", endpoint)


def _emulator(endpoint: str) -> GenesysPlace:
    address = endpoint.rstrip("/")
    if not _ENDPOINT.fullmatch(address) or not _host_of(address):
        raise SettingError(
            f"{quoted(endpoint)} is not the address of an emulator; write it like http://127.0.0.1:8085. Only this"
            " machine may be addressed without https://, because the secret is sent there"
        )
    return GenesysPlace(address, address, address)


def _host_of(address: str) -> str:
    """The host of an address; empty if the host or the port is not valid."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return ""
    return host or ""
