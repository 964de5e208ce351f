"""Parts of pages: hostile text, empty values and the state of a list."""

import htpy as h
import pytest

from oncegate.console import components as c
from oncegate.console.requests import Request

HOSTILE = "<img src=x onerror=alert(1)>\"'"
MOMENT = 1_763_430_000_123_456


def listed(**query: str) -> Request:
    return Request("GET", "/events", query, {})


def test_text_is_escaped() -> None:
    parts = [
        c.badge(HOSTILE, HOSTILE),
        c.short_key(HOSTILE, HOSTILE),
        c.table(HOSTILE, [HOSTILE], [[HOSTILE]]),
        c.facts([(HOSTILE, HOSTILE)]),
        c.card(HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        c.panel(HOSTILE, HOSTILE),
        c.notice(HOSTILE),
        c.problem(HOSTILE),
        c.copy_button(HOSTILE, HOSTILE),
        c.progress(1, 2, HOSTILE),
        c.empty(HOSTILE, HOSTILE),
        c.disabled(HOSTILE),
    ]

    for text in map(str, parts):
        assert "<img" not in text
        assert "&lt;img" in text


def test_a_time_is_in_utc() -> None:
    assert str(c.moment(MOMENT)) == '<time datetime="2025-11-18T01:40:00.123456Z">2025-11-18 01:40:00.123Z</time>'
    assert c.moment(None) is None


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        ("in_flight", None, '<span class="badge status-in-flight">in flight</span>'),
        ("dead letter", None, '<span class="badge status-dead-letter">dead letter</span>'),
        ("duplicate", "redelivery", '<span class="badge status-duplicate">duplicate · redelivery</span>'),
    ],
)
def test_a_badge_has_text_and_a_class(status: str, kind: str | None, expected: str) -> None:
    assert str(c.badge(status, kind)) == expected


def test_each_cell_has_the_name_of_its_column() -> None:
    text = str(c.table("Events", ["Id", "Status"], [["evt-1", h.b["x"]]]))

    assert '<td data-label="Id">evt-1</td><td data-label="Status"><b>x</b></td>' in text
    assert '<caption class="hidden">Events</caption>' in text
    assert text.count('<th scope="col">') == 2


def test_a_row_with_another_number_of_cells_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        str(c.table("Events", ["Id"], [["a", "b"]]))


def test_facts_without_a_value_are_left_out() -> None:
    assert str(c.facts([("A", 1), ("B", None), ("C", "")])) == (
        '<dl class="facts"><dt>A</dt><dd>1</dd><dt>C</dt><dd></dd></dl>'
    )


def test_a_pager_has_links_only_to_pages_that_exist() -> None:
    assert c.pager(listed(), None) is None
    assert "Newest" not in str(c.pager(listed(), 12))
    assert "Older" not in str(c.pager(listed(before="12"), None))
    assert 'href="/console/events?q=a&amp;before=3"' in str(c.pager(listed(q="a", before="9"), 3))


def test_progress_of_nothing() -> None:
    assert str(c.progress(0, 0, "Redrive")) == (
        '<progress class="progress" value="0" max="1" aria-label="Redrive">0 of 0</progress>'
    )


def test_a_card_can_be_a_link() -> None:
    assert str(c.card("Events", "12")).startswith('<div class="card">')
    assert str(c.card("Events", "12", to="/console/events")).startswith('<a class="card" href="/console/events">')
