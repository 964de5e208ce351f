"""The Conversation screen: rows of one entity by event time, with marks, gaps and pages."""

from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from oncegate.clocks import wall
from oncegate.console.pages.conversation import conversation
from oncegate.console.site import Site
from oncegate.journal import Journal, RowFilter
from tests.console.pages.journals import HOSTILE, SECOND, get, make_site, row, write


def test_rows_are_in_the_order_of_their_event_times(site: Site, journal: Journal) -> None:
    """The event that happened first arrived last. Gaps are gaps between event times."""
    now = wall()
    write(
        journal,
        [
            row(2, now - 3 * SECOND, entity="c-1", lag=SECOND),
            row(3, now - 2 * SECOND, entity="c-1", lag=-4_800_000),
            row(1, now - SECOND, entity="c-1", lag=10 * SECOND),
            row(4, now, entity="c-2"),
        ],
    )

    shown = get(conversation, site, "/conversation?id=c-1")

    text = shown.text
    assert text.index("Reason 1.") < text.index("Reason 2.") < text.index("Reason 3.")
    assert "Reason 4." not in text
    assert "7.0 s after the row above" in text
    assert "6.8 s after the row above" in text
    assert "3 rows of 3 events, in the order of their event times." in text
    assert "/console/events?entity=c-1" in shown.links
    key = (1).to_bytes(16, "big").hex()
    (known,) = journal.rows(RowFilter(term=key))
    assert f"/console/event?key={key}&namespace=crm&row={known.id}" in shown.links


def test_the_row_of_a_storm_stands_where_its_first_copy_arrived(site: Site, journal: Journal) -> None:
    now = wall()
    copies = row(2, now - SECOND, "duplicate", "redelivery", entity="c-1", count=9, since=now - 8 * SECOND)
    write(journal, [row(1, now - 9 * SECOND, entity="c-1"), row(3, now - 5 * SECOND, entity="c-1")])
    write(journal, [copies])

    text = get(conversation, site, "/conversation?id=c-1").text

    assert text.index("Reason 1.") < text.index("Reason 2.") < text.index("Reason 3.")
    assert "1.0 s after the row above" in text
    assert "3.0 s after the row above" in text


def test_a_row_without_an_event_time_counts_from_its_arrival(site: Site, journal: Journal) -> None:
    now = wall()
    write(journal, [row(1, now - 5 * SECOND, entity="c-1"), row(2, now, entity="c-1", lag=6 * SECOND)])

    text = get(conversation, site, "/conversation?id=c-1").text

    assert text.index("Reason 2.") < text.index("Reason 1.")


def test_echoes_and_stale_states_are_marked(site: Site, journal: Journal) -> None:
    now = wall()
    same = {"entity": "c-1", "part": "p-1"}
    write(
        journal,
        [
            row(1, now - 9 * SECOND, state="connected", lag=0, **same),
            row(2, now - 8 * SECOND, state="connected", lag=SECOND - 100_000, **same),
            row(3, now - 7 * SECOND, state="ended", lag=0, **same),
            row(4, now - 6 * SECOND, state="held", lag=2 * SECOND, **same),
            row(1, now - 5 * SECOND, "duplicate", "state-echo", state="connected", lag=4 * SECOND, **same),
        ],
    )

    text = get(conversation, site, "/conversation?id=c-1").text

    assert "Marked: 1 echo, 1 possible echo, 1 stale." in text
    assert "connected possible echo of evt-1" in text
    assert "held stale of evt-3" in text
    assert "connected echo of evt-1" in text


def test_pages_lead_through_all_rows_once(site: Site, journal: Journal) -> None:
    start = wall() - 600 * SECOND
    write(journal, [row(number, start + number * SECOND, entity="c-1") for number in range(450)])
    found, address, pages = [], "/conversation?id=c-1", 0
    while address:
        shown = get(conversation, site, address)
        found += [link for link in shown.links if link.startswith("/console/event?")]
        address = next((link["href"] for link in shown.find("a", rel="next")), "")
        pages += 1

    assert pages == 5
    assert len(found) == len(set(found)) == 450


def test_actions_of_operators_are_part_of_it(site: Site, journal: Journal) -> None:
    """One delivery to a route that stores events has two rows, and the action has a third."""
    operator = row(1, wall(), "operator", "redrive", entity="c-1", reason="Redriven.")
    write(journal, [row(1, wall(), "accepted", entity="c-1"), row(1, wall(), "failed", entity="c-1"), operator])
    text = get(conversation, site, "/conversation?id=c-1").text

    assert "Redriven." in text
    assert "3 rows of 1 event, in the order" in text


def test_hostile_text_is_shown_as_text(site: Site, journal: Journal) -> None:
    same = {"entity": HOSTILE, "part": HOSTILE, "state": HOSTILE, "event_id": HOSTILE, "reason": HOSTILE}
    now = wall()
    write(journal, [row(each, now + each, lag=0, named=HOSTILE, place=HOSTILE, **same) for each in (1, 2)])

    shown = get(conversation, site, f"/conversation?id={quote(HOSTILE)}")

    shown.check_nothing_escapes()
    assert "possible echo" in shown.text


def test_an_unknown_conversation(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall())])

    shown = get(conversation, site, "/conversation?id=none")

    assert "The journal has no row of this conversation." in shown.text
    assert "/console/events?q=none" in shown.links
    assert "/console/conversation/forget?id=none" in shown.links  # the store may have records of it
    assert "No conversation is chosen." in get(conversation, site, "/conversation").text


def test_without_a_journal_the_page_says_why(tmp_path: Path) -> None:
    """The store may have records of the conversation, so it can be forgotten."""
    with closing(make_site(tmp_path, journal="off")) as site:
        shown = get(conversation, site, "/conversation?id=c-1")
    assert "it is off; remove this setting, or set it to auto" in shown.text
    assert "/console/conversation/forget?id=c-1" in shown.links
