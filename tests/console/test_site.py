"""What the pages read and change."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Gate
from oncegate.claims import Reset
from oncegate.console.site import Site
from oncegate.errors import StoreError
from oncegate.settings import Settings, load
from oncegate.stores.memory import MemoryStore


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    url = f"sqlite:///{tmp_path / 'oncegate.db'}"
    with closing(Gate(url)) as gate:
        gate.run({"id": "evt-1"}, lambda _event: None)
    return load(environ={}, flags={"store": url})


@pytest.fixture
def site(settings: Settings) -> Iterator[Site]:
    with closing(Site(settings)) as site:
        yield site


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:////var/lib/crm.db?journal_mode=wal", "crm.db"),
        ("postgresql://ada:secret@db.example/crm?sslmode=require", "postgresql://ada:***@db.example/crm"),
        ("redis://:secret@cache.example:6379/2", "redis://:***@cache.example:6379/2"),
        ("memory://", "memory://"),
    ],
)
def test_the_name_of_the_store_has_no_secret(url: str, name: str) -> None:
    with closing(Site(load(environ={}, flags={"store": url}))) as site:
        assert site.name == name


def test_pages_read_and_do_not_write(site: Site) -> None:
    (entry,) = site.store.browse()

    with pytest.raises(StoreError):
        site.store.reset([Reset(entry.namespace, entry.key)])
    assert site.store.browse() == [entry]


def test_a_change_is_seen_by_pages(site: Site) -> None:
    (entry,) = site.store.browse()

    assert site.writable_store.reset([Reset(entry.namespace, entry.key)]) == [True]

    assert site.store.browse() == []


def test_the_stores_are_opened_once(site: Site) -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(site.store)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert site.writable_store is site.writable_store


def test_a_store_that_was_not_there_is_opened_later(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'late.db'}"
    with closing(Site(load(environ={}, flags={"store": url}))) as site:
        for name in ("store", "writable_store"):
            with pytest.raises(StoreError):
                getattr(site, name)
        assert not (tmp_path / "late.db").exists()
        with closing(Gate(url)) as gate:
            gate.run({"id": "evt-1"}, lambda _event: None)
        assert len(site.store.browse()) == 1


def test_a_store_of_this_process_is_used_for_both(settings: Settings) -> None:
    store = MemoryStore()
    site = Site(settings, lambda: store)

    assert site.store is store
    assert site.writable_store is store


def test_without_a_journal_there_is_a_reason(settings: Settings) -> None:
    with closing(Site(load(environ={}, flags={"store": settings["store"], "journal": "off"}))) as site:
        assert site.journal is None
        assert "because it is off" in site.no_journal


def test_a_journal_that_has_no_row_yet(site: Site) -> None:
    assert site.journal is None
    assert site.no_journal != ""


def test_a_closed_site_opens_its_store_again(site: Site) -> None:
    first = site.store
    site.close()

    assert site.store is not first
