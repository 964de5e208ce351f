"""Simulated traffic: reproducible, readable, and with correct keys."""

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest

from oncegate import Gate, keys, read
from oncegate.errors import SettingError
from oncegate.simulate.copies import CopyOptions
from oncegate.simulate.traffic import Plan, PlannedDelivery, deliveries, keys_of, simulated_events

ALL = CopyOptions(reemit=0.3, rewrap=0.3, replay=0.2, echo=0.3, conflict=0.3, invalid=0.2)
WINDOW = ALL.window


def made(events: int = 400, delay: int = 0, seed: int = 11, options: CopyOptions = ALL) -> list[PlannedDelivery]:
    return list(deliveries(Plan(events=events, seed=seed, delay=delay, copy_options=options)))


def test_the_same_bytes_again() -> None:
    """A seed makes the same bytes and the same truth in every process; another seed makes others."""
    command = [sys.executable, "-m", "oncegate", "simulate", "--to", "-", "--truth", "/dev/stderr", "--events", "60"]
    command += ["--delay", "2s", "--echo", "0.3", "--conflict", "0.3", "--invalid", "0.3", "--seed"]

    def output(seed: str, hashing: str) -> tuple[bytes, list[bytes]]:
        env = {**os.environ, "PYTHONHASHSEED": hashing}
        done = subprocess.run([*command, seed], capture_output=True, env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr.splitlines()[:-1]  # the last says how long it took

    first = output("3", "1")
    assert len(first[1]) > len(first[0].splitlines()) >= 60
    assert output("3", "2") == first
    assert output("4", "1")[0] != first[0]


def test_what_happens_does_not_depend_on_its_copies() -> None:
    """The options of copies and delays do not change the events."""
    alone = CopyOptions(copies=(1, 1), reemit=0, rewrap=0, replay=0)
    for plan in (Plan(events=50, seed=2), Plan(events=50, seed=2, delay=5_000_000, copy_options=alone)):
        firsts = {
            each.original.number: each.copy.raw
            for each in deliveries(plan)
            if each.original and each.copy.kind == "first"
        }
        assert len(firsts) == 50
        assert [firsts[number] for number in sorted(firsts)] == [
            each.copy.raw for each in made(50, seed=2, options=alone)
        ]


def test_each_is_read_as_what_it_is_meant_to_be() -> None:
    """A gate gives each delivery the outcome and kind that the truth has."""
    gate = Gate("memory://")
    for delivery in made(options=CopyOptions(reemit=0.3, rewrap=0.5, replay=0.2, conflict=0.3, invalid=0.2)):
        outcome = gate.run(delivery.copy.raw, lambda event: None)
        kind = delivery.copy.kind
        expected = {"first": "processed", "conflict": "conflict", "invalid": "invalid"}.get(kind, "duplicate")
        assert outcome.status == expected, delivery
        assert outcome.kind == (kind if expected == "duplicate" else None), delivery


def test_all_there_is_to_read() -> None:
    """The traffic has every source, topic and wrapping."""
    found = made(700)
    types = {event.type for delivery in found for event in read(delivery.copy.raw) if not event.problem}
    topic = "v2.detail.events.conversation.{id}"
    ends = ("customer.start", "customer.end", "flow.start", "flow.outcome", "flow.end", "attributes", "acd.start")
    assert types >= {f"{topic}.{end}" for end in (*ends, "acd.end", "user.start", "user.end", "acw", "wrapup")}
    assert types >= {"openmessaging.Text", "openmessaging.Receipt", "CaseCreated", "CaseStatusChanged"}
    assert types >= {"MessageCreated", "CallContactEvent"}
    assert {delivery.copy.wrapping for delivery in found} == {None, "sns", "array", "detail", "websocket"}
    sources = Counter(each.event.source for each in simulated_events(Plan(events=200)))
    assert sources.keys() == {"genesys", "cxone"}
    same = Counter(
        (each.event.type, each.event.entity, each.event.occurred_at) for each in simulated_events(Plan(events=500))
    )
    assert any(number > 1 for number in same.values()), "two updates of attributes share a millisecond"


def test_keys_tell_the_truth() -> None:
    """Under `auto` an event and its copies share a key of their own; an echo has another key and the same state within
    the window."""
    owner: dict[str | None, int] = {}
    for delivery in made(600):
        if delivery.original is None:
            assert delivery.event.problem, "what is invalid cannot be read"
            assert set(keys_of(delivery.event, WINDOW).values()) == {None}
            continue
        own, first = keys_of(delivery.event, WINDOW), keys_of(delivery.original.event, WINDOW)
        assert owner.setdefault(own["auto"], delivery.original.number) == delivery.original.number
        echo = delivery.copy.kind == "state-echo"
        assert (own["auto"] != first["auto"]) == echo
        if echo:
            changes = [keys.state_change()(event).change for event in (delivery.event, delivery.original.event)]
            assert changes[0] is not None
            assert changes[1] is not None
            assert 0 < changes[0].at - changes[1].at <= WINDOW
            assert (changes[0].timeline, changes[0].state) == (changes[1].timeline, changes[1].state)


@pytest.mark.parametrize("window", [1_000, 5_000_000])
def test_echoes_are_one_event_and_nothing_else_is(window: int) -> None:
    """`state_change` with the window of the simulation runs each event once, whatever the delay."""
    ran: list[str | None] = []
    gate = Gate("memory://", key=keys.first(keys.state_change(f"{window // 1_000}ms"), keys.auto))
    copy_options = CopyOptions(echo=0.7, window=window)
    for delivery in made(500, delay=20_000_000, options=copy_options):
        gate.run(delivery.copy.raw, lambda event: ran.append(event.entity))
    assert Counter(ran) == Counter(each.event.entity for each in simulated_events(Plan(events=500, seed=11)))
    assert gate.counts.get("timeline.split", 0) == 0


def test_late_and_out_of_order() -> None:
    """With a delay, deliveries are at most that late, and are sorted by due time."""
    late = made(delay=2_000_000)
    assert all(one.due <= other.due for one, other in pairwise(late))
    behind = [each.due - (each.original.number - 1) * 10_000 for each in late if each.original]
    assert 0 <= min(behind) < 100_000
    assert 1_900_000 < max(behind) <= 2_000_000
    firsts = [each.original.number for each in late if each.original and each.copy.kind == "first"]
    assert firsts != sorted(firsts)
    assert Counter(each.copy.raw for each in late) == Counter(each.copy.raw for each in made())


def test_how_often() -> None:
    """The number of copies and the shares are those of the options."""
    assert {each.copy.kind for each in made(50, options=CopyOptions(copies=(1, 1), reemit=0, rewrap=0, replay=0))} == {
        "first"
    }
    every = CopyOptions(copies=(4, 4), reemit=1, rewrap=1, replay=1, echo=1, conflict=1, invalid=1)
    found = [each for each in made(40, options=every) if each.original is None or "detail" in each.original.document]
    of_calls = Counter(each.copy.kind for each in found if each.original and each.copy.wrapping is None)
    calls = of_calls["first"]
    assert of_calls["redelivery"] == 3 * calls
    assert of_calls["re-emission"] == of_calls["replay"] == calls
    assert 0 < of_calls["state-echo"] < calls, "only what has a state has echoes"
    assert of_calls["conflict"] == 0, "the key of these holds their content"
    assert sum(each.copy.kind == "invalid" for each in found) == 40
    assert sum(each.copy.wrapping is not None for each in found) == calls


def test_by_a_bus() -> None:
    """For a bus every copy is a document, and no copy claims the envelope of another."""
    for delivery in made(options=CopyOptions(reemit=0.3, replay=0.3, rewrap=0.5, invalid=0.3, by_bus=True)):
        assert delivery.copy.document is not None
        assert delivery.copy.wrapping is None
        if delivery.copy.kind == "redelivery":
            assert "detail" not in delivery.copy.document
        assert delivery.copy.kind != "replay"


@pytest.mark.parametrize("window", [0, 999, 5_000_001])
def test_an_invalid_window(window: int) -> None:
    """A window that other events fall into is refused."""
    with pytest.raises(SettingError, match="from 1ms to 5s"):
        Plan(copy_options=CopyOptions(window=window))
