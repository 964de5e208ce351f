"""The parameters that select dead letters."""

import pytest

from oncegate.claims import DEAD, EventSummary, Record
from oncegate.console.dead_letter_query import dead_letter_query
from oncegate.inspection.dead_letter_groups import group_id
from oncegate.settings import examine
from oncegate.stores.base import Entry

SETTINGS = examine(flags={}, environ={})[0]
HOUR = 3_600_000_000


def entry(error: str, since: int = HOUR) -> Entry:
    record = Record(DEAD, b"", 1, 0, 1, b"", None, EventSummary("plain", "call"), since, error=error)
    return Entry("default", b"k" * 16, record)


def test_the_parameters() -> None:
    """Empty and unknown parameters are left out, so that links stay short."""
    query = dead_letter_query(SETTINGS, {"type": "call", "error": "", "before": "x", "action": "drop"})
    assert (query.parameters, query.is_filtered, query.problem) == ({"type": "call"}, True, None)
    assert not dead_letter_query(SETTINGS, {"before": "x"}).is_filtered


@pytest.mark.parametrize(
    "given", [{"older": "soon"}, {"newer": "-1h"}, {"key": "xyz"}, {"key": "00"}, {"until": "now"}, {"key": "é" * 32}]
)
def test_invalid_parameters(given: dict[str, str]) -> None:
    """An invalid parameter is a problem. It does not select everything."""
    assert (dead_letter_query(SETTINGS, given).problem or "").startswith("Invalid filter: ")


def test_groups_and_times() -> None:
    """A group selects errors that differ only in ids and numbers. `until` excludes dead letters that are newer."""
    group = group_id(entry("no case 1"))
    query = dead_letter_query(SETTINGS, {"group": group, "until": str(HOUR)})
    assert query.matches(entry("no case 2"))
    assert not query.matches(entry("no account"))
    assert not query.matches(entry("no case 2", HOUR + 1))


def test_the_text_of_the_record() -> None:
    """The record of an action says what was selected."""
    given = {"namespace": "crm", "type": "call", "older": "2h", "group": "x"}
    assert dead_letter_query(SETTINGS, {}).text(None) == "all"
    assert dead_letter_query(SETTINGS, {"group": "x"}).text(entry("no case 1")) == "error like no case …"
    found = dead_letter_query(SETTINGS, given).text(entry("no case 1"))
    assert found == "namespace crm, type call, older than 2 h, error like no case …"
