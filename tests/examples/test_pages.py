"""The pages of the examples are correct: their commands exist and their links work."""

import re
from pathlib import Path

import pytest

from tests import test_docs, test_guide
from tests.examples.readme import EXAMPLES

PAGES = sorted(EXAMPLES.rglob("README.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_commands_exist(page: Path) -> None:
    """Every `oncegate` command and option on the page exists."""
    text = page.read_text()
    typed = re.findall(r"^ {4}(oncegate .+?)(?: > .+)?$", text, re.MULTILINE) + re.findall(
        r"`(oncegate \w+ [^`]+)`", text
    )
    assert typed
    for command in typed:
        test_docs.test_commands_exist(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link names an existing file and heading."""
    test_guide.test_links_lead_somewhere(page)
