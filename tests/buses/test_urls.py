"""URLs of buses, and the files that they name."""

from pathlib import Path

import pytest

from oncegate.buses.urls import BusUrl, bus_name, named_files, read_secret, read_url, tls_context
from oncegate.errors import SettingError


def read(url: str) -> BusUrl:
    known = ("group", "ca", "certificate", "certificate_key", "password_file")
    return read_url(url, "Bus", "bus+tls", 1234, known, "write this")


def test_the_parts() -> None:
    """Login and options are decoded. The path is not, because a name may contain a slash."""
    url = read("bus://ann:p%40ss@Host/a%2Fb?group=c%20d")
    assert (url.is_encrypted, url.host, url.port, url.path) == (False, "host", 1234, "a%2Fb")
    assert (url.user, url.password, dict(url.options)) == ("ann", "p@ss", {"group": "c d"})
    assert (read("bus://h:5/x").server, read("bus://[::1]/x").server) == ("h:5", "[::1]:1234")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("bus:///x", "the Bus URL has no host; write this"),
        ("bus://h:x/", "the host or the port of the Bus URL is not valid; write this"),
        ("bus://h/a@b", "a user, a password or a name in a Bus URL must be percent-encoded .*; write this"),
        ("bus://h/?colour=red", "unknown option 'colour' in a Bus URL; use group, ca"),
    ],
)
def test_an_invalid_url(url: str, problem: str) -> None:
    """The message says what is wrong and what to write."""
    with pytest.raises(SettingError, match=problem):
        read(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("bus://h/x?ca=/ca.pem", r"the option ca of a Bus URL is for TLS; write 'bus\+tls://"),
        ("bus://ann@h/x?certificate=/c.pem", "the option certificate of a Bus URL is for TLS"),
        ("bus+tls://h/x?certificate_key=/k.pem", "certificate_key of a Bus URL needs the option certificate"),
        ("bus+tls://h/x?password_file=/p", "the option password_file of a Bus URL needs a user"),
    ],
)
def test_an_option_without_effect(url: str, problem: str) -> None:
    """An option that should protect the connection and would have no effect is refused."""
    with pytest.raises(SettingError, match=problem):
        read(url)


def test_an_option_without_a_value() -> None:
    """An option without a value is an empty value, and not ignored."""
    assert read("bus+tls://h/x?ca=").options == {"ca": ""}


@pytest.mark.parametrize(
    "login", ["ann:hunter?2", "ann:hunter/2", "ann:1/hunter", "ann:1?hunter=2", "ann:1#hunter", "ann:hunter\u2100"]
)
def test_a_password_that_is_not_encoded(login: str) -> None:
    """No part of the password is quoted, wherever its special characters divide the URL."""
    with pytest.raises(SettingError) as raised:
        read(f"bus://{login}@h/x?group=crm")
    assert "hunter" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert "percent-encode" in str(raised.value)


def test_a_secret(tmp_path: Path) -> None:
    """A file holds the secret, with or without a line break at its end."""
    (tmp_path / "password").write_text("s3cret\n")
    assert read_secret(str(tmp_path / "password")) == "s3cret"


def test_tls() -> None:
    """The certificate of the server is verified."""
    assert tls_context({}).check_hostname


@pytest.mark.parametrize("options", [{"ca": "/no/such"}, {"certificate": __file__}])
def test_a_file_that_cannot_be_used(options: dict[str, str]) -> None:
    """A file that is missing or has other content is an error of one sentence."""
    with pytest.raises(SettingError, match="the Bus URL names a file that cannot be used: "), named_files("Bus"):
        tls_context(options)


@pytest.mark.parametrize("name", ["ca", "certificate"])
def test_a_missing_file(name: str) -> None:
    """The error names the file and says why it cannot be read."""
    with pytest.raises(SettingError, match=r"used: /no/such: No such file or directory$"), named_files("Bus"):
        tls_context({name: "/no/such"})


def test_a_name() -> None:
    """A name that is missing and a name that the bus does not allow are two errors."""
    assert bus_name("calls", "Bus queue", "write this", is_valid=True) == "calls"
    with pytest.raises(SettingError, match="the URL has no name of a Bus queue; write this"):
        bus_name("", "Bus queue", "write this", is_valid=False)
    with pytest.raises(SettingError, match=r"'a b' is not the name of a Bus queue; write this"):
        bus_name("a b", "Bus queue", "write this", is_valid=False)
