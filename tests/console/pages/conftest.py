"""The servers, journals and sites that screens are tested on."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncegate.console.site import Site
from oncegate.journal import Journal
from tests.console.pages.journals import make_journal, make_site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with the store and the journal of an empty folder."""
    with closing(make_site(tmp_path)) as site:
        yield site


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The journal of that folder, to write to."""
    with closing(make_journal(tmp_path)) as journal:
        yield journal
