"""The table of URL schemes of old places."""

import pytest

from oncegate.errors import SettingError
from oncegate.gate.options import OPTIONS
from oncegate.previous import _PLACES, open_place
from oncegate.previous.base import read_place_url


def test_the_option_has_the_same_schemes() -> None:
    """The option `previous` accepts the schemes that can be opened."""
    assert set(OPTIONS["previous"].choices) == _PLACES.keys()


@pytest.mark.parametrize("url", ["memory://", "redis", "https://u:hunter2@h/x", "sqlite", ""])
def test_an_unknown_scheme(url: str) -> None:
    """A URL of another scheme is refused without its secrets."""
    with pytest.raises(SettingError, match="is not the URL of an old place; use one of: redis") as caught:
        open_place(read_place_url(url))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://h?key=a:{id}&table=x", "are for tables"),
        ("redis://h?key=a:{id}&key=b:{id}", "has one key="),
        ("redis://h?nonsense=1&key=a:{id}", "no option 'nonsense'"),
        ("dynamodb://T?table=x", "table= is for SQL"),
        ("dynamodb://Dedup?key={id}", "names no column"),
        ("sqlite:///a.db", "needs table="),
        ("sqlite:///a.db?table=a..b", "is not the name of a table"),
        ("postgresql://h/db?table=a%00b&columns=a", "contains a NUL character"),
        ("postgresql://h/db?table=a&columns=a&key=b:{b}", "not both"),
    ],
)
def test_invalid_options(url: str, problem: str) -> None:
    """An option that does not fit the scheme is refused, without a connection."""
    with pytest.raises(SettingError, match=problem):
        open_place(read_place_url(url))
