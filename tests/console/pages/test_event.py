"""The Event screen: the decision, the history, the difference, the key, the record, the lease and the payload."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from oncegate import Event, Gate
from oncegate.claims import Redrive, Reset
from oncegate.clocks import wall
from oncegate.console.pages.actions import confirm_replay
from oncegate.console.pages.event import event
from oncegate.console.pages.events import events
from oncegate.console.site import Site
from oncegate.journal import Journal, Row, RowFilter
from oncegate.times import readable_time
from tests.console.pages.journals import HOSTILE, SECOND, Shown, get, make_journal, make_site, row, write

CALL = {
    "id": "evt-1",
    "type": "call.ended",
    "conversationId": "c-1",
    "amount": 10,
    "agent": {"name": "Ann", "skill": "a"},
}


def done(_event: Event) -> dict[str, str]:
    return {"stored": "yes"}


def fail(_event: Event) -> None:
    raise ValueError("the CRM is down")


@contextmanager
def gate_of(site: Site, **options: Any) -> Iterator[Gate]:
    """A gate with the settings of the site that writes its journal. The rows are written when the block ends."""
    recorder = site.settings.recorder()
    assert recorder is not None
    with closing(site.settings.gate(site.settings.open_store(), observers=[recorder.of("calls")], **options)) as gate:
        yield gate
        assert recorder.flush(10)
    recorder.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(make_site(tmp_path, journal_payloads="7d")) as site:
        yield site


def journal_of(site: Site) -> Journal:
    assert site.journal is not None
    return site.journal


def address(known: Row, *, with_row: bool = False) -> str:
    row_part = f"&row={known.id}" if with_row else ""
    return f"/event?key={known.key.hex()}&namespace={known.namespace}{row_part}"


def rows_of(site: Site, status: str) -> list[Row]:
    return journal_of(site).rows(RowFilter(status=status))


def show(site: Site, status: str) -> Shown:
    """The screen of the newest row with this status."""
    return get(event, site, address(rows_of(site, status)[0], with_row=True))


def test_the_decision_comes_first(site: Site) -> None:
    with gate_of(site) as gate:
        gate.run(CALL, done)

    shown = show(site, "processed")

    text = shown.text[shown.text.index("Log out") :]
    assert text.index("Event evt-1") < text.index("Run: evt-1 was processed") < text.index("History")
    assert "at its first attempt. Until" in text
    assert "completed" in text
    assert shown.query_of_link("/conversation") == {"id": "c-1"}


def test_the_history_has_arrivals_with_gaps(site: Site, tmp_path: Path) -> None:
    at = wall() - 100 * SECOND
    with closing(make_journal(tmp_path)) as journal:
        write(
            journal,
            [
                row(1, at, took=2_000, place="calls"),
                row(1, at + 3_200_000, "duplicate", "redelivery", attempt=0, delivery_id="message-2"),
                row(1, at + 3_200_400, "duplicate", "redelivery", attempt=0),
                row(1, at + 93_200_400, "duplicate", "redelivery", attempt=0, count=37, since=at + 63_200_400),
            ],
        )
        known = journal.rows()[0]

    shown = get(event, site, address(known))

    assert "40 deliveries. Oldest first." in shown.text
    assert f"{readable_time(at + 63_200_400)} 1 m later" in shown.text  # the time of the first copy
    for text in ("3.2 s later", "less than 1 ms later", "took 2 ms", "route calls", "delivery message-2"):
        assert text in shown.text
    assert "\N{MULTIPLICATION SIGN} 37 copies from" in shown.text
    assert "no record" in shown.text
    assert "The store has no record of evt-1 any more" in shown.text


def test_rows_that_are_missing_are_not_hidden(site: Site, tmp_path: Path) -> None:
    with closing(make_journal(tmp_path)) as journal:
        write(journal, [row(1, wall(), "duplicate", "redelivery", attempt=0)])
        known = journal.rows()[0]

    assert "At least 1 delivery: rows are missing" in get(event, site, address(known)).text


def test_actions_of_operators_are_in_the_history(site: Site, tmp_path: Path) -> None:
    with closing(make_journal(tmp_path)) as journal:
        write(
            journal, [row(1, wall() - SECOND), row(1, wall(), "operator", "reset", worker="Ada, 127.0.0.1", attempt=0)]
        )
        known = journal.rows()[0]

    shown = get(event, site, address(known))

    assert "operator · reset" in shown.text.replace(" · ", " · ")
    assert "by Ada, 127.0.0.1" in shown.text
    assert "1 delivery. Oldest first." in shown.text


def test_a_conflict_shows_both_values_of_each_path(site: Site) -> None:
    with gate_of(site) as gate:
        gate.run(CALL, done)
        gate.run({**CALL, "amount": 12, "agent": {"name": "Ann"}, "extra": [1]}, done)

    shown = show(site, "conflict")

    text = shown.text[shown.text.index("Difference from the original") : shown.text.index("History")]
    assert "agent.skill \N{MINUS SIGN} removed" in text
    assert "amount \N{NOT EQUAL TO} changed 10 12 extra + added [1]" in text
    assert "This delivery" in text
    kept = rows_of(site, "conflict")[0].kept.hex()
    assert f"/console/event?key={kept}&namespace=default" in shown.links
    assert "This delivery was stored as a dead letter. The page of the dead letter shows its state" in shown.text
    assert "was stored as a dead letter" not in get(event, site, f"/event?key={kept}&namespace=default").text


def test_without_a_row_the_page_is_about_the_event(site: Site) -> None:
    """The page of a row is about this row. The page of a key is about the event, and names no row."""
    with gate_of(site) as gate:
        gate.run(CALL, done)
        gate.run(CALL, done)
        gate.run({**CALL, "amount": 12}, done)
    conflict = rows_of(site, "conflict")[0]

    about_event, about_row = get(event, site, address(conflict)), get(event, site, address(conflict, with_row=True))

    assert "his delivery." not in about_event.text
    assert "This delivery" not in about_event.text
    assert [each for each in about_event.find("li") if each.get("aria-current")] == []
    assert "Difference from the original" not in about_event.text
    assert '"amount": 10' in about_event.text
    assert "As it arrived with the first delivery" in about_event.text
    assert "This page is about this delivery." in about_row.text
    assert '"amount": 12' in about_row.text
    (current,) = [each for each in about_row.find("li") if each.get("aria-current")]
    assert current["class"] == "status-conflict"
    duplicate = get(event, site, address(rows_of(site, "duplicate")[0], with_row=True))
    (current,) = [each for each in duplicate.find("li") if each.get("aria-current")]
    assert current["class"] == "status-duplicate"


def test_the_run_of_a_redriven_conflict_is_no_arrival(site: Site) -> None:
    with gate_of(site) as gate:
        gate.run(CALL, done)
        kept = gate.run({**CALL, "amount": 12}, done).kept
        assert kept is not None
        gate.store.redrive([Redrive("default", kept.digest)])
        gate.run_waiting(done)

    shown = get(event, site, f"/event?key={kept}&namespace=default")

    history = shown.text[shown.text.index("History") : shown.text.index("Actions")]
    assert "1 delivery. Oldest first." in history
    assert (history.count("arrival"), history.count("attempt · ")) == (1, 1)
    assert "This page is about" not in history


def test_a_replay_is_not_a_dead_letter(site: Site, tmp_path: Path) -> None:
    at, copy = wall() - 10 * SECOND, b"c" * 16
    with closing(make_journal(tmp_path)) as journal:
        reason = 'Replayed under the name "fix".'
        write(
            journal,
            [
                row(1, at),
                row(1, at + 1, "operator", "replay", attempt=0, kept=copy, worker="Ada", reason=reason),
                row(1, at + 2, key=copy),
            ],
        )
        known = journal.rows()[-1]

    original = get(event, site, address(known))
    replayed = get(event, site, f"/event?key={copy.hex()}&namespace=crm")

    assert f"Replay {copy.hex()[:12]}" in original.text
    assert "Dead letter " not in original.text
    assert f"Replay of {known.key.hex()[:12]}" in replayed.text
    assert "Ada made it from the event evt-1 , " in replayed.text
    assert "0 deliveries, 1 replay. Oldest first." in replayed.text
    assert 'under the name "fix"' in replayed.text
    assert "arrival" not in replayed.text
    assert "As it arrived" not in replayed.text
    assert f"/console{address(known)}" in replayed.links


def test_curl_sends_the_payload_of_the_page(site: Site) -> None:
    """The page of a conflict shows the payload of the conflict. Replay runs the original, and shows its payload."""
    with gate_of(site) as gate:
        gate.run(CALL, done)
        kept = gate.run({**CALL, "amount": 12}, done).kept
        assert kept is not None
        gate.store.reset([Reset("default", kept.digest)])  # the dead letter was dropped: the page has the original

    shown = show(site, "conflict")
    original = show(site, "processed")

    (command,) = [each["data-copy"] for each in shown.find("button") if "curl" in each.get("data-copy", "")]
    assert '"amount":12' in command.replace(" ", "")
    assert "Replay runs the event that owns the key, with its own payload." in shown.text
    assert "Replay runs" not in original.text
    confirmation = get(confirm_replay, site, f"/event/replay?{urlencode(shown.query_of_link('/event/replay'))}").text
    assert "The event runs with this payload:" in confirmation
    assert '"amount":10' in confirmation.replace(" ", "")


def test_without_payloads_only_the_paths_are_shown(tmp_path: Path) -> None:
    with closing(make_site(tmp_path)) as site:
        with gate_of(site) as gate:
            gate.run(CALL, done)
            gate.run({**CALL, "amount": 12}, done)

        first, second = journal_of(site).rows()[::-1]
        if not (first.shape and second.shape):
            pytest.skip("the recorder had no time for details")
        shown = get(event, site, address(second, with_row=True))

    assert "Difference from the original amount Only the paths are known." in shown.text
    assert "set journal_payloads" in shown.text
    assert "The journal holds no payloads, because journal_payloads is off." in shown.text


def test_a_copy_has_the_content_of_the_original(site: Site) -> None:
    with gate_of(site) as gate:
        gate.run(CALL, done)
        gate.run(CALL, done)

    shown = show(site, "duplicate")

    assert "The content is the same as that of the original." in shown.text
    assert "This delivery, " in shown.text
    assert "Compare this delivery" not in shown.text
    original = get(event, site, address(rows_of(site, "processed")[0], with_row=True))
    assert "Difference from the original" not in original.text
    assert f"/console{address(rows_of(site, 'duplicate')[0], with_row=True)}" in original.links


def test_the_key_has_its_strategy_and_its_parts(site: Site) -> None:
    with gate_of(site) as gate:
        gate.run(CALL, done)

    shown = show(site, "processed")

    known = rows_of(site, "processed")[0]
    text = shown.text[shown.text.index("Key Key") :]
    assert text.startswith(f"Key Key {known.key.hex()} Copy Namespace default Strategy {known.strategy} Made of")
    assert "evt-1" in text[: text.index("With another key strategy")]
    if known.digests:  # a busy recorder omits them
        assert "auto new event event_id new event content new event" in text


def test_the_record_is_shown(site: Site) -> None:
    with gate_of(site) as gate:
        gate.run(CALL, done)

    text = show(site, "processed").text

    for name in ("Attempts 1", "Source plain", "First seen", "Completed at", "Expires at", "Fence", "Payload hash"):
        assert name in text
    assert '"stored": "yes"' in text


def test_while_it_runs_the_lease_is_shown(site: Site) -> None:
    """The end of the lease is a time. The script counts down from what is left, in milliseconds."""
    started, go = threading.Event(), threading.Event()

    def wait(_event: Event) -> None:
        started.set()
        go.wait(20)

    with gate_of(site) as gate:
        running = threading.Thread(target=gate.run, args=(CALL, wait))
        running.start()
        assert started.wait(20)
        (entry,) = site.store.browse()
        shown = get(event, site, f"/event?key={entry.key.hex()}&namespace=default")
        go.set()
        running.join()

    assert "Running: a worker is processing evt-1" in shown.text
    assert f"Lease owner {entry.record.owner.hex()} Fence {entry.record.fence} Attempt 1" in shown.text
    (timer,) = shown.find("span", role="timer")
    assert 20_000 < int(timer["data-countdown"]) <= 30_000
    assert "unless the worker renews it" in shown.text
    assert any(each["src"].endswith("/event.js") for each in shown.find("script"))


def test_the_payload_is_text_of_bounded_size(site: Site) -> None:
    large = {**CALL, "id": "large", "text": "x" * 20_000, "z": "the end"}
    with gate_of(site) as gate:
        gate.run(CALL, done)
        gate.run(large, done)

    known = {each.event_id: each for each in rows_of(site, "processed")}
    small, cut = get(event, site, address(known["evt-1"])), get(event, site, address(known["large"]))
    whole = get(event, site, f"{address(known['large'])}&payload=all")

    assert '"amount": 10, "conversationId": "c-1", "id": "evt-1"' in small.text
    assert "Show all" not in small.text
    assert "the end" not in cut.text[cut.text.index("As it arrived with the first delivery") :]
    assert "Show all 20,1" in cut.text
    assert "the end" in whole.text
    copies = [[each.get("data-copy", "") for each in shown.find("button")] for shown in (cut, whole)]
    assert [sum(each.startswith('{"') for each in shown) for shown in copies] == [0, 1]  # no part can be copied


@pytest.mark.parametrize(
    ("payload", "lines"),
    [
        (
            b'{"id": "evt-1", "n":12345678901234567890.123456789,"m":1.10}',
            ['"n": 12345678901234567890.123456789', "1.10"],
        ),
        (b'{"id":"evt-1","a":1,"a":2}', ['"a": 1', '"a": 2']),
        (b'{"id":"evt-1","e":1E400,"z":-0,"s":"\\u00e9\\/"}', ['"e": 1E400', '"z": -0', '"s": "\\u00e9\\/"']),
    ],
)
def test_the_payload_is_shown_as_it_arrived(site: Site, payload: bytes, lines: list[str]) -> None:
    """Numbers and strings are not changed, and the copy is the payload byte for byte."""
    with gate_of(site) as gate:
        gate.run(payload, done)
    (known,) = journal_of(site).rows()

    shown = get(event, site, f"/event?row={known.id}" if not known.key else address(known))

    assert "As it arrived with " in shown.text
    text = shown.text[shown.text.index("delivery, from the journal. Indented for reading.") :]
    assert all(line in text for line in lines)
    assert payload.decode() in [each.get("data-copy") for each in shown.find("button")]


def test_the_payload_of_a_dead_letter_comes_from_the_store(tmp_path: Path) -> None:
    with closing(make_site(tmp_path)) as site:
        with gate_of(site, max_attempts=1) as gate:
            inbox_key = gate.run({**CALL, "id": "bad"}, fail).key
        shown = get(event, site, f"/event?key={inbox_key}&namespace=default")

    assert "dead letter" in shown.text
    assert "From the record in the store" in shown.text
    assert '"id": "bad"' in shown.text
    assert "Redrive" in shown.text


def test_a_row_without_a_key_has_its_own_screen(site: Site) -> None:
    with gate_of(site) as gate:
        gate.run_batch([b'{"broken'], done)
    known = rows_of(site, "invalid")[0]

    shown = get(event, site, get(events, site, "/events").links[-1].removeprefix("/console"))

    assert known.key == b""
    assert "Refused: the text is not JSON" in shown.text
    assert "The event has no key." in shown.text


def test_a_record_without_rows_is_shown(site: Site, tmp_path: Path) -> None:
    """Without a journal, or after its rows were deleted, the record still says what is true."""
    with closing(make_site(tmp_path, journal="off")) as quiet:
        with closing(quiet.settings.gate(quiet.settings.open_store(), observers=[])) as gate:
            key = gate.run(CALL, done).key
        shown = get(event, quiet, f"/event?key={key}")
    assert "Run: evt-1 was processed" in shown.text
    assert "there is no journal, because it is off" in shown.text

    with closing(make_journal(tmp_path)) as journal:
        write(journal, [row(9, wall())])
    text = get(event, site, f"/event?key={key}&namespace=default").text
    assert "Run: evt-1 was processed" in text
    assert "The journal has no row of this event" in text


@pytest.mark.parametrize(
    "query", ["", "key=", "key=xyz", f"key={'0' * 32}", "row=5", "row=x", f"row={'9' * 40}", "key=%00&namespace=%3C"]
)
def test_an_unknown_event(site: Site, query: str) -> None:
    shown = get(event, site, f"/event?{query}")

    assert shown.code == 404
    assert "Nothing is known about this event." in shown.text
    assert "/console/events" in shown.links


def test_hostile_text_is_shown_as_text(site: Site, tmp_path: Path) -> None:
    hostile = {"id": HOSTILE[:200], "type": HOSTILE, "conversationId": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}}
    with gate_of(site) as gate:
        gate.run(hostile, done)
        gate.run({**hostile, HOSTILE: 5}, done)
        gate.run({**CALL, "id": HOSTILE}, fail)
    with closing(make_journal(tmp_path)) as journal:
        same = {"event_id": HOSTILE, "entity": HOSTILE, "delivery_id": HOSTILE, "worker": HOSTILE, "reason": HOSTILE}
        write(journal, [row(77, wall(), named=HOSTILE, place=HOSTILE, strategy=HOSTILE, **same)])
    for known in journal_of(site).rows():
        shown = get(event, site, address(known, with_row=True) if known.key else f"/event?row={known.id}")
        assert shown.code == 200
        shown.check_nothing_escapes()
        assert "alert(1)" in shown.text


def test_a_long_history_is_bounded(site: Site, tmp_path: Path) -> None:
    at = wall() - 1_000 * SECOND
    with closing(make_journal(tmp_path)) as journal:
        write(journal, [row(1, at + each * SECOND, "duplicate", "redelivery", attempt=0) for each in range(500)])
        known = journal.rows()[0]

    shown = get(event, site, address(known))

    assert "300 rows in the middle are not shown here." in shown.text
    assert len([each for each in shown.find("li") if "status-duplicate" in each.get("class", "")]) == 200
