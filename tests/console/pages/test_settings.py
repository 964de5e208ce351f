"""The Settings screen: values, origins, routes, masked secrets, and what the doctor finds."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncegate.console.pages.settings import settings
from oncegate.console.site import Site
from oncegate.settings import load
from oncegate.stores import open_store
from tests.console.pages.journals import Shown, get, make_site

FILE = """
store = "sqlite:///{folder}/oncegate.db"
retention = "3d"
previous = "postgresql://app:hunter2@db/old?table=seen&key={{id}}"

[serve]
port = 9000

[route.genesys]
signature = "none"
key = "fields('id')"
handler = "log"

[route.crm]
signature = "none"
handler = "log"
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    file = tmp_path / "oncegate.toml"
    file.write_text(FILE.format(folder=tmp_path))
    loaded = load(file, environ={"ONCEGATE_LEASE": "45s"}, flags={"max_attempts": 7})
    with closing(Site(loaded, loaded.open_store)) as site:
        yield site


def section(shown: Shown, start: str, end: str) -> str:
    return shown.text.split(start, 1)[1].split(end, 1)[0]


def test_values_and_their_origins(site: Site, tmp_path: Path) -> None:
    shown = get(settings, site, "/settings")
    chosen = section(shown, "Settings that are set", "Route genesys")

    assert f"retention 3d {tmp_path}/oncegate.toml How long" in chosen
    assert "lease 45s ONCEGATE_LEASE" in chosen
    assert "max_attempts 7 --max-attempts" in chosen
    assert f"serve.port 9000 {tmp_path}/oncegate.toml" in chosen
    assert "namespace" not in chosen
    assert "Defaults of [work]" in shown.text


def test_secrets_are_masked(site: Site) -> None:
    shown = get(settings, site, "/settings")

    assert "hunter2" not in shown.text
    assert "postgresql://app:***@db/old" in shown.text


def test_what_is_in_force_for_a_route(site: Site, tmp_path: Path) -> None:
    shown = get(settings, site, "/settings")
    genesys = section(shown, "Route genesys", "Route crm")

    assert f"key fields('id') {tmp_path}/oncegate.toml [route.genesys]" in genesys
    assert f"handler log {tmp_path}/oncegate.toml [route.genesys]" in genesys
    own, inherited = genesys.split("inherited settings and defaults")
    assert "retention 3d" not in own
    assert "retention 3d" in inherited
    assert "serve.port" not in genesys


def test_how_long_an_event_is_retried(site: Site) -> None:
    text = get(settings, site, "/settings").text

    assert "An event that always fails becomes a dead letter after 7 attempts" in text


def test_all_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load(environ={})
    with closing(Site(loaded, loaded.open_store)) as site:
        assert "Every setting has its default." in get(settings, site, "/settings").text


def test_the_doctor_runs_only_when_asked(site: Site) -> None:
    shown = get(settings, site, "/settings")

    assert "What the doctor finds" not in shown.text
    assert "/console/settings?check=1" in shown.links


def test_what_the_doctor_finds(site: Site, tmp_path: Path) -> None:
    site.settings.open_store().close()
    os.chmod(tmp_path / "oncegate.db", 0o644)  # that is what the doctor reports
    shown = get(settings, site, "/settings?check=1")
    found = section(shown, "What the doctor finds", "Settings that are set")

    assert "store.readable" in found or "chmod" in found
    assert "could not be checked: " in found
    commands = [given["data-copy"] for given in shown.find("button") if "data-copy" in given]
    assert any(command.startswith("chmod ") for command in commands)


def test_a_sound_store_has_no_finding(tmp_path: Path) -> None:
    with closing(make_site(tmp_path)) as site:
        open_store(site.settings["store"]).close()
        assert "No problem found: " in get(settings, site, "/settings?check=1").text


def test_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    with closing(make_site(tmp_path, store="redis://127.0.0.1:1", journal="off")) as site:
        shown = get(settings, site, "/settings?check=1")

    assert "error" in shown.text
    assert "127.0.0.1:1" in shown.text


def test_a_damaged_store(tmp_path: Path) -> None:
    (tmp_path / "oncegate.db").write_bytes(b"not a database" * 1_000)
    with closing(make_site(tmp_path)) as site:
        assert "is not an SQLite file" in get(settings, site, "/settings?check=1").text


def test_dynamodb_is_not_asked(tmp_path: Path) -> None:
    """The page reads no table: it would need permissions, and could wait for AWS."""
    with closing(make_site(tmp_path, store="dynamodb://claims?region=eu-central-1")) as site:
        shown = get(settings, site, "/settings?check=1")

    assert "no table (3)" in shown.text
    assert "oncegate doctor --name NAME" in shown.text
    assert 'The page "The doctor" in the documentation' in shown.text


def test_hostile_values_are_shown_as_text(tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    flags = {"store": "sqlite:///" + str(folder / "oncegate.db").replace("<", "%3C"), "serve.handler": "log"}
    loaded = load(environ={}, flags=flags)
    with closing(Site(loaded, loaded.open_store)) as site:
        get(settings, site, "/settings?check=<b>").check_nothing_escapes()
