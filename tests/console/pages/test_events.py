"""The Events screen: rows, search, filters with their counts, pages, and what it shows without rows."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from oncegate.claims import Claim, EventSummary
from oncegate.clocks import wall
from oncegate.console.pages.events import events
from oncegate.console.site import Site
from oncegate.journal import GapLog, Journal
from oncegate.journal.base import MINUTE, NewRows
from oncegate.times import rfc3339
from tests.console.pages.journals import HOSTILE, SECOND, get, make_site, row, write


def shown_ids(shown: object) -> list[str]:
    return [attributes["data-id"] for tag, attributes in shown.elements if tag == "tr" and attributes]  # type: ignore[attr-defined]


def test_a_row_shows_what_the_journal_has(site: Site, journal: Journal) -> None:
    at = wall() - 5 * SECOND
    write(
        journal,
        [
            row(
                7,
                at,
                "duplicate",
                "redelivery",
                named="call.started",
                place="calls",
                attempt=2,
                lag=3_200_000,
                took=12_000,
                reason="Duplicate of evt-6.",
            )
        ],
    )

    shown = get(events, site, "/events")

    for text in ("duplicate", "redelivery", "call.started", "calls", "attempt 2", "lag 3 s", "took 12 ms", "evt-7"):
        assert text in shown.text
    assert "Duplicate of evt-6." in shown.text
    key, (known,) = (7).to_bytes(16, "big").hex(), journal.rows()
    assert shown.query_of_link("/event") == {"key": key, "namespace": "crm", "row": str(known.id)}
    assert shown.query_of_link("/conversation") == {"id": "conversation-7"}
    assert shown.find("time")


def test_a_row_without_a_key_leads_to_its_event_by_its_id(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall(), "invalid", key=b"", event_id=None, entity=None)])

    assert get(events, site, "/events").query_of_link("/event") == {"row": str(journal.rows()[0].id)}


def test_a_storm_is_one_row_with_its_count(site: Site, journal: Journal) -> None:
    at = 1_790_000_000 * SECOND
    write(journal, [row(1, at + 59 * SECOND, "duplicate", "redelivery", count=1037, since=at)])

    text = get(events, site, "/events").text

    assert "\N{MULTIPLICATION SIGN} 1,037 copies from 14:13:20.000Z to 14:14:19.000Z" in text
    assert "The row of many copies is written when its minute ends" in text


def test_pages_lead_through_all_rows_once(site: Site, journal: Journal) -> None:
    start = wall() - 500 * SECOND
    write(journal, [row(number, start + number * SECOND) for number in range(120)])
    found, address = [], "/events"
    while address:
        shown = get(events, site, address)
        found += shown_ids(shown)
        address = next((link["href"] for link in shown.find("a", rel="next")), "")

    assert found == [str(each.id) for each in journal.rows(limit=200)]


FILTERS = [
    ({"status": "failed"}, [3]),
    ({"kind": "replay"}, [2]),
    ({"type": "call.started"}, [1, 3]),
    ({"route": "calls"}, [0, 2]),
    ({"entity": "conversation-1"}, [1]),
    ({"q": "evt-2"}, [2]),
    ({"q": "conversation-3"}, [3]),
    ({"q": (1).to_bytes(16, "big").hex()}, [1]),
    ({"q": "message-0"}, [0]),
    ({"q": "evt-2", "status": "failed"}, []),
    ({"entity": "evt-2"}, []),
    ({"since": "110s"}, [2, 3]),
    ({"until": "110s"}, [0, 1]),
    ({"type": "call.started", "status": "failed"}, [3]),
]


@pytest.mark.parametrize(("query", "numbers"), FILTERS)
def test_filters(site: Site, journal: Journal, query: dict[str, str], numbers: list[int]) -> None:
    start = wall() - 210 * SECOND
    statuses = [("processed", ""), ("processed", ""), ("duplicate", "replay"), ("failed", "")]
    write(
        journal,
        [
            row(
                number,
                start + number * 60 * SECOND,
                status,
                kind,
                named=("call.ended", "call.started")[number % 2],
                place=("calls", "crm")[number % 2],
                delivery_id=f"message-{number}",
            )
            for number, (status, kind) in enumerate(statuses)
        ],
    )
    known = {str(each.id): each.event_id for each in journal.rows()}

    shown = get(events, site, "/events?" + "&".join(f"{name}={value}" for name, value in query.items()))

    assert sorted(known[each] or "" for each in shown_ids(shown)) == [f"evt-{number}" for number in numbers]
    for name in ("q", "kind", "type", "route", "entity", "since", "until"):  # the form shows what is chosen
        if name in query and name not in ("kind", "type", "route"):
            assert shown.find("input", name=name)[0]["value"] == query[name]
        elif name in query:
            assert {"value": query[name], "selected": ""} in shown.find("option")
    if not numbers:
        assert "No event matches these filters." in shown.text
        assert "/console/events" in shown.links
        assert "/console/conversation?id=evt-2" in shown.links  # the store may have records without rows


def test_each_value_has_its_count_with_the_other_filters(site: Site, journal: Journal) -> None:
    """The counts come from the counters, so they include copies that have no row."""
    now = wall()
    write(journal, [row(1, now, count=1_234, since=now - SECOND), row(2, now, "failed"), row(3, now, place="calls")])

    shown = get(events, site, "/events?route=default")

    assert "All 1,235 processed 1,234 failed 1" in shown.text
    assert "default (1,235)" in shown.text
    assert "calls (1)" in shown.text
    assert "call.ended (1,235)" in shown.text
    assert "1,235 deliveries and attempts match in the last 24 hours." in shown.text
    assert "Counted when the page was loaded." in shown.text


def test_events_without_a_type_or_a_kind(site: Site, journal: Journal) -> None:
    """A filter selects the events that have no type, or no kind. The list and the count agree."""
    at = wall() - MINUTE
    write(journal, [row(1, at, named=""), row(2, at, "buried"), row(3, at, "buried", "redelivery")])
    untyped = get(events, site, "/events?type=(none)")
    assert "1 delivery or attempt matches" in untyped.text
    assert ("evt-1" in untyped.text, "evt-2" in untyped.text) == (True, False)
    assert "1 delivery or attempt matches" in get(events, site, "/events?status=buried&kind=(none)").text
    assert "2 deliveries and attempts match" in get(events, site, "/events?status=buried").text


def test_counts_are_of_the_chosen_range(site: Site, journal: Journal) -> None:
    now = wall()
    write(journal, [row(1, now - 3 * 3600 * SECOND), row(2, now)])

    assert "1 delivery or attempt matches since" in get(events, site, "/events?since=1h").text
    assert "2 deliveries and attempts match since" in get(events, site, "/events?since=1d").text


def test_an_attempt_is_not_called_a_delivery(site: Site, journal: Journal) -> None:
    """A route that stores events first writes two rows for one delivery."""
    now = wall()
    write(journal, [row(1, now, "accepted"), row(1, now), row(1, now, "operator", "reset")])

    for address in ("/events", "/events?q=evt-1"):
        assert "2 deliveries and attempts match" in get(events, site, address).text
    assert "1 action of an operator matches" in get(events, site, "/events?status=operator").text


def test_rows_are_counted_in_a_range_of_seconds(site: Site, journal: Journal) -> None:
    """The counters of the journal count minutes. The number must be that of the list."""
    start = (wall() - 3600 * SECOND) // (60 * SECOND) * 60 * SECOND
    write(journal, [row(number, start + number * SECOND) for number in range(40)])

    def address(first: float, last: float) -> str:
        since, until = (rfc3339(start + int(each * SECOND)) for each in (first, last))
        return f"/events?since={since}&until={until}"

    assert "0 deliveries and attempts match since" in get(events, site, address(41.9, 42.1)).text
    part = get(events, site, address(9.5, 14.5))
    assert "5 deliveries and attempts match since" in part.text
    assert "All 5 processed 5" in part.text
    assert len(shown_ids(part)) == 5
    assert "40 deliveries and attempts match since" in get(events, site, address(0, 60)).text


def test_a_busy_range_of_seconds_is_counted_up_to_a_bound(site: Site, journal: Journal) -> None:
    write(journal, [row(number, wall() - SECOND) for number in range(1_100)])

    assert "1,000+ deliveries and attempts match since" in get(events, site, "/events?since=59s").text


def test_counted_rows_that_are_gone(site: Site, journal: Journal) -> None:
    """A busy recorder counts events whose row it drops."""
    now = wall()
    label = row(2, now, "failed").label
    journal.append(NewRows([row(1, now)], {(now // MINUTE, label): 3}, {}))

    assert "No row is left of what was counted" in get(events, site, "/events?status=failed").text


def test_a_search_counts_rows_up_to_a_bound(site: Site, journal: Journal) -> None:
    now = wall()
    write(journal, [row(number, now, entity="busy") for number in range(1_100)])

    shown = get(events, site, "/events?q=busy")

    assert "1,000+ deliveries and attempts match." in shown.text
    assert len(shown_ids(shown)) == 50


def test_a_search_leads_to_the_only_event_and_to_the_conversation(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall()), row(2, wall(), entity="conversation-1")])

    by_id = get(events, site, "/events?q=evt-1")
    by_entity = get(events, site, "/events?q=conversation-1")

    key = (1).to_bytes(16, "big").hex()
    assert f"This search names Event {key[:12]}" in by_id.text
    assert "This search names Conversation conversation-1" in by_entity.text
    assert f"/console/event?key={key}&namespace=crm" in by_id.links
    assert "/console/conversation?id=conversation-1" in by_entity.links


def test_a_key_that_only_the_store_has_is_found(site: Site, journal: Journal) -> None:
    """Rows are deleted after some days. The record may live longer."""
    write(journal, [row(1, wall())])
    key = b"k" * 16
    site.store.claim([Claim("crm", key, b"owner", b"hash", 30 * SECOND, 3600 * SECOND, EventSummary("plain"))])

    assert f"/console/event?key={key.hex()}&namespace=crm" in get(events, site, f"/events?q={key.hex()}").links


def test_rows_of_operators_are_listed_only_if_the_filter_asks_for_them(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall()), row(2, wall(), "operator", "redrive", reason="Redriven by Ada.")])

    assert "Redriven by Ada." not in get(events, site, "/events").text
    assert "operator" not in get(events, site, "/events?q=evt-2").text
    assert "Redriven by Ada." in get(events, site, "/events?status=operator").text


@pytest.mark.parametrize("address", ["/events?since=yesterday", "/events?until=%00", "/events?since=9999999999999d"])
def test_an_invalid_time_is_reported_and_ignored(site: Site, journal: Journal, address: str) -> None:
    write(journal, [row(1, wall())])

    shown = get(events, site, address)

    assert "is not a time; write 15m, 24h or 7d" in shown.text
    assert len(shown_ids(shown)) == 1


def test_an_unknown_status_is_reported_and_ignored(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall())])

    shown = get(events, site, "/events?status=foo")

    assert "is not a status; use one of: processed, " in shown.text
    assert len(shown_ids(shown)) == 1
    assert "foo 0" not in " ".join(shown.text.split())


@pytest.mark.parametrize("before", ["-1", "x", "9" * 30, "\u0663", ""])
def test_an_invalid_cursor_shows_the_first_page(site: Site, journal: Journal, before: str) -> None:
    write(journal, [row(1, wall())])

    assert len(shown_ids(get(events, site, f"/events?before={before}"))) == 1


def test_hostile_text_is_shown_as_text(site: Site, journal: Journal) -> None:
    write(
        journal,
        [
            row(
                1,
                wall(),
                "duplicate",
                HOSTILE,
                named=HOSTILE,
                place=HOSTILE,
                event_id=HOSTILE,
                entity=HOSTILE,
                delivery_id=HOSTILE,
                reason=HOSTILE,
            )
        ],
    )
    for address in ("/events", f"/events?q={HOSTILE.encode().hex()}", "/events?status=%3Cscript%3E&type=%22%3E&q=%27"):
        shown = get(events, site, address)
        shown.check_nothing_escapes()

    shown = get(events, site, "/events")
    assert "<script>alert(1)</script>" in shown.text
    assert shown.query_of_link("/conversation") == {"id": HOSTILE}


def test_without_events_the_page_says_how_to_send_one(site: Site, journal: Journal) -> None:
    text = get(events, site, "/events").text

    assert "No event has arrived yet." in text
    assert "curl -H 'content-type: application/json' -d" in text
    assert "http://127.0.0.1:8080/events" in text


def test_before_the_first_row_there_is_no_journal(site: Site) -> None:
    shown = get(events, site, "/events")

    assert "No event has arrived yet." in shown.text
    assert shown.find("div", id="tail")  # the page is loaded again with the first row


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"journal": "off"}, "there is no journal, because it is off; remove this setting, or set it to auto"),
        ({"store": "memory://"}, "there is no journal, because memory:// has no place for one"),
    ],
)
def test_without_a_journal_the_page_says_why(tmp_path: Path, settings: dict[str, str], reason: str) -> None:
    with closing(make_site(tmp_path, **settings)) as site:
        shown = get(events, site, "/events")

    assert reason in shown.text
    assert "It needs a journal" in shown.text


def test_without_a_journal_a_key_is_found_in_the_store(tmp_path: Path) -> None:
    key = b"k" * 16
    with closing(make_site(tmp_path, journal="off")) as site:
        site.store.claim([Claim("crm", key, b"owner", b"hash", 30 * SECOND, 3600 * SECOND, EventSummary("plain"))])
        found = get(events, site, f"/events?q={key.hex()}")
        other = get(events, site, "/events?q=conversation-1")

    assert f"/console/event?key={key.hex()}&namespace=crm" in found.links
    assert found.find("input", name="q", value=key.hex())
    assert "The store has no record with this key." in other.text
    assert "/console/conversation?id=conversation-1" in other.links


def test_filters_are_folded_unless_one_is_set(site: Site, journal: Journal) -> None:
    """The style sheet shows folded filters on a wide screen."""
    write(journal, [row(1, wall())])

    assert get(events, site, "/events?q=evt-1&status=processed").find("details") == [{"class": "more"}]
    assert get(events, site, "/events?since=1h").find("details") == [{"class": "more", "open": ""}]


def test_the_tail_has_the_filters_and_the_newest_known_row(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall()), row(2, wall(), "failed")])

    (tail,) = get(events, site, "/events?status=processed&since=1h").find("div", id="tail")

    assert tail["data-src"] == f"/console/tail?status=processed&after={journal.rows()[1].id}"
    assert not get(events, site, "/events?until=1h").find("div", id="tail")
    assert not get(events, site, "/events?before=5").find("div", id="tail")


def test_the_first_page_is_quick(site: Site, journal: Journal) -> None:
    """The bound is generous; benchmarks/journal.py measures a million rows."""
    start = wall() - 20_000 * SECOND
    for first in range(0, 20_000, 5_000):
        write(journal, [row(number, start + number * SECOND) for number in range(first, first + 5_000)])
    for address in ("/events", "/events?status=processed", "/events?q=evt-77", "/events?q=absent", "/events?since=14d"):
        began = time.perf_counter()
        get(events, site, address)
        assert time.perf_counter() - began < 1


def test_gaps_are_listed(site: Site, journal: Journal) -> None:
    """A gap is a row of the list. It is counted only if the filter asks for gaps."""
    write(journal, [row(1, wall())])
    GapLog(lambda: journal, "genesys", "crm").add("socket", wall() - 2_000_000, wall(), "the socket was lost")
    assert "the socket was lost" in get(events, site, "/events").text
    shown = get(events, site, "/events?status=gap").text
    assert "1 gap matches" in shown
    assert "evt-1" not in shown
