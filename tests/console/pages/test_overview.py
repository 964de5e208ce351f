"""The Overview screen: figures and their links, charts, the most duplicates, and what is going on now."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from oncegate import Event, Gate
from oncegate.clocks import wall
from oncegate.console.pages.overview import overview, percent, precise
from oncegate.console.site import ServiceFigures, Site
from oncegate.errors import StoreUnavailable
from oncegate.journal import Journal, open_recorder
from oncegate.journal.base import NewRow
from oncegate.settings import load
from tests.console.pages.journals import HOSTILE, SECOND, Shown, get, make_site, row, write

MINUTE = 60 * SECOND


def mixed_rows(now: int) -> list[NewRow]:
    """Rows of a route that stores events, and of a queue."""
    rows = [row(number, now, "accepted", place="crm", lag=2_000) for number in range(8)]
    rows += [row(number, now, "processed", place="crm", lag=9_000, took=1_500) for number in range(7)]
    rows += [row(7, now, "failed", place="crm", took=30_000)]
    rows += [row(1, now, "duplicate", "redelivery", place="crm", entity="call-7", count=1_200)]
    rows += [row(2, now, "duplicate", "replay", place="crm", named="call.held")]
    rows += [row(3, now, "conflict", place="crm")]
    rows += [row(number + 20, now, "processed", place="sqs://queue", took=2_000) for number in range(4)]
    rows += [row(40, now, "operator", "redrive", place="crm", count=50)]
    return rows


def figure(shown: Shown, label: str) -> str:
    """The text of the card with this label, up to the next card."""
    cards = shown.text.split(" to now", 1)[1]
    return " ".join(cards.split(f" {label} ", 1)[1].split()[:20])


def links_to_events(shown: Shown) -> list[dict[str, str]]:
    found = [urlsplit(each) for each in shown.links]
    return [
        {name: values[0] for name, values in parse_qs(each.query).items() if name not in ("since", "until")}
        for each in found
        if each.path == "/console/events"
    ]


def test_the_figures_of_a_range(site: Site, journal: Journal) -> None:
    write(journal, mixed_rows(wall() - 2 * MINUTE))
    shown = get(overview, site, "/?range=1h")

    # 8 + 1,200 + 1 + 1 of crm, and 4 of the queue
    assert figure(shown, "Received").startswith("1,214 deliveries; the list also has the attempts of stored")
    assert figure(shown, "Processed").startswith("11 handler finished")
    assert figure(shown, "Duplicates").startswith("1,201 98.9% of received · 1,200 redelivery · 1 replay")
    assert figure(shown, "Conflicts").startswith("1 same key")
    assert figure(shown, "Failed").startswith("1 ")
    assert figure(shown, "Lag").startswith("2.0 ms p50 2.0 ms p95; from the event to its arrival, the newest 8")
    assert figure(shown, "Handler time").startswith("1.5 ms p50 30 ms p95; per attempt, the newest 12")


def test_every_figure_leads_to_its_events(site: Site, journal: Journal) -> None:
    write(journal, mixed_rows(wall() - 2 * MINUTE))
    shown = get(overview, site, "/?range=1h&route=crm")
    found = links_to_events(shown)

    assert {"route": "crm"} in found
    for status in ("processed", "duplicate", "conflict", "failed", "buried"):
        assert {"route": "crm", "status": status} in found
    assert {"route": "crm", "status": "duplicate", "kind": "replay"} in found
    assert {"route": "crm", "status": "duplicate", "type": "call.held"} in found
    assert {"route": "crm", "status": "duplicate", "entity": "call-7"} in found
    assert all("since=" in each for each in shown.links if "/events?" in each)


def test_a_route(site: Site, journal: Journal) -> None:
    write(journal, mixed_rows(wall() - 2 * MINUTE))
    shown = get(overview, site, "/?range=1h&route=sqs%3A%2F%2Fqueue")

    assert figure(shown, "Received").startswith("4 deliveries")
    assert "Attempts of stored events" not in shown.text
    assert [each["value"] for each in shown.find("option")] == ["", "crm", "default", "sqs://queue"]
    assert [each["value"] for each in shown.find("option", selected="")] == ["sqs://queue"]
    assert shown.find("input", name="range", value="1h")


def test_charts_of_deliveries_and_attempts(site: Site, journal: Journal) -> None:
    write(journal, mixed_rows(wall() - 2 * MINUTE))
    shown = get(overview, site, "/?range=1h&table=attempts")

    assert "1,214 in total: 4 processed, 8 accepted, 1,200 duplicate · redelivery, 1 duplicate · replay" in shown.text
    assert "8 in total: 7 processed, 1 failed." in shown.text
    assert "series-redelivery" in " ".join(given.get("class", "") for _, given in shown.elements)
    assert shown.find("div", id="attempts-table")
    assert not shown.find("div", id="deliveries-table")
    assert len({given["id"] for _, given in shown.elements if "id" in given}) == sum(
        "id" in given for _, given in shown.elements
    )


def test_totals_are_those_of_the_gate(tmp_path: Path, site: Site) -> None:
    """The service in the mode inbox: every figure is right although a stored event has two rows."""
    recorder = open_recorder(f"sqlite:///{tmp_path}/oncegate.journal.db")
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", observers=[recorder.of("default")])) as gate:
        gate.admit([{"id": f"evt-{number}"} for number in range(30)])
        gate.admit([{"id": "evt-1"}, {"id": "evt-2", "changed": True}])
        gate.run_waiting(lambda _event: None, limit=25)
        assert recorder.close(10)
    shown = get(overview, site, "/?range=15m")

    assert figure(shown, "Received").startswith("32 ")
    assert figure(shown, "Processed").startswith("25 ")
    assert figure(shown, "Duplicates").startswith("1 ")
    assert figure(shown, "Conflicts").startswith("1 ")
    assert figure(shown, "Waiting").startswith("5 stored")
    assert figure(shown, "Dead letters").startswith("1 in the store")


# ── the most duplicates ───────────────────────────────────────────────────────────────────────────────────


def test_the_most_duplicates(site: Site, journal: Journal) -> None:
    now = wall() - 2 * MINUTE
    rows = [row(number, now, "duplicate", "redelivery", entity=f"call-{number % 3}") for number in range(30)]
    rows += [row(90, now, named="never.twice"), row(91, now, "duplicate", "replay", entity=None, place="other")]
    write(journal, rows)
    text = get(overview, site, "/?range=1h").text

    assert "Type Duplicates Of deliveries call.ended 31 100%" in text
    assert "Conversation Duplicates call-0 10 call-1 10 call-2 10 Of all rows of duplicates." in text
    assert "Route Duplicates Of deliveries default 30 96.8% other 1 100%" in text


def test_entities_are_read_from_the_newest_rows(site: Site, journal: Journal) -> None:
    now = wall() - 2 * MINUTE
    write(journal, [row(number, now + number, "duplicate", "redelivery") for number in range(2_100)])

    assert "Of the newest 2,000 rows of duplicates." in get(overview, site, "/?range=1h").text


def test_no_duplicates(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall() - MINUTE)])
    shown = get(overview, site, "/?range=1h")

    assert "with the most duplicates" not in shown.text
    assert figure(shown, "Duplicates").startswith("0 0% of received")


# ── now ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_console_without_the_service(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall() - MINUTE)])
    shown = get(overview, site, "/")

    assert figure(shown, "In flight").startswith("unknown not known here: this console runs without the service")


@pytest.mark.parametrize(
    ("breakers", "expected"),
    [
        ({"crm": "closed"}, "circuit breaker: closed"),
        ({"crm": "open", "calls": "closed"}, "circuit breaker: crm: open"),
    ],
)
def test_figures_of_the_service(tmp_path: Path, breakers: dict[str, str], expected: str) -> None:
    settings = make_site(tmp_path).settings
    figures = ServiceFigures(1_234, breakers, 650)
    with closing(Site(settings, settings.open_store, lambda: figures)) as site:
        shown = get(overview, site, "/")

    assert figure(shown, "In flight").startswith("1,234 requests")
    assert figure(shown, "Store latency").startswith(f"0.65 ms median of the last answers; {expected}")


def test_many_dead_letters_are_counted_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_event: Event) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(sys.modules[overview.__module__], "_MOST_DEAD_LETTERS", 3)
    with closing(make_site(tmp_path)) as site:
        with closing(Gate(site.settings["store"], max_attempts=1)) as gate:
            for number in range(5):
                assert gate.run({"id": f"evt-{number}"}, fail).status == "buried"
        shown = get(overview, site, "/")

    assert figure(shown, "Dead letters").startswith("3+ in the store")
    assert "/console/dead-letters" in shown.links


def test_dead_letters_of_every_namespace_are_counted(tmp_path: Path) -> None:
    """A namespace may be neither in the settings nor in the rows of the range. With a route, only its namespace
    counts."""
    with closing(make_site(tmp_path)) as site:
        for namespace, number in (("default", 1), ("billing", 2)):
            with closing(Gate(site.settings["store"], namespace=namespace, max_attempts=1)) as gate:
                gate.run_batch([{"id": f"evt-{each}"} for each in range(number)], lambda _event: 1 / 0)
        everything, of_route = get(overview, site, "/"), get(overview, site, "/?route=default")

    assert figure(everything, "Dead letters").startswith("3 in the store")
    assert figure(of_route, "Dead letters").startswith("1 in the store")
    assert "/console/dead-letters?namespace=default" in of_route.links


def test_waiting_events_are_counted_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[overview.__module__], "_MOST_WAITING", 3)
    with closing(make_site(tmp_path)) as site, closing(Gate(site.settings["store"])) as gate:
        gate.admit([{"id": "evt-1"}, {"id": "evt-2"}])
        assert figure(get(overview, site, "/"), "Waiting").startswith("2 stored")
        gate.admit([{"id": "evt-3"}, {"id": "evt-4"}])
        assert figure(get(overview, site, "/"), "Waiting").startswith("3+ stored")


def test_many_namespaces(tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the waiting events of some namespaces are not counted, the number has a plus sign."""
    monkeypatch.setattr(sys.modules[overview.__module__], "_MOST_NAMESPACES", 1)
    write(journal, [row(1, wall() - MINUTE)])  # of the namespace crm
    with closing(make_site(tmp_path)) as site:
        shown = get(overview, site, "/")

    assert figure(shown, "Waiting").startswith("0+ stored")


