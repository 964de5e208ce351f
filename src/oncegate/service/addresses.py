"""Addresses: who is at the other end, and who is believed when they say that it is somebody else."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from oncegate.errors import SettingError

Network = IPv4Network | IPv6Network


def networks(written: Sequence[str], where: str) -> list[Network]:
    """Addresses and networks as settings have them."""
    try:
        return [ip_network(each) for each in written]
    except ValueError as error:
        raise SettingError(f"{where}: {error}; write an address or a network such as 10.0.0.0/8") from error


class Proxies:
    """Those whose `X-Forwarded-For` is believed; what anybody else says there is nothing but text."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = tuple(networks)

    def sender(self, scope: dict[str, Any]) -> str:
        """The address of the sender: the nearest that is not a proxy of ours."""
        client = scope.get("client")
        nearest = client[0] if client else ""
        if not self._networks or not self._ours(nearest):
            return nearest
        said = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for").decode("latin-1")
        for address in reversed([part.strip() for part in said.split(",") if part.strip()]):
            if not _is_address(address):
                break
            nearest = address
            if not self._ours(address):
                break
        return nearest

    def _ours(self, address: str) -> bool:
        return _is_address(address) and any(ip_address(address) in network for network in self._networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
