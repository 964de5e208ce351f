"""Settings in the URL of an SQLite store."""

import re
from pathlib import Path

import pytest

from oncegate import open_store
from oncegate.errors import SettingError
from oncegate.stores.sqlite import SqliteStore, read_url

URL_ERRORS = [
    ("sqlite://host/file.db", "names no file"),
    ("sqlite:///", "names no file"),
    ("sqlite://[x", "is not a URL"),
    ("sqlite:///x.db#y", "names no file"),
    ("sqlite:///:memory:", "use memory://"),
    ("sqlite:///x%00.db", "no file can have a NUL (%00) in its name"),
    ("sqlite:///x.db?sync=off", "no option 'sync'"),
    ("sqlite:///x.db?synchronous=off", "it is full or normal"),
    ("sqlite:///x.db?busy_timeout=5", "is not a duration"),
    ("sqlite:///x.db?secure_delete=yes", "secure_delete='yes' is not a choice; it is on or off"),
]


@pytest.mark.parametrize(("url", "message"), URL_ERRORS)
def test_invalid_urls(url: str, message: str) -> None:
    """A URL without a file, or with an unknown option or value, is refused with what to write instead."""
    with pytest.raises(SettingError, match=re.escape(message)):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "path"),
    [("sqlite:///x.db", "x.db"), ("sqlite:////var/x.db", "/var/x.db"), ("sqlite:///a%20b%23.db", "a b#.db")],
)
def test_paths(url: str, path: str) -> None:
    """Three slashes start a relative path and four an absolute one; escaped characters are decoded."""
    assert read_url(url).path == path


@pytest.mark.parametrize(("option", "level"), [("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)])
def test_synchronous_is_full_by_default(tmp_path: Path, option: str, level: int) -> None:
    """An answer means that the data is on disk, unless the user chose otherwise."""
    store = open_store(f"sqlite:///{tmp_path}/store.db{option}")
    assert isinstance(store, SqliteStore)
    assert store._get_connection().execute("PRAGMA synchronous").fetchone() == (level,)
    assert store._get_connection().execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_documented_options() -> None:
    """The page of the store lists all options with their defaults."""
    page = (Path(__file__).parents[3] / "docs" / "stores" / "sqlite.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE))
    defaults = read_url("sqlite:///x.db")
    assert listed == {
        "synchronous": defaults.synchronous,
        "busy_timeout": f"{defaults.busy_timeout // 1_000_000}s",
        "secure_delete": "on" if defaults.secure_delete else "off",
    }
    assert read_url("sqlite:///x.db?" + "&".join(f"{name}={value}" for name, value in listed.items())) == defaults
