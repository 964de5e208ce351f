"""Redrive and drop from the console: confirmation, progress, cancel, and the record of who did what."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from oncegate import Event, Gate
from oncegate.claims import DEAD, RELEASED, Redrive, Reset
from oncegate.console.site import Site
from oncegate.console.tasks import CANCELLED, STOPPED
from oncegate.errors import StoreUnavailable
from oncegate.inspection.operators import all_dead_letters
from oncegate.journal import OPERATOR_ACTIONS, RowFilter, open_journal
from oncegate.settings import load
from tests.console.pages.acting import Gatekeeper, Person, form_of, hooked, wait_for
from tests.console.pages.journals import HOSTILE
from tests.console.running import ENVIRON, csrf_of, logged_in
from tests.service.running import Service, until
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer

CONFIRM = "/dead-letters/confirm"
MakeSite = Callable[..., Site]


def fail(event: Event) -> None:
    raise ValueError(f"no case {event.id}")


@pytest.fixture
def site_of(tmp_path: Path) -> Iterator[MakeSite]:
    """Makes sites with a journal, whose store is a file or a server."""
    sites = []

    def make(url: str = f"sqlite:///{tmp_path}/oncegate.db", **flags: object) -> Site:
        journal = f"sqlite:///{tmp_path}/journal.db"
        settings = load(environ={}, flags={"store": url, "journal": journal, **flags})
        open_journal(journal).close()
        sites.append(Site(settings, settings.open_store))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(site_of: MakeSite) -> Site:
    return site_of()


@pytest.fixture
def gate(site: Site) -> Gate:
    return Gate(site.store, max_attempts=1, remember=None)


def bury(gate: Gate, count: int, **more: object) -> list[str]:
    """Make dead letters. Returns their keys."""
    return [str(outcome.key) for outcome in gate.run_batch([{"id": f"evt-{n}", **more} for n in range(count)], fail)]


def states(site: Site) -> list[str]:
    return sorted(entry.record.state for entry in site.store.browse(limit=10_000))


def reasons(site: Site) -> list[str]:
    journal = site.journal
    assert journal is not None
    return [row.reason for row in journal.rows(OPERATOR_ACTIONS)]


# ── each store ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def stored(request: pytest.FixtureRequest, site_of: MakeSite) -> Site:
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return site_of(f"{server.url()}?oncegate_schema=console_changes")
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        redis.client.flushall()
        return site_of(redis.url)
    return site_of()


@pytest.mark.parametrize(("action", "left"), [("redrive", RELEASED), ("drop", None)])
def test_counts(stored: Site, action: str, left: str | None) -> None:
    """The page shows the count before, and the task does exactly this and reports it."""
    gate, person = Gate(stored.store, max_attempts=1, remember=None, namespace=action), Person(stored)
    bury(gate, 150, type="call")
    kept = gate.run({"id": "other", "type": "chat"}, fail)
    address = f"{CONFIRM}?action={action}&type=call&namespace={action}"
    assert f"{action.capitalize()} 150 dead letters" in person.open(address).text
    task = person.do(address)
    assert (task.problem, task.done, task.total) == (None, 150, 150)
    assert task.results[0] == f"150 dead letters {'redriven' if action == 'redrive' else 'dropped'}."
    entries = stored.store.browse(action, limit=1_000)
    assert sorted(entry.record.state for entry in entries) == sorted([DEAD, *([left] * 150 if left else [])])
    assert [entry.key.hex() for entry in stored.store.dead_letters(action)] == [str(kept.key)]
    again = person.open(address)
    assert "No dead letter matches." in again.text
    assert [form for form in again.find("form", method="post") if "start" in form["action"]] == []


def test_redrive_runs(stored: Site) -> None:
    """What the page redrives is run by a gate with this store, on every store."""
    gate, ran = Gate(stored.store, max_attempts=1, remember=None, namespace="runs"), []
    bury(gate, 3)
    Person(stored).do(f"{CONFIRM}?action=redrive&namespace=runs")
    gate.run_waiting(lambda event: ran.append(event.id))
    assert sorted(each or "" for each in ran) == ["evt-0", "evt-1", "evt-2"]


# ── what is selected ──────────────────────────────────────────────────────────────────────────────────────


def test_one_dead_letter(site: Site, gate: Gate) -> None:
    """The address of one dead letter changes only this one, and its history has the row."""
    keys = bury(gate, 3)
    task = Person(site).do(f"{CONFIRM}?action=drop&key={keys[1]}&namespace=default")
    assert task.results == ["1 dead letter dropped."]
    assert sorted(entry.key.hex() for entry in site.store.dead_letters()) == sorted([keys[0], keys[2]])
    assert site.journal is not None
    (row,) = site.journal.rows(OPERATOR_ACTIONS)
    assert (row.key_text, row.kind, row.worker, row.reason) == (keys[1], "drop", "Ada (192.0.2.1)", "Dropped.")


def test_a_group(site: Site, gate: Gate) -> None:
    """The buttons of a group change the group only. The record names its error."""
    bury(gate, 20)
    gate.run({"id": "other"}, lambda event: 1 / 0)
    person = Person(site)
    group = person.open("/dead-letters").query_of_link("/dead-letters/confirm")
    assert group == {"action": "redrive"}
    links = [each for each in person.open("/dead-letters").links if "group=" in each and "action=drop" in each]
    task = person.do(links[0])
    assert task.results == ["20 dead letters dropped."]
    assert len(site.store.dead_letters()) == 1
    assert reasons(site) == ["Dropped 20 dead letters (error like ValueError: no case …)."]


def test_dead_letters_that_appear_later(site: Site, gate: Gate) -> None:
    """A dead letter that appears after the confirmation is not changed."""
    bury(gate, 2)
    person = Person(site)
    form = form_of(person.open(f"{CONFIRM}?action=drop"))
    gate.run({"id": "later"}, fail)
    person.send(*form)
    wait_for(lambda: not site.tasks.running)
    assert [entry.record.about.delivery_id for entry in site.store.dead_letters()] == ["later"]


def test_a_dead_letter_that_died_again(site: Site, gate: Gate) -> None:
    """A dead letter that was redriven after the confirmation, and then became a dead letter again, is not changed."""
    bury(gate, 1)
    ada, bob = Person(site), Person(site, "Bob")
    form = form_of(ada.open(f"{CONFIRM}?action=drop"))
    bob.do(f"{CONFIRM}?action=redrive")
    gate.run_waiting(fail)
    assert states(site) == [DEAD]
    ada.send(*form)
    wait_for(lambda: not site.tasks.running)
    assert states(site) == [DEAD]
    assert reasons(site) == ["Redriven."]


def test_more_than_confirmed(site: Site, gate: Gate) -> None:
    """If more dead letters match than were confirmed, nothing is changed."""
    bury(gate, 5)
    task = Person(site).do(f"{CONFIRM}?action=drop", count="4", until="")
    assert task.problem is not None
    assert "5 dead letters match now, and 4 were confirmed. Nothing was changed." in task.problem
    assert states(site) == [DEAD] * 5
    assert reasons(site) == []


def test_more_than_a_page_reads(site: Site, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many dead letters to count them on the page, a task counts them. It changes nothing. Then the
    person confirms the number."""
    monkeypatch.setattr("oncegate.console.pages.changes.MOST_READ", 30)
    bury(gate, 120)
    person = Person(site)
    shown = person.open(f"{CONFIRM}?action=drop")
    assert "Drop dead letters" in shown.text
    assert "Count them" in shown.text
    counted = person.do(f"{CONFIRM}?action=drop")
    assert counted.results == ["120 dead letters match. Nothing was changed yet."]
    assert states(site) == [DEAD] * 120
    assert counted.offer is not None
    assert counted.offer.name == "Drop 120 dead letters"
    person.send(counted.offer.path, dict(counted.offer.fields))
    wait_for(lambda: not site.tasks.running)
    assert states(site) == []


