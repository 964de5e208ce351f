"""The regions of Genesys Cloud."""

import json

import pytest

from oncegate.errors import SettingError
from oncegate.genesys.regions import REGIONS, place_of
from tests.genesys.facts import FACTS


def test_the_regions_of_the_sdk() -> None:
    """Every region of the official SDK is known, under the same name and address, and no other."""
    regions = json.loads(FACTS.read_text())["x-regions"]
    assert {region: f"https://api.{domain}" for region, domain in REGIONS.items()} == regions


@pytest.mark.parametrize(
    "written", ["mypurecloud.de", "eu-central-1", "https://api.mypurecloud.de", "https://apps.mypurecloud.de/directory"]
)
def test_ways_to_write_a_region(written: str) -> None:
    """A region is its domain, the AWS region, or an address that contains the domain."""
    place = place_of(written)
    assert (place.login, place.api) == ("https://login.mypurecloud.de", "https://api.mypurecloud.de")


def test_a_new_region() -> None:
    """A region that opened after this version has a domain of the usual form, so it can be used."""
    assert place_of("afs1.pure.cloud").login == "https://login.afs1.pure.cloud"


@pytest.mark.parametrize(
    "written", ["mypurecloud.example.com", "pure.cloud", "evil.com/mypurecloud.de", "", "eu", "https://[x", "https://"]
)
def test_other_hosts_are_refused(written: str) -> None:
    """The secret is never sent to a host that is not a region."""
    with pytest.raises(SettingError, match=r"is not a region of Genesys Cloud; use one of: mypurecloud\.com"):
        place_of(written)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("http://example.com", "http://10.0.0.1:80", "https://a:b@host", "nothing"),
        *("https://[x", "https://x:port", "http://127.0.0.1:99999"),
    ],
)
def test_an_emulator_is_on_this_machine(endpoint: str) -> None:
    """Without TLS, an emulator must be on this machine; credentials in the address are refused."""
    with pytest.raises(SettingError, match="is not the address of an emulator"):
        place_of("mypurecloud.de", endpoint)