def test_a_store_that_does_not_answer(tmp_path: Path, journal: Journal) -> None:
    """The history is shown without the store."""

    def refuse() -> None:
        raise StoreUnavailable("the store at db:5432 does not answer")

    write(journal, [row(1, wall() - MINUTE)])
    with closing(Site(make_site(tmp_path).settings, refuse)) as site:  # type: ignore[arg-type]
        shown = get(overview, site, "/")

    assert figure(shown, "Received").startswith("1 deliveries")
    assert figure(shown, "Dead letters").startswith("unknown the store at db:5432 does not answer")


# ── empty states and hostile text ─────────────────────────────────────────────────────────────────────────


def test_no_row_yet(site: Site, journal: Journal) -> None:
    shown = get(overview, site, "/")

    assert "No event has arrived yet." in shown.text
    assert figure(shown, "Dead letters").startswith("0 in the store")


def test_no_row_in_this_range(site: Site, journal: Journal) -> None:
    write(journal, [row(1, wall() - 5 * 86_400 * SECOND)])
    shown = get(overview, site, "/?range=15m&route=crm")

    assert "No event arrived in this range." in shown.text
    assert "/console/?range=14d&route=crm" in shown.links


def test_nothing_was_written_yet(site: Site) -> None:
    assert "No event has arrived yet." in get(overview, site, "/").text


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"journal": "off"}, "there is no journal, because it is off"),
        ({"store": "memory://"}, "there is no journal, because memory:// has no place for one"),
    ],
)
def test_without_a_journal(tmp_path: Path, flags: dict[str, object], reason: str) -> None:
    with closing(make_site(tmp_path, **flags)) as site:
        shown = get(overview, site, "/")

    assert reason in shown.text
    assert "It needs a journal: set journal ." in shown.text
    assert figure(shown, "Dead letters").startswith("0 in the store")


