"""Addresses that a sink may connect to, and pins of certificates."""

import ssl
from ipaddress import IPv4Address, ip_address, ip_network

import pytest

from oncegate.errors import SettingError
from oncegate.sinks.network import Network, NotAllowed, format_pin, is_not_unicast, is_private, parse_pins, pin_of
from tests.sinks.receiver import CERTIFICATES, SERVER_PIN

# The entries of IANA's registries of special-purpose addresses for IPv4 and IPv6, but for ::ffff:0:0/96, 64:ff9b::/96
# and 2002::/16, which are checked by the IPv4 address in them. The last line has multicast, formerly special and
# unassigned ranges.
REGISTRIES = [
    *("0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32"),
    *("192.0.0.171/32", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32"),
    *("192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"),
    *("255.255.255.255/32", "::1/128", "::/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23"),
    *("2001::/32", "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48"),
    *("2001:10::/28", "2001:20::/28", "2001:30::/28", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20", "5f00::/16"),
    *("fc00::/7", "fe80::/10"),
    *("224.0.0.0/4", "ff00::/8", "fec0::/10", "::/96", "::ffff:0:0:0/96", "200::/7", "4000::/3", "e000::/4"),
]


class TestAddresses:
    @pytest.mark.parametrize(
        "address",
        [
            *("10.1.2.3", "172.16.0.1", "192.168.1.1", "127.9.9.9", "169.254.169.254", "100.64.0.1", "192.0.2.1"),
            *("::1", "::", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"),
        ],
    )
    def test_what_is_private(self, address: str) -> None:
        """An address that is not on the public Internet is private, in every spelling."""
        assert is_private(ip_address(address))

    def test_what_is_not(self) -> None:
        """Public addresses are not private, and multicast and unspecified addresses are not unicast."""
        assert not any(
            is_private(ip_address(each)) for each in ("93.184.215.14", "2606:4700::1111", "64:ff9b::808:808")
        )
        assert all(is_not_unicast(ip_address(each)) for each in ("224.0.0.1", "ff0e::1", "::", "::ffff:239.1.1.1"))
        assert not is_not_unicast(ip_address("10.0.0.1"))

    @pytest.mark.parametrize("block", REGISTRIES)
    def test_special_ranges(self, block: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first, a middle and the last address of every special range are rejected, also if an IPv6 address embeds
        them, and a name that resolves to one is not connected to."""
        network = ip_network(block)
        middle = network[network.num_addresses // 2]
        for address in (network[0], middle, network[-1]):
            spelt = [str(address)]
            if isinstance(address, IPv4Address):
                high, low = address.packed[:2].hex(), address.packed[2:].hex()
                spelt += [f"::ffff:{address}", f"64:ff9b::{address}", f"2002:{high}:{low}::1", f"::{address}"]
            for each in spelt:
                assert is_private(ip_address(each)), each
                monkeypatch.setattr("socket.getaddrinfo", lambda *_, each=each, **__: [(0, 1, 6, "", (each, 443))])
                with pytest.raises(NotAllowed, match=r"which is (a private address|not the address of a single host)"):
                    Network(allow_private=False, secure=True, pins=())._resolve("sink.example", 443)

    @pytest.mark.parametrize(
        "address",
        [
            *("1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0"),
            *("191.255.255.255", "192.0.1.0", "192.0.3.0", "192.88.98.255", "192.88.100.0", "198.17.255.255"),
            *("198.20.0.0", "203.0.114.0", "223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"),
            *("2001:200::1", "2001:4860:4860::8888", "2001:db7:ffff::1", "2620:4f:7fff::1", "3ffe:ffff::1", "2a00::1"),
        ],
    )
    def test_beside_special_ranges(self, address: str) -> None:
        """An address next to a special range, or one that embeds a public address, is public."""
        assert not is_private(ip_address(address))
        assert not is_not_unicast(ip_address(address))


class TestPins:
    def test_both_forms(self) -> None:
        """A pin in curl's form and the same hash in hexadecimal digits are equal."""
        (pin,) = parse_pins([SERVER_PIN])
        assert parse_pins([pin.hex(), f" {SERVER_PIN} "]) == {pin}
        assert format_pin(pin) == SERVER_PIN

    def test_certificate(self) -> None:
        """The pin of a certificate is the hash that openssl prints for its public key."""
        text = (CERTIFICATES / "server.pem").read_text()
        pem = text[text.index("-----BEGIN CERTIFICATE") :].split("-----END CERTIFICATE-----")[0]
        assert format_pin(pin_of(ssl.PEM_cert_to_DER_cert(f"{pem}-----END CERTIFICATE-----"))) == SERVER_PIN

    @pytest.mark.parametrize("text", ["", "sha256//", "ab", "g" * 64, "sha256//AAAA"])
    def test_invalid(self, text: str) -> None:
        """A text that is not a SHA-256 hash is rejected."""
        with pytest.raises(SettingError, match="is not the SHA-256 of a public key"):
            parse_pins([text])
