"""Store URLs: schemes, checks and classes."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from oncegate.errors import SettingError
from oncegate.stores import check_url, keeps_events, open_read_only, open_store, scheme_of, store_class
from oncegate.stores.memory import MemoryStore
from oncegate.stores.sqlite import SqliteStore
from oncegate.stores.sqlite.read_only import ReadOnlySqliteStore


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://host/db", "unknown store scheme 'mysql'; use one of: memory, sqlite, postgresql"),
        ("sqlite", "'sqlite' is not a store URL; use one of: memory, sqlite"),
        ("", "'' is not a store URL"),
        (5, "the store must be a URL such as sqlite:///oncegate.db, not int"),
        ("memory://x", "the memory store takes no address or options"),
    ],
)
def test_invalid_urls(url: str, message: str) -> None:
    """An invalid URL is refused with what to write instead, whether it is checked or opened."""
    for use in (check_url, open_store):
        with pytest.raises(SettingError, match=re.escape(message)):
            use(url)


def test_a_check_opens_nothing(tmp_path: Path) -> None:
    """A check of a valid URL creates no file and connects to no server."""
    check_url(f"sqlite:///{tmp_path}/store.db")
    check_url("redis://127.0.0.1:1/0")
    assert list(tmp_path.iterdir()) == []


def test_classes() -> None:
    """The scheme selects the class of the store."""
    assert (store_class("memory://"), store_class("sqlite:///x.db")) == (MemoryStore, SqliteStore)
    assert scheme_of("redis+cluster://host") == "redis+cluster"


@pytest.mark.parametrize(
    ("url", "keeps"),
    [("memory://", False), ("sqlite:///x.db", True), ("postgresql://host/db", True), ("redis://host", False)],
)
def test_which_stores_keep_events(url: str, keeps: bool) -> None:
    """Stores with an inbox keep admitted events when the process ends; the memory store does not."""
    assert keeps_events(url) is keeps


def test_read_only(tmp_path: Path) -> None:
    """`open_read_only` opens a file to read only, and refuses memory, which no other process can read."""
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    with closing(open_read_only(url)) as store:
        assert isinstance(store, ReadOnlySqliteStore)
    with pytest.raises(SettingError, match="lives within one process; use a store that other processes can open"):
        open_read_only("memory://")
