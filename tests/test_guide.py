"""The guides are true: their Python runs, and says what they say it does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from oncegate import keys, lifecycles, timelines

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = [DOCS / "guide" / "keys.md", DOCS / "sources.md"]


def output(page: Path) -> str:
    code = "\n".join(re.findall(r"```python\n(.+?)```", page.read_text(), re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_the_code_runs(page: Path) -> None:
    """Every block of Python, from top to bottom."""
    assert output(page)


def test_what_each_key_loses() -> None:
    """The numbers of the guide are those that its example prints."""
    counted = dict(re.findall(r"(.+): (\d+) events", output(GUIDES[0])))
    assert list(counted.values()) == ["4", "5", "2", "2", "1"]


def test_every_strategy_is_in_the_guide() -> None:
    """Each strategy that there is has its row."""
    page = GUIDES[0].read_text()
    for name in ("auto", "event_id", "webhook_id", "content", "fields", "once_per", "first", "state_change"):
        assert callable(getattr(keys, name))
        assert f"| `keys.{name}" in page


def test_every_rank_is_in_the_guide() -> None:
    """The table of ranks is that of the code, and what timelines promise is said in the words of the code."""
    page = GUIDES[0].read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE))
    ranks = {state: int(rank) for rank, states in rows.items() for state in re.findall(r"`([^`]+)`", states)}
    assert ranks == lifecycles.RANKS
    assert rows[str(lifecycles.UNKNOWN)].endswith(", and any other")
    promises = [line for line in (timelines.__doc__ or "").splitlines() if line.startswith("- ")]
    assert len(promises) == 2
    assert all(promise in page for promise in promises)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link names a file that is there, and a heading that it has."""
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        name, _, heading = link.partition("#")
        headings = re.findall(r"^#+ (.+)$", (page.parent / name if name else page).read_text(), re.MULTILINE)
        assert heading in {re.sub(r"[^a-z0-9_ -]", "", each.lower()).replace(" ", "-") for each in headings} | {""}
