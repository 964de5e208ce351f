"""Actions on one event: what is possible and why not, reset, and replay under a name through a real service."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncegate import Gate
from oncegate.claims import Admit, Claim, EventSummary, Release
from oncegate.console.pages.actions import event_actions
from oncegate.console.site import Site
from oncegate.journal import OPERATOR_ACTIONS, RowFilter
from oncegate.settings import load
from oncegate.stores.base import Inbox
from tests.console.pages.acting import Person, form_of, wait_for
from tests.console.pages.journals import HOSTILE, Shown, make_site
from tests.console.running import ENVIRON, csrf_of, logged_in
from tests.service.running import Service, until

KEY = b"k" * 16
ABOUT = EventSummary("plain", "call", None, None, "evt-1")
MakeSite = Callable[..., Site]


@pytest.fixture
def site_of(tmp_path: Path) -> Iterator[MakeSite]:
    sites: list[Site] = []

    def make(**flags: object) -> Site:
        sites.append(make_site(tmp_path, journal=f"sqlite:///{tmp_path}/journal.db", **flags))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(site_of: MakeSite) -> Site:
    return site_of()


def actions(site: Site, key: str) -> str:
    """The actions on an event, as text."""
    digest = bytes.fromhex(key)
    entry = next(iter(site.store.browse("default", key=digest)), None)
    rows = [] if site.journal is None else site.journal.rows(RowFilter(term=key, operators=True))
    return str(event_actions(site, "default", digest, entry, rows))


def address(path: str, key: str) -> str:
    return f"/event/{path}?key={key}&namespace=default"


def gate_of(site: Site, **options: object) -> Gate:
    """A gate that writes the journal of a site."""
    recorder = site.settings.recorder()
    assert recorder is not None
    gate = Gate(site.store, remember=None, max_attempts=1, observers=[recorder.of("default")], **options)  # type: ignore[arg-type]
    gate.written = lambda: gate._observers.flush(5) and recorder.flush(5)  # type: ignore[attr-defined]
    return gate


# ── what is possible ──────────────────────────────────────────────────────────────────────────────────────


def test_a_dead_letter(site: Site) -> None:
    """A dead letter can be redriven, dropped and replayed, and has its payload as curl. It is not reset."""
    key = str(gate_of(site).run({"id": "evt-1"}, lambda event: 1 / 0).key)
    shown = actions(site, key)
    for part in ("action=redrive", "action=drop", "/event/replay?", "--data-raw"):
        assert part in shown
    assert "/event/reset?" not in shown
    assert Person(site).open(address("reset", key)).code == 409


def test_without_a_payload(site: Site) -> None:
    """Without a stored payload, replay and curl are disabled, with the setting."""
    key = str(gate_of(site).run({"id": "evt-1"}, lambda event: None).key)
    shown = actions(site, key)
    assert shown.count("Set journal_payloads to a duration") == 2
    assert "--data-raw" not in shown
    assert "/event/reset?" in shown
    assert Person(site).open(address("replay", key)).code == 409


def test_the_payload_of_the_journal(site_of: MakeSite) -> None:
    """A payload in the journal makes replay and curl possible. The payload of a conflict is not used."""
    site = site_of(journal_payloads="1h")
    gate = gate_of(site)
    key = str(gate.run({"id": "evt-1", "n": "the original"}, lambda event: None).key)
    gate.run({"id": "evt-1", "n": "the conflict"}, lambda event: None)
    gate.written()  # type: ignore[attr-defined]
    shown = actions(site, key)
    assert "/event/replay?" in shown
    assert "the original" in shown
    assert "the conflict" not in shown


@pytest.mark.parametrize("field", ["id", "conversationId"])
def test_another_event_has_the_key_as_its_id(site_of: MakeSite, field: str) -> None:
    """A sender knows the key of its event, and can use it as the id of another event. The pages of the key are about
    its own event."""
    site = site_of(journal_payloads="24h")
    gate = gate_of(site)
    key = str(gate.run({"id": "victim", "amount": 10}, lambda event: None).key)
    for number in range(12):
        gate.run({"id": f"other-{number}", field: key, "subject": "complaint", "number": number}, lambda event: None)
    gate.written()  # type: ignore[attr-defined]
    shown = Person(site).open(f"/event?key={key}&namespace=default").text
    assert "victim" in shown
    assert "complaint" not in shown
    replay = Person(site).open(address("replay", key)).text
    assert "victim" in replay
    assert "complaint" not in replay


def test_a_large_payload(site: Site) -> None:
    """A page has no curl command for a large payload. It says why, and names the command that exports the payload."""
    key = str(gate_of(site).run({"id": "evt-1", "n": "x" * 100_000}, lambda event: 1 / 0).key)
    shown = actions(site, key)
    assert "x" * 1_000 not in shown
    assert "only a payload of up to 100,000 bytes can be pasted" in shown
    assert f"events export FILE --id {key}" in shown


def test_no_record(site: Site) -> None:
    """A key without a record cannot be reset, with the reason."""
    assert "The key has no record" in actions(site, "0" * 32)
    assert Person(site).open(address("reset", "0" * 32)).code == 409


@pytest.mark.parametrize("query", ["", "?key=xyz&namespace=default", "?key=00&namespace=", f"?key={'0' * 32}"])
@pytest.mark.parametrize("path", ["/event/reset", "/event/replay"])
def test_an_invalid_address(site: Site, path: str, query: str) -> None:
    assert Person(site).open(f"{path}{query}").code == 400


def test_hostile_text(site: Site) -> None:
    """Ids, types and payloads are shown as text."""
    key = str(gate_of(site).run({"id": HOSTILE, "type": HOSTILE, "n": HOSTILE}, lambda event: 1 / 0).key)
    person = Person(site)
    for shown in (person.open(f"/event?key={key}"), person.open(address("replay", key))):
        shown.check_nothing_escapes()
    task = person.do(address("replay", key), name=HOSTILE)
    assert task.problem is None
    person.open(f"/task?id={task.id}").check_nothing_escapes()
    person.open("/dead-letters").check_nothing_escapes()


# ── reset ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_reset_after_completion(site: Site) -> None:
    """After a reset, the next delivery runs again. The record says who did it."""
    gate, person = gate_of(site), Person(site)
    key = str(gate.run({"id": "evt-1"}, lambda event: None).key)
    shown = person.open(address("reset", key)).text
    assert "1 record is deleted. The next delivery of its event then runs like a new event." in shown
    assert "twice" not in shown
    task = person.do(address("reset", key))
    assert task.results[0] == f"Deleted the record of {key}. The next delivery of its event runs."
    assert gate.run({"id": "evt-1"}, lambda event: None).status == "processed"
    assert site.journal is not None
    (row,) = site.journal.rows(OPERATOR_ACTIONS)
    assert (row.kind, row.key_text, row.worker) == ("reset", key, "Ada (192.0.2.1)")


def test_reset_while_it_runs(site: Site) -> None:
    """While a worker runs the event, the page says that the event may run twice."""
    site.store.claim([Claim("default", KEY, b"o" * 16, b"h", 30_000_000, 10**9, ABOUT)])
    person = Person(site)
    assert "The event may run twice" in person.open(address("reset", KEY.hex())).text
    person.do(address("reset", KEY.hex()))
    assert site.store.browse("default", key=KEY) == []


def test_reset_of_what_another_process_deleted(site: Site) -> None:
    """A record that is gone when the form is sent is a problem, not a success."""
    key = str(gate_of(site).run({"id": "evt-1"}, lambda event: None).key)
    person = Person(site)
    form = form_of(person.open(address("reset", key)))
    person.do(address("reset", key))
    answer = Shown(person.send(*form))
    assert answer.code == 409
    assert "The record was changed meanwhile, so nothing was deleted. Reset is not possible." in answer.text


def running(site: Site) -> None:
    site.store.claim([Claim("default", KEY, b"p" * 16, b"h", 30_000_000, 10**9, ABOUT)])


def waiting(site: Site) -> None:
    assert isinstance(site.store, Inbox)
    site.store.admit([Admit("default", KEY, b"p" * 16, b"h", b'{"id": "evt-1"}', ABOUT)])


WARNINGS = [(running, "The event may run twice"), (waiting, "The event is lost unless it is delivered again.")]


@pytest.mark.parametrize(("arrive", "warning"), WARNINGS)
def test_reset_of_what_has_changed(site: Site, arrive: Callable[[Site], None], warning: str) -> None:
    """The form of a processed event does not delete the record of a run that started later, or an event that waits.
    The answer is the confirmation for the new record, with its warnings."""
    ada, bob = Person(site), Person(site, "Bob")
    site.store.claim([Claim("default", KEY, b"o" * 16, b"h", 0, 10**9, ABOUT, marks=True)])
    shown = ada.open(address("reset", KEY.hex()))
    assert warning not in shown.text
    form = form_of(shown)
    bob.do(address("reset", KEY.hex()))
    arrive(site)
    before = site.store.browse("default", key=KEY)
    again = Shown(ada.send(*form))
    assert (again.code, site.store.browse("default", key=KEY)) == (409, before)
    assert "The record was changed meanwhile, so nothing was deleted." in again.text
    assert warning in again.text
    assert ada.send(*form_of(again)).code == 303
    wait_for(lambda: not site.tasks.running)
    assert site.store.browse("default", key=KEY) == []


def test_reset_of_a_record_that_got_a_payload(site: Site) -> None:
    """A delivery that adds its payload to a released record changes neither the state nor the fence. The form of the
    record without a payload does not delete the payload."""
    person = Person(site)
    (granted,) = site.store.claim([Claim("default", KEY, b"o" * 16, b"h", 30_000_000, 10**9, ABOUT)])
    site.store.settle([Release("default", KEY, b"o" * 16, granted.record.fence, "failed")])
    form = form_of(person.open(address("reset", KEY.hex())))
    waiting(site)
    (entry,) = site.store.browse("default", key=KEY)
    assert (entry.record.fence, entry.record.payload is not None) == (granted.record.fence, True)
    assert person.send(*form).code == 409
    assert site.store.browse("default", key=KEY) == [entry]


def test_a_form_without_what_was_shown(site: Site) -> None:
    key = str(gate_of(site).run({"id": "evt-1"}, lambda event: None).key)
    assert Person(site).send("/event/reset", {"key": key, "namespace": "default"}).code == 409
    assert len(site.store.browse("default")) == 1


# ── replay ────────────────────────────────────────────────────────────────────────────────────────────────


def test_replay_needs_a_name(site: Site) -> None:
    key = str(gate_of(site).run({"id": "evt-1"}, lambda event: 1 / 0).key)
    for name in ("", "  \n "):
        answer = Person(site).send("/event/replay", {"key": key, "namespace": "default", "name": name})
        assert answer.code == 400


def test_replay_through_a_service(tmp_path: Path) -> None:
    """A replayed event runs once for each name in a real service, although the event was processed before. A second
    replay with the same name says so and runs nothing. A form without the token of the session changes nothing."""
    options = ("--journal-payloads", "1h")
    with Service(tmp_path, *options, environ=ENVIRON) as service, logged_in(service) as client:
        key = service.post({"id": "evt-1", "type": "call"}).json()["key"]
        until(lambda: service.effects() == ["evt-1"])
        form = {"key": key, "namespace": "default", "name": "after the fix"}
        until(lambda: "Replay the event" in client.get(f"/console{address('replay', key)}").text)
        assert client.post("/console/event/replay", data=form).status_code == 403
        assert client.post("/console/event/replay", data={**form, "csrf": "x"}).status_code == 403

        def replay(name: str) -> str:
            sent = client.post("/console/event/replay", data={**form, "name": name, "csrf": csrf_of(client)})
            assert sent.status_code == 303
            task = sent.headers["location"]
            until(lambda: "Ended" in client.get(task).text)
            return client.get(task).text

        assert "This service runs waiting events within a second." in replay("after the fix")
        until(lambda: service.effects() == ["evt-1"] * 2)
        assert "was replayed under the name &#34;after the fix&#34; before, so nothing runs" in replay("after the fix")
        assert "Replayed under the name" in replay("once more")
        until(lambda: service.effects() == ["evt-1"] * 3)
        assert service.post({"id": "evt-1", "type": "call"}).json()["status"] == "duplicate"
        history = client.get(f"/console/event?key={key}").text
        assert history.count("Ada (127.0.0.1)") == 2
        assert service.effects() == ["evt-1"] * 3


def test_redrive_through_a_service(tmp_path: Path) -> None:
    """The page says that this service runs redriven events, and the service does so after its handler was repaired."""
    with Service(tmp_path, "--max-attempts", "1", environ=ENVIRON) as service, logged_in(service) as client:
        service.post({"id": "evt-1", "do": "mend"})
        until(lambda: "1 dead letter in 1 group" in client.get("/console/dead-letters").text)
        (tmp_path / "mended").touch()
        page = client.get("/console/dead-letters/confirm?action=redrive").text
        assert "This service runs waiting events within a second." in page
        form = {"action": "redrive", "count": "1"}
        assert client.post("/console/dead-letters/start", data=form).status_code == 403
        sent = client.post("/console/dead-letters/start", data={**form, "csrf": csrf_of(client)})
        assert sent.status_code == 303
        until(lambda: service.effects() == ["evt-1", "evt-1"])
        assert "There are no dead letters." in client.get("/console/dead-letters").text


def test_a_read_only_page_cannot_change(tmp_path: Path) -> None:
    """A console that runs alone opens the store for reading, and for changes only when a task needs it."""
    settings = load(environ={}, flags={"store": f"sqlite:///{tmp_path}/oncegate.db"})
    gate = settings.gate(observers=(), max_attempts=1)
    key = str(gate.run({"id": "evt-1"}, lambda event: 1 / 0).key)
    site = Site(settings)
    person = Person(site)
    task = person.do(f"/dead-letters/confirm?action=drop&key={key}&namespace=default")
    assert task.results[0] == "1 dead letter dropped."
    assert isinstance(person.open("/dead-letters"), Shown)
    site.close()
    gate.close()
