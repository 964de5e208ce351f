"""The screen Dead letters: groups, filters, the list of a group, and the record of who did what."""

import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.console.site import Site
from oncegate.settings import load
from tests.console.pages.acting import Person
from tests.console.pages.journals import make_site


@pytest.fixture
def person(site: Site) -> Person:
    return Person(site)


@pytest.fixture
def gate(site: Site) -> Gate:
    return Gate(site.store, max_attempts=1, remember=None)


def time_out(event: Event) -> None:
    raise TimeoutError(f"{event.id}: no answer within {len(event.raw) * 31} ms")


def test_nothing(person: Person) -> None:
    """An empty screen says what a dead letter is, and offers no action."""
    shown = person.open("/dead-letters")
    assert "There are no dead letters. An event becomes a dead letter" in shown.text
    assert not any("confirm" in link for link in shown.links)
    assert "No dead letter matches. Clear the filter" in person.open("/dead-letters?type=call").text


def test_groups(person: Person, gate: Gate) -> None:
    """500 timeouts are one row, with the count, the types and the route. The largest group is first."""
    gate.run({"id": "1", "type": "chat"}, lambda event: 1 / 0)
    gate.run_batch([{"id": f"evt-{number}", "type": f"call.{number % 5}"} for number in range(500)], time_out)
    text = person.open("/dead-letters").text
    assert "501 dead letters in 2 groups" in text
    assert text.index("TimeoutError: …: no answer within … ms 500") < text.index("ZeroDivisionError")
    assert " and 2 more default " in text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("type=call", "2 dead letters in 1 group"),
        ("error=NO+ANSWER", "3 dead letters in 1 group"),
        ("type=call&namespace=crm", "No dead letter matches."),
        ("namespace=crm", "1 dead letter in 1 group"),
        ("newer=1h", "3 dead letters in 1 group"),
        ("older=1h", "No dead letter matches."),
        ("older=soon", "Invalid filter:"),
    ],
)
def test_filters(person: Person, gate: Gate, query: str, expected: str) -> None:
    """Each filter is a parameter of the address, and stays in the form and in all links of the page."""
    gate.run_batch([{"id": "evt-1", "type": "call"}, {"id": "evt-2", "type": "call"}], time_out)
    Gate(gate.store, namespace="crm", max_attempts=1).run({"id": "evt-3", "type": "chat"}, time_out)
    shown = person.open(f"/dead-letters?{query}")
    assert expected in shown.text
    name, _, value = query.partition("&")[0].partition("=")
    chosen = [each.get("value") for each in shown.find("input", name=name)]
    selected = [each["value"] for each in shown.find("option") if "selected" in each]
    assert value.replace("+", " ") in chosen + selected
    assert all(query.partition("&")[0] in link for link in shown.links if "action=" in link)


def test_a_group(person: Person, gate: Gate) -> None:
    """A group is a list in pages, the newest first. Each dead letter is on one page, with a link to its event."""
    expected = []
    for start in range(0, 120, 40):
        events = [{"id": f"evt-{number}"} for number in range(start, start + 40)]
        expected += [str(outcome.key) for outcome in gate.run_batch(events, time_out)]
        time.sleep(0.002)
    (address,) = [link for link in person.open("/dead-letters").links if "group=" in link and "confirm" not in link]
    found: list[str] = []
    pages = 0
    while address:
        shown = person.open(address)
        assert "120 dead letters, the newest first." in shown.text
        keys = [link.partition("key=")[2][:32] for link in shown.links if link.startswith("/console/event?")]
        found += keys
        pages += 1
        address = next((each["href"] for each in shown.find("a", rel="next")), "")
    assert (pages, len(found)) == (3, 120)
    assert set(found[:40]) == set(expected[80:])
    assert sorted(found) == sorted(expected)


def test_a_group_that_is_gone(person: Person) -> None:
    assert "This group has no dead letters any more." in person.open("/dead-letters?group=0123&before=x").text


def test_the_bound(person: Person, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store has more dead letters than a page reads, the page says so."""
    gate.run_batch([{"id": number} for number in range(30)], time_out)
    monkeypatch.setattr(sys.modules["oncegate.console.pages.dead_letters"], "MOST_READ", 20)
    shown = person.open("/dead-letters").text
    assert "20 dead letters in 1 group " in shown
    assert "The store has more dead letters. The first 20 were read" in shown


def test_many_groups(person: Person, gate: Gate) -> None:
    """At most 100 groups are shown."""

    def fail(event: Event) -> None:
        number = int(event.body["n"])
        raise ValueError("".join(chr(97 + int(digit)) for digit in str(number)))

    gate.run_batch([{"id": f"id-{number}", "n": number} for number in range(130)], fail)
    shown = person.open("/dead-letters")
    assert "The largest 100 groups are shown." in shown.text
    assert len([link for link in shown.links if "?group=" in link and "confirm" not in link]) == 100


def test_routes(tmp_path: Path) -> None:
    """A group names the routes that have its namespaces."""
    (tmp_path / "oncegate.toml").write_text(
        '[route.crm]\nsignature = "none"\nnamespace = "shared"\n[route.erp]\nsignature = "none"\n'
    )
    flags = {"store": f"sqlite:///{tmp_path}/oncegate.db"}
    settings = load(tmp_path / "oncegate.toml", environ={}, flags=flags)
    with closing(Site(settings, settings.open_store)) as site:
        for namespace in ("shared", "old", "erp"):
            Gate(site.store, namespace=namespace, max_attempts=1).run({"id": 1}, time_out)
        shown = Person(site).open("/dead-letters")
        (group,) = [link for link in shown.links if "group=" in link and "confirm" not in link]
        assert "erp, old, crm" in shown.text
        for page in (shown, Person(site).open(group)):  # the filter offers every namespace that the page has found
            assert {"shared", "old", "erp"} <= {each["value"] for each in page.find("option")}


def test_who_did_what(tmp_path: Path) -> None:
    """The screen shows the latest actions of operators."""
    site = make_site(tmp_path, journal=f"sqlite:///{tmp_path}/journal.db")
    with closing(site):
        log = site.settings.operator_log("Ada")
        log.add("reset", "Reset. The record was completed.")
        log.close()
        shown = Person(site).open("/dead-letters").text
    assert "operator · reset Ada Reset. The record was completed." in shown