def test_a_store_in_dynamodb_without_a_journal() -> None:
    settings = load(environ={}, flags={"store": "dynamodb://table?region=eu-central-1"})

    def refuse() -> None:
        raise StoreUnavailable("the table does not answer")

    with closing(Site(settings, refuse)) as site:  # type: ignore[arg-type]
        shown = get(overview, site, "/")

    assert "there is no journal, because dynamodb:// has no place for one" in shown.text


def test_an_invalid_range(site: Site, journal: Journal) -> None:
    shown = get(overview, site, "/?range=<b>")

    assert "range='<b>' is not a range" in shown.text
    shown.check_nothing_escapes()


@pytest.mark.parametrize(
    "address", ["/?range=1h", "/?range=1h&table=deliveries", "/?range=1h&route=<script>&since=<b>"]
)
def test_hostile_text_is_shown_as_text(site: Site, journal: Journal, address: str) -> None:
    now = wall() - MINUTE
    statuses: Sequence[tuple[str, str]] = [("duplicate", "redelivery"), ("duplicate", HOSTILE), ("processed", HOSTILE)]
    write(
        journal,
        [
            row(number, now, status, kind, named=HOSTILE, place=HOSTILE, entity=HOSTILE)
            for number, (status, kind) in enumerate(statuses)
        ],
    )
    shown = get(overview, site, address)

    shown.check_nothing_escapes()
    assert shown.code == 200


def test_a_million_of_everything(site: Site, journal: Journal) -> None:
    """Huge numbers stay readable."""
    write(journal, [row(1, wall() - MINUTE, "duplicate", "redelivery", count=3_000_000_000)])
    shown = get(overview, site, "/?range=1h")

    assert figure(shown, "Received").startswith("3,000,000,000 deliveries")
    assert " 3G " in shown.text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "0%"), (1, 3, "33.3%"), (1, 2, "50%"), (1, 10_000, "less than 0.1%"), (5, 5, "100%")],
)
def test_percent(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "0.00 ms"),
        (940, "0.94 ms"),
        (12_300, "12 ms"),
        (2_345_000, "2.3 s"),
        (59_000_000, "59 s"),
        (61_000_000, "1 m"),
        (-2_345_000, "-2.3 s"),
    ],
)
def test_precise(time_us: int, text: str) -> None:
    assert precise(time_us) == text