def test_the_count_of_a_redrive_warns(site: Site, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that counts says what the redrive will do, for all dead letters and not only for the first."""
    monkeypatch.setattr("oncegate.console.pages.changes.MOST_READ", 1)
    gate.run({"id": "same", "n": 1}, lambda event: None)
    gate.run({"id": "same", "n": 2}, lambda event: None)
    bury(gate, 3)
    results = Person(site).do(f"{CONFIRM}?action=redrive").results
    assert results[0] == "4 dead letters match. Nothing was changed yet."
    assert results[1].startswith("1 conflict: an event with the same key and other content was accepted before")


def test_back_to_the_page_of_the_event(site: Site, gate: Gate) -> None:
    """An action that was chosen on the page of an event leads back to that page; one from the list, to the list."""
    bury(gate, 1)
    (entry,) = site.store.dead_letters()
    address = f"{CONFIRM}?action=drop&key={entry.key.hex()}&namespace=default"
    person = Person(site)
    assert "/console/dead-letters?namespace=default" in person.open(address).links
    assert f"/console/event?key={entry.key.hex()}&namespace=default" in person.open(f"{address}&from=event").links
    assert person.do(f"{address}&from=event").back == f"/console/event?key={entry.key.hex()}&namespace=default"


INVALID = ("", "action=delete", "action=drop&older=soon", "action=drop&key=xyz", "action=drop&key=00")


@pytest.mark.parametrize("query", INVALID)
def test_an_invalid_address(site: Site, gate: Gate, query: str) -> None:
    """An address or form with an invalid parameter changes nothing, instead of everything."""
    bury(gate, 2)
    person = Person(site)
    assert person.open(f"{CONFIRM}?{query}").code == 400
    form = dict(part.split("=") for part in query.split("&") if part)
    assert person.send("/dead-letters/start", form).code == 400
    for count in ("-1", "1" * 5_000, "٣"):
        assert person.send("/dead-letters/start", {"action": "drop", "count": count}).code == 400
    assert states(site) == [DEAD] * 2


# ── warnings ──────────────────────────────────────────────────────────────────────────────────────────────


def test_warnings(site: Site, gate: Gate) -> None:
    """Before a redrive, the page names what no handler can run and who runs the rest. Before a drop, the exceptions."""
    gate.keep([gate.run(b"{", fail)])
    bury(gate, 1)
    redrive, drop = (Person(site).open(f"{CONFIRM}?action={action}").text for action in ("redrive", "drop"))
    assert "1 event cannot be read and will become a dead letter again" in redrive
    assert "These settings have no handler for the namespace default" in redrive
    assert "mark_first" in drop
    assert "conflict is a conflict again" in drop


def test_who_runs_them(site_of: MakeSite) -> None:
    """A console without a service does not promise a run. A console in a service does."""
    for live, expected in ((None, "The console runs no events."), (lambda: None, "This service runs waiting events")):
        site = site_of(**{"serve.handler": "log"})
        site.live = live  # type: ignore[assignment]
        bury(Gate(site.store, max_attempts=1, remember=None), 2)
        assert expected in Person(site).open(f"{CONFIRM}?action=redrive").text


# ── the task ──────────────────────────────────────────────────────────────────────────────────────────────


def test_progress_and_cancel(site: Site, gate: Gate) -> None:
    """The page shows the progress, survives a reload, and has a button that stops the task after its batch."""
    bury(gate, 350)
    batches, person = Gatekeeper(site), Person(site)
    task = person.confirm(f"{CONFIRM}?action=redrive")
    wait_for(lambda: batches.reached == 1)
    batches.passes.release()
    wait_for(lambda: batches.reached == 2)
    for _ in range(2):
        shown = person.open(f"/task?id={task.id}")
        assert "Redriving: 100 of 350." in shown.text
        (bar,) = shown.find("progress")
        assert (bar["value"], bar["max"]) == ("100", "350")
        assert len(shown.find("meta", **{"http-equiv": "refresh"})) == 1
    person.send(*form_of(shown))
    assert "Stopping: cancelled." in person.open(f"/task?id={task.id}").text
    batches.passes.release()
    wait_for(lambda: not task.is_running)
    ended = person.open(f"/task?id={task.id}")
    assert "200 of 350 dead letters redriven; cancelled. The others were not changed." in ended.text
    assert ended.find("meta", **{"http-equiv": "refresh"}) == []
    assert states(site) == [DEAD] * 150 + [RELEASED] * 200
    assert reasons(site) == ["Redrove 200 of 350 dead letters (all); cancelled."]


def test_pauses(site: Site, gate: Gate) -> None:
    """Between two batches, a task waits as long as a batch took, so that the service can use the store."""
    bury(gate, 350)
    starts: list[float] = []

    def take_time() -> None:
        starts.append(time.monotonic())
        time.sleep(0.1)

    hooked(site, take_time)
    Person(site).do(f"{CONFIRM}?action=drop")
    assert len(starts) == 4
    assert all(after - before >= 0.2 for before, after in pairwise(starts))


def test_another_process(site: Site, gate: Gate) -> None:
    """Dead letters that another process changes meanwhile are not changed, and are counted."""
    keys = [bytes.fromhex(key) for key in bury(gate, 10)]
    batches, person, store = Gatekeeper(site), Person(site), gate.store
    task = person.confirm(f"{CONFIRM}?action=drop")
    wait_for(lambda: batches.reached == 1)
    assert store.redrive([Redrive("default", key) for key in keys[:3]]) == [True] * 3
    assert store.reset([Reset("default", key) for key in keys[3:5]]) == [True] * 2
    batches.passes.release()
    wait_for(lambda: not task.is_running)
    assert task.results == [
        "5 dead letters dropped.",
        "5 could not be dropped: another process changed them meanwhile.",
    ]
    assert states(site) == [RELEASED] * 3
    assert reasons(site) == ["Dropped 5 of 10 dead letters (all)."]


def test_a_store_that_fails(site: Site, gate: Gate) -> None:
    """A store that fails in the middle ends the task. The page and the record say what was done before."""
    bury(gate, 250)
    calls = []

    def fail_third() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise StoreUnavailable("the store does not answer")

    hooked(site, fail_third)
    task = Person(site).do(f"{CONFIRM}?action=drop")
    assert (task.problem, task.done) == ("the store does not answer", 200)
    assert task.results[0].startswith("200 of 250 dead letters dropped; stopped by an error.")
    assert reasons(site) == ["Dropped 200 of 250 dead letters (all); stopped by an error."]


def test_the_process_stops(site: Site, gate: Gate) -> None:
    """If the process stops in the middle, the record says what was done."""
    bury(gate, 250)
    batches, person = Gatekeeper(site), Person(site)
    task = person.confirm(f"{CONFIRM}?action=drop")
    wait_for(lambda: batches.reached == 1)
    closing_site = threading.Thread(target=site.tasks.close)
    closing_site.start()
    wait_for(lambda: task.stop_reason == STOPPED)
    batches.passes.release(3)
    closing_site.join()
    assert not task.is_running
    assert reasons(site) == ["Dropped 100 of 250 dead letters (all); the service stopped."]


def test_too_many_tasks(site: Site, gate: Gate) -> None:
    """At most three tasks run at a time. A fourth is refused with a reason, and the page keeps what was chosen."""
    for each in range(4):
        bury(Gate(gate.store, max_attempts=1, remember=None, namespace=f"n{each}"), 1)
    batches, person = Gatekeeper(site), Person(site)
    for each in range(3):
        person.confirm(f"{CONFIRM}?action=drop&namespace=n{each}")
    path, form = form_of(person.open(f"{CONFIRM}?action=drop&namespace=n3"))
    refused = person.send(path, form)
    assert b"3 tasks are running; wait until one of them has ended, or cancel one." in refused.body
    assert b"Drop 1 dead letter" in refused.body
    assert person.open("/dead-letters").text.count("running") == 3
    batches.passes.release(3)
    wait_for(lambda: not site.tasks.running)
    batches.passes.release()
    person.do(f"{CONFIRM}?action=drop&namespace=n3")
    assert states(site) == []


def test_no_journal(site_of: MakeSite, caplog: pytest.LogCaptureFixture) -> None:
    """Without a journal, the log has the record, and the pages say so."""
    site = site_of(journal="off")
    bury(Gate(site.store, max_attempts=1, remember=None), 2)
    person = Person(site)
    task = person.do(f"{CONFIRM}?action=drop")
    assert task.results[0] == "2 dead letters dropped."
    assert task.results[1].startswith("The record of this action is only in the log of the service: ")
    assert caplog.messages == ["drop (Ada (192.0.2.1)): Dropped 2 dead letters (all)."]
    assert "Actions are recorded in the log of the service only" in person.open("/dead-letters").text


def test_hostile_text(site: Site, gate: Gate) -> None:
    """Ids, types, errors and names of people are shown as text, in pages and in the record."""

    def raise_hostile(event: Event) -> None:
        raise ValueError(HOSTILE)

    key = gate.run({"id": HOSTILE, "type": HOSTILE, "conversationId": HOSTILE}, raise_hostile).key
    person = Person(site, HOSTILE)
    for address in ("/dead-letters", f"{CONFIRM}?action=redrive", f"{CONFIRM}?action=drop&key={key}"):
        person.open(address).check_nothing_escapes()
    link = next(each for each in person.open("/dead-letters").links if "?group=" in each and "confirm" not in each)
    person.open(link).check_nothing_escapes()
    task = person.do(f"{CONFIRM}?action=redrive")
    person.open(f"/task?id={task.id}").check_nothing_escapes()
    shown = person.open("/dead-letters")
    shown.check_nothing_escapes()
    assert "<script>alert(1)</script>" in shown.text
    with closing(site.settings.open_journal()) as journal:
        (row,) = journal.rows(RowFilter(status="operator"))
        assert row.worker.isprintable()
    assert CANCELLED not in shown.text


# ── a real service ────────────────────────────────────────────────────────────────────────────────────────


def test_a_service_that_stops(tmp_path: Path) -> None:
    """A service that is stopped in the middle of a task stops in time, and the record has the exact count."""
    with closing(Gate(f"sqlite:///{tmp_path}/oncegate.db", max_attempts=1, remember=None)) as gate:
        for start in range(0, 20_000, 1_000):
            gate.run_batch([{"id": number} for number in range(start, start + 1_000)], fail)
    with Service(tmp_path, environ=ENVIRON) as service, logged_in(service) as client:
        service.post({"id": "creates the journal"})
        form = {"csrf": csrf_of(client), "action": "drop", "count": "20000"}
        task = client.post("/console/dead-letters/start", data=form).headers["location"]
        until(lambda: "Dropping: " in client.get(task).text)
        assert service.stop() == 0
    settings = load(environ={}, flags={"store": f"sqlite:///{tmp_path}/oncegate.db"})
    with closing(settings.open_read_only()) as store, closing(settings.open_journal()) as journal:
        left = sum(1 for _ in all_dead_letters(store, None))
        ended, started = journal.rows(OPERATOR_ACTIONS)
    assert 0 < left < 20_000
    assert started.reason == "Started to drop 20,000 dead letters (all)."
    assert ended.reason == f"Dropped {20_000 - left:,} of 20,000 dead letters (all); the service stopped."
