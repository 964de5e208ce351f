"""Settings as the parts of a service."""

import pytest

from oncegate.service.config import TrustedProxies, networks


class TestTrustedProxies:
    @pytest.mark.parametrize(
        ("client", "said", "sender"),
        [
            ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
            ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
            ("10.0.0.1", "6.6.6.6, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
            ("10.0.0.1", "6.6.6.6, not an address", "10.0.0.1"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("::1", "2001:db8::1", "2001:db8::1"),
        ],
    )
    def test_forwarded_for(self, client: str, said: str, sender: str) -> None:
        """X-Forwarded-For counts only from trusted proxies, and only up to the first address that is not one."""
        proxies = TrustedProxies(networks(["10.0.0.0/8", "::1"], "here"))
        headers = [(b"x-forwarded-for", said.encode())]
        assert proxies.sender({"client": (client, 1), "headers": headers}) == sender

    def test_no_proxy_by_default(self) -> None:
        """Without configured proxies, X-Forwarded-For is ignored, even from this machine."""
        headers = [(b"x-forwarded-for", b"6.6.6.6")]
        assert TrustedProxies().sender({"client": ("127.0.0.1", 1), "headers": headers}) == "127.0.0.1"
