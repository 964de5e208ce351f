"""Test a rule on the newest deliveries, on the Keys screen."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncegate.console.pages.keys import keys
from oncegate.console.site import Site
from tests.cli.conftest import RecordedGate
from tests.cli.test_analyze import UPDATES
from tests.console.pages.journals import get, make_site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(RecordedGate(tmp_path)) as recorded:
        for each in UPDATES:
            recorded.run(each)
    with closing(make_site(tmp_path, journal_payloads="24h")) as site:
        yield site


def page_of(site: Site, rule: str, **more: str) -> Any:
    query = "&".join(f"{name}={value}" for name, value in {"rule": rule.replace('"', "%22"), **more}.items())
    return get(keys, site, f"/keys?{query}")


def test_a_rule(site: Site) -> None:
    """The page compares the rule with the key of the settings and the recommended key, on the payloads of the journal:
    the rule merges two updates of one millisecond."""
    shown = page_of(site, 'fields("conversationId","eventTime")', last="2000")
    assert "5 of 1 type" in shown.text
    assert 'fields("conversationId","eventTime") 3 0 0 1 0 0 0' in shown.text
    assert "auto 3 0 0 0 0 0 0" in shown.text
    assert "For all types together, use auto" in shown.text


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("os:getcwd", "A function of a module cannot be tested here"),
        ("fields(", "cannot be parsed"),
        ("nonsense", "nonsense"),
        ("<script>alert(1)</script>", "cannot be parsed"),
        ("x" * 600, "longer than 500 characters"),
    ],
)
def test_an_invalid_rule(site: Site, rule: str, said: str) -> None:
    """An invalid rule is refused with a sentence, and a rule never imports a module."""
    shown = page_of(site, rule)
    (alert,) = shown.find("p", role="alert")
    assert said in shown.text
    assert shown.code == 200
    assert alert["class"] == "problem"


def test_without_payloads(tmp_path: Path) -> None:
    """Without payloads, the page says which setting to change."""
    with closing(RecordedGate(tmp_path, payloads=False)) as recorded:
        recorded.run(UPDATES[0])
    with closing(make_site(tmp_path)) as site:
        assert "The journal holds none: set journal_payloads" in get(keys, site, "/keys").text
    with closing(make_site(tmp_path, journal_payloads="24h")) as site:
        assert "The newest rows of the journal have no payloads." in page_of(site, "auto").text
