"""Settings as the parts of a service."""

import subprocess
import sys
from pathlib import Path

import pytest

from oncegate.errors import SettingError
from oncegate.service.config import TrustedProxies, check_service, networks, tls_of
from oncegate.settings import Settings, load
from oncegate.settings.routes import name_of, routes_of


class TestTrustedProxies:
    @pytest.mark.parametrize(
        ("client", "forwarded", "sender"),
        [
            ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
            ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
            ("10.0.0.1", "6.6.6.6, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
            ("10.0.0.1", "6.6.6.6, not an address", "10.0.0.1"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("::1", "2001:db8::1", "2001:db8::1"),
        ],
    )
    def test_forwarded_for(self, client: str, forwarded: str, sender: str) -> None:
        """X-Forwarded-For counts only from trusted proxies, and only up to the first address that is not one."""
        proxies = TrustedProxies(networks(["10.0.0.0/8", "::1"], "here"))
        headers = [(b"x-forwarded-for", forwarded.encode())]
        assert proxies.sender({"client": (client, 1), "headers": headers}) == sender

    def test_no_proxy_by_default(self) -> None:
        """Without configured proxies, X-Forwarded-For is ignored, even from this machine."""
        headers = [(b"x-forwarded-for", b"6.6.6.6")]
        assert TrustedProxies().sender({"client": ("127.0.0.1", 1), "headers": headers}) == "127.0.0.1"

    @pytest.mark.parametrize(
        ("scheme", "client", "proto", "expected"),
        [
            ("https", "192.0.2.1", b"http", True),
            ("http", "10.0.0.1", b"https", True),
            ("http", "10.0.0.1", b"HTTPS", True),
            ("http", "10.0.0.1", b"http", False),
            ("http", "10.0.0.1", b"", False),
            ("http", "192.0.2.1", b"https", False),
        ],
    )
    def test_https(self, scheme: str, client: str, proto: bytes, expected: bool) -> None:
        """X-Forwarded-Proto counts only from trusted proxies."""
        proxies = TrustedProxies(networks(["10.0.0.0/8"], "here"))
        scope = {"scheme": scheme, "client": (client, 1), "headers": [(b"x-forwarded-proto", proto)]}
        assert proxies.is_https(scope) is expected
        assert TrustedProxies().is_https(scope) is (scheme == "https")
        assert not proxies.is_https({"scheme": "http", "client": None, "headers": scope["headers"]})


def settings(folder: Path, toml: str) -> Settings:
    (folder / "oncegate.toml").write_text(toml)
    return load(folder / "oncegate.toml", environ={})


@pytest.mark.parametrize("module", ["oncegate.service.config", "oncegate.cli.config", "oncegate.cli.serve"])
def test_needs_no_serve_extra(module: str) -> None:
    """Settings can be checked without the serve extra: `oncegate config` must work without it, and `oncegate serve`
    must be able to name the missing extra."""
    missing = "".join(f"sys.modules[{name!r}] = None; " for name in ("uvicorn", "httptools", "prometheus_client"))
    subprocess.run([sys.executable, "-c", f"import sys; {missing}import {module}"], check=True)


def test_routes_and_names(tmp_path: Path) -> None:
    """/events is served if there is no other route, or if its signature is set."""
    route = '[route.crm]\nsignature = "none"\n'
    assert list(routes_of(settings(tmp_path, ""))) == ["/events"]
    assert list(routes_of(settings(tmp_path, route))) == ["/events/crm"]
    both = routes_of(settings(tmp_path, f'[serve]\nsignature = "none"\n{route}'))
    assert sorted(map(name_of, both)) == ["crm", "default"]


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('[serve]\nmode = "inline"', "POST /events has no handler to run while the sender waits"),
        ('store = "redis://h"', r"redis:// cannot store events until they are run; .*--serve-mode inline, or mode"),
        ('mode = "mark_first"', r"serve.mode=inbox: .*; or choose --serve-mode inline, or mode"),
    ],
)
def test_check_service(tmp_path: Path, toml: str, message: str) -> None:
    """A service that could neither run nor store events is rejected without opening its store."""
    with pytest.raises(SettingError, match=message):
        check_service(settings(tmp_path, toml))
    assert [file.name for file in tmp_path.iterdir()] == ["oncegate.toml"]


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('tls_cert = "a.pem"', "TLS needs serve.tls_key too"),
        ('tls_key = "a.pem"', "TLS needs serve.tls_cert too"),
        ('tls_cert = "a.pem"\ntls_key = "b.pem"', "cannot use a.pem and b.pem: No such file"),
    ],
)
def test_tls_errors(tmp_path: Path, toml: str, message: str) -> None:
    """A TLS setting that cannot work is an error that names the files or the missing setting."""
    with pytest.raises(SettingError, match=message):
        tls_of(settings(tmp_path, f"[serve]\n{toml}"))
