"""The Keys screen: strategies, duplicates over time, conflicts and events without a key, with what they mean."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncegate.clocks import wall
from oncegate.console.pages.keys import keys
from oncegate.console.site import Site
from oncegate.journal import Journal
from tests.console.pages.journals import HOSTILE, SECOND, get, make_site, row, write

MINUTE = 60 * SECOND


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(make_site(tmp_path, key="event_id")) as site:
        yield site


def test_a_row_for_each_route_and_type(site: Site, journal: Journal) -> None:
    now = wall() - 2 * MINUTE
    rows = [row(number, now, strategy="event_id") for number in range(3)]
    rows += [row(1, now, "duplicate", "redelivery", strategy="event_id")]
    rows += [row(5, now, "conflict", strategy="auto", named="case.updated", place="crm")]
    rows += [row(6, now, strategy="auto.content", named="case.updated", place="crm")]
    rows += [row(7, now, "invalid", key=b"", strategy="", named="bad", reason="Refused: no id.", place="crm")]
    rows += [row(8, now, "unguarded", key=b"", strategy="", named="bad", reason="Run: no id.", place="crm")]
    write(journal, rows)
    shown = get(keys, site, "/keys?range=1h")

    assert "Keys in the settings default event_id Keys by route and type" in shown.text
    assert "default call.ended event_id 4 1 25%" in shown.text
    assert "No conflict, and every event has a key." in shown.text
    assert "auto.content 50% no id auto 50%" in shown.text
    assert "1 event had the key of another event, but different content." in shown.text
    assert "1 refused 1 unguarded" in shown.text
    assert "The newest reason: Refused: no id." in shown.text
    order = [shown.text.index(name) for name in ("case.updated", "call.ended")]
    assert order == sorted(order)
    assert 'The guide "Which key to choose" in the documentation' in shown.text
    assert "the list also has the attempts of stored events" not in shown.text


def test_numbers_lead_to_their_events(site: Site, journal: Journal) -> None:
    write(journal, [row(5, wall() - MINUTE, "conflict", strategy="auto", named="a & b", place="crm")])
    links = get(keys, site, "/keys?range=1h").links

    assert any(each.startswith("/console/events?route=crm&type=a+%26+b&status=conflict&since=20") for each in links)
    assert any(each.startswith("/console/events?route=crm&type=a+%26+b&since=20") for each in links)


def test_numbers_of_events_without_a_type(site: Site, journal: Journal) -> None:
    """The link of an event without a type does not lead to all types."""
    write(journal, [row(5, wall() - MINUTE, strategy="auto", named="", place="crm")])
    links = get(keys, site, "/keys?range=1h").links

    assert any(each.startswith("/console/events?route=crm&type=%28none%29&since=20") for each in links)


def test_a_line_shows_the_share_of_duplicates(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall() - MINUTE, "duplicate", "redelivery", strategy="auto")])
    (line,) = get(keys, site, "/keys?range=1h").find("svg", role="img")

    assert line["aria-label"].startswith("100% of deliveries are duplicates")


def test_many_types_are_listed_up_to_a_bound(site: Site, journal: Journal) -> None:
    write(journal, [row(number, wall() - MINUTE, strategy="auto", named=f"type-{number}") for number in range(130)])
    shown = get(keys, site, "/keys?range=1h")

    assert "30 more types with fewer deliveries are not listed." in shown.text
    assert len(shown.find("svg", role="img")) == 100


def test_no_row_yet(site: Site, journal: Journal) -> None:
    assert "No event has arrived yet." in get(keys, site, "/keys").text


def test_no_row_in_this_range(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall() - 3 * 86_400 * SECOND)])
    shown = get(keys, site, "/keys?range=15m")

    assert "No event arrived in this range." in shown.text
    assert "/console/keys?range=14d" in shown.links


def test_without_a_journal(tmp_path: Path) -> None:
    with closing(make_site(tmp_path, journal="off")) as site:
        shown = get(keys, site, "/keys")
    assert "there is no journal, because it is off" in shown.text
    assert "Keys in the settings default auto" in shown.text


def test_attempts_of_stored_events_have_no_strategy(site: Site, journal: Journal) -> None:
    """A worker takes a stored event by its key. The record does not say which strategy made the key."""
    now = wall() - MINUTE
    write(journal, [row(1, now, "accepted", strategy="event_id"), row(1, now, strategy="kept")])
    text = get(keys, site, "/keys?range=1h").text

    assert "default call.ended event_id 1 0 0%" in text
    assert "kept" not in text
    assert "The column Deliveries counts deliveries; the list also has the attempts of stored events." in text


def test_skipped_messages_need_no_key(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall() - MINUTE, "skipped", key=b"", strategy="", named="channel.metadata")])
    text = get(keys, site, "/keys?range=1h").text

    assert "default channel.metadata none 1 0 0%" in text
    assert "skipped These messages are no events, such as heartbeats." in text
    assert "unknown" not in text


def test_content_that_was_chosen_is_a_note(tmp_path: Path, journal: Journal) -> None:
    write(journal, [row(1, wall() - MINUTE, strategy="content")])
    with closing(make_site(tmp_path, key="content")) as site:
        shown = get(keys, site, "/keys?range=1h")

    assert "The settings choose the content as the key." in shown.text
    assert shown.find("span", **{"class": "badge tone-info"})
    assert not shown.find("span", **{"class": "badge tone-warn"})
    assert "no id" not in shown.text


def test_hostile_text_is_shown_as_text(site: Site, journal: Journal) -> None:
    now = wall() - MINUTE
    write(
        journal,
        [
            row(1, now, "invalid", key=b"", named=HOSTILE, place=HOSTILE, strategy="", reason=HOSTILE),
            row(2, now, "processed", named=HOSTILE, place=HOSTILE, strategy=HOSTILE),
        ],
    )

    get(keys, site, "/keys?range=<b>").check_nothing_escapes()
