"""Erase a conversation from the console: a dry run first, then the erasure."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest

from oncegate import Gate
from oncegate.console.site import Site
from oncegate.console.tasks import STOPPED, Task
from oncegate.errors import StoreUnavailable
from oncegate.journal import OPERATOR_ACTIONS, RowFilter
from oncegate.stores.base import Store
from tests.console.pages.acting import Gatekeeper, Hooked, Person, form_of, hooked, wait_for
from tests.console.pages.journals import HOSTILE, make_site

ENTITY = "conversation-17"
ADDRESS = f"/conversation/forget?id={ENTITY}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with a processed event and a dead letter of the conversation, and an event of another one."""
    with closing(make_site(tmp_path, journal=f"sqlite:///{tmp_path}/journal.db")) as site:
        recorder = site.settings.recorder()
        assert recorder is not None
        gate = Gate(site.store, max_attempts=1, remember=None, observers=[recorder.of("default")])
        gate.run({"id": "evt-1", "conversationId": ENTITY}, lambda event: None)
        gate.run({"id": "evt-2", "conversationId": ENTITY}, lambda event: 1 / 0)
        gate.run({"id": "evt-3", "conversationId": "another one"}, lambda event: None)
        gate._observers.flush(5)
        assert recorder.close()
        yield site


def test_a_dry_run_and_the_erasure(site: Site) -> None:
    """The dry run counts and changes nothing. The erasure leaves nothing that names the conversation."""
    person, store = Person(site), site.store
    before = store.browse()
    dry = person.do(ADDRESS)
    assert dry.results[0] == "Found 1 record, 1 dead letter and 2 journal rows."
    assert store.browse() == before
    answer = person.send(*form_of(person.open(f"/task?id={dry.id}")))
    task = site.tasks.find(dict(answer.headers)[b"location"].decode().partition("id=")[2])
    assert task is not None
    wait_for(lambda: not task.is_running)
    assert (task.problem, task.results[0]) == (None, "Erased 1 record, 1 dead letter and 2 journal rows.")
    assert {entry.record.about.entity for entry in store.browse()} == {None, "another one"}
    assert site.journal is not None
    assert list(site.journal.rows(RowFilter(entity=ENTITY, operators=True))) == []
    (row,) = site.journal.rows(OPERATOR_ACTIONS)
    assert (row.kind, row.worker, ENTITY in row.reason) == ("forget", "Ada (192.0.2.1)", False)
    assert site.tasks.find(dry.id) is None
    assert ENTITY not in person.open(f"/task?id={task.id}").text


def test_nothing_to_erase(site: Site) -> None:
    """A dry run that finds nothing offers no erasure."""
    task = Person(site).do("/conversation/forget?id=unknown")
    assert (task.results, task.offer) == (["Found 0 records, 0 dead letters and 0 journal rows."], None)


def fill(site: Site, count: int) -> None:
    """Add processed events of the conversation, without rows in the journal."""
    Gate(site.store, remember=None).run_batch(
        [{"id": f"more-{number}", "conversationId": ENTITY} for number in range(count)], lambda event: None
    )


def start_erasure(person: Person) -> Task:
    """Start the erasure of the conversation, without a dry run."""
    answer = person.send("/conversation/erase", {"id": ENTITY})
    task = person.site.tasks.find(dict(answer.headers)[b"location"].decode().partition("id=")[2])
    assert task is not None
    return task


def erased(site: Site) -> int:
    entries = site.store.browse(limit=10_000)
    return sum(1 for entry in entries if entry.record.about.entity is None)


def actions(site: Site) -> list[str]:
    assert site.journal is not None
    return [row.reason for row in site.journal.rows(OPERATOR_ACTIONS)]


def test_cancel_while_it_reads(site: Site) -> None:
    """A task that is cancelled while it reads the records erases nothing."""
    person = Person(site)
    reading, go = threading.Event(), threading.Event()

    class Slow(Hooked):
        def browse(self, *arguments: Any, **options: Any) -> Any:
            reading.set()
            assert go.wait(20)
            return self._store.browse(*arguments, **options)

    site._store = cast(Store, Slow(store := site.store, lambda: None))
    task = person.confirm(ADDRESS)
    assert reading.wait(20)
    person.send(*form_of(person.open(f"/task?id={task.id}")))
    go.set()
    wait_for(lambda: not task.is_running)
    site._store = store
    assert (task.problem, task.results, task.offer) == ("Nothing was erased: cancelled.", [], None)
    assert (erased(site), actions(site)) == (0, [])


def test_cancel_while_it_erases(site: Site) -> None:
    """A task that is cancelled while it erases ends after its batch. The page and the record say what was done, and the
    same action erases the rest."""
    fill(site, 349)
    batches, person = Gatekeeper(site), Person(site)
    task = start_erasure(person)
    wait_for(lambda: batches.reached == 1)
    batches.passes.release()
    wait_for(lambda: batches.reached == 2)
    shown = person.open(f"/task?id={task.id}")
    assert "Erasing records: 100 of 351." in shown.text
    person.send(*form_of(shown))
    batches.passes.release()
    wait_for(lambda: not task.is_running)
    reason = "Erased 200 records and 0 dead letters. Interrupted after 200 of 351 records (cancelled)."
    assert (task.problem, task.results[0]) == ("Some data is left. Repeat the action to erase the rest.", reason)
    assert (erased(site), actions(site)) == (200, [reason])
    batches.passes.release(3)
    task = start_erasure(person)
    wait_for(lambda: not task.is_running)
    assert (task.problem, task.results[0]) == (None, "Erased 150 records, 1 dead letter and 2 journal rows.")
    assert erased(site) == 351


def test_the_process_stops(site: Site) -> None:
    """If the process stops while it erases, the task ends after its batch, and the record says what was done."""
    fill(site, 349)
    batches = Gatekeeper(site)
    task = start_erasure(Person(site))
    wait_for(lambda: batches.reached == 1)
    closing_site = threading.Thread(target=site.tasks.close)
    closing_site.start()
    wait_for(lambda: task.stop_reason == STOPPED)
    batches.passes.release(4)
    closing_site.join()
    assert not task.is_running
    reason = "Erased 100 records and 0 dead letters. Interrupted after 100 of 351 records (the service stopped)."
    assert (erased(site), actions(site)) == (100, [reason])


def test_a_store_that_fails(site: Site) -> None:
    """If the store fails while the task erases, the page and the record say what was done before."""
    fill(site, 349)
    calls: list[int] = []

    def fail_third() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise StoreUnavailable("the store does not answer")

    hooked(site, fail_third)
    task = start_erasure(Person(site))
    wait_for(lambda: not task.is_running)
    reason = "Erased 200 records and 0 dead letters. Interrupted after 200 of 351 records (stopped by an error)."
    assert (task.problem, task.results) == ("the store does not answer", [reason])
    assert (erased(site), actions(site)) == (200, [reason])


def test_no_conversation(site: Site) -> None:
    person = Person(site)
    assert person.open("/conversation/forget").code == 400
    for path in ("/conversation/forget", "/conversation/erase"):
        assert person.send(path, {"id": ""}).code == 400


def test_the_link(site: Site) -> None:
    """The screen of a conversation links to the page, also with a hostile name."""
    person = Person(site)
    assert ADDRESS in "".join(person.open(f"/conversation?id={ENTITY}").links)
    hostile = person.open(f"/conversation/forget?id={quote(HOSTILE)}")
    hostile.check_nothing_escapes()
    assert "<script>alert(1)</script>" in hostile.text
