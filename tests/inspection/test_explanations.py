"""Explanations of a record in each of its states. The sentence of the record agrees with the explanation."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from oncegate import Event, Gate, open_store
from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, Claim, EventSummary, State, seed
from oncegate.clocks import wall
from oncegate.inspection.erasure import ErasureResult, erase, plan_erasure
from oncegate.inspection.explanations import Explainers, decision
from oncegate.inspection.records import sentence
from oncegate.inspection.replays import replay
from oncegate.journal import ChangedEvent
from oncegate.settings import Settings, examine
from oncegate.stores.base import Entry, Store
from tests.gate.test_handed_on import Sink

PAYLOAD = b'{"id": "evt-1", "type": "call.ended", "conversationId": "call-1"}'
KEY, OWNER, HASH = b"k" * 16, b"o" * 16, b"h" * 16
MINUTE = 60_000_000
ABOUT = EventSummary("plain", "call.ended", "call-1", None, "evt-1")


def fail(event: Event) -> None:
    raise ValueError("no case")


def succeed(event: Event) -> None: ...


class Bench:
    """A store with one event, and the gate that received it."""

    def __init__(self, folder: Path) -> None:
        flags = {"store": f"sqlite:///{folder}/store.db", "journal": f"sqlite:///{folder}/journal.db"}
        self.settings: Settings = examine(flags=flags, environ={})[0]
        self.store: Store = open_store(flags["store"])
        self.gate = Gate(self.store, max_attempts=1, remember=None)

    def claim(self, lease: int) -> None:
        self.store.claim([Claim("default", KEY, OWNER, HASH, lease, MINUTE, ABOUT)])

    def erase(self, *, waiting: bool = False) -> None:
        plan, result = plan_erasure(self.store, None, "call-1"), ErasureResult()
        erase(plan, self.store, None, self.settings, result, waiting=waiting)

    def replay(self) -> None:
        outcome = self.gate.run(PAYLOAD, succeed)
        assert outcome.key is not None
        with closing(self.settings.operator_log("ada")) as log:
            replay(self.store, self.settings, ChangedEvent("default", outcome.key.digest, ABOUT), PAYLOAD, "fix", log)

    @property
    def entry(self) -> Entry:
        """The record that was first seen last."""
        return max(self.store.browse(), key=lambda entry: entry.record.first_seen)

    def close(self) -> None:
        self.gate.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as bench:
        yield bench


def erased(bench: Bench) -> None:
    bench.gate.run(PAYLOAD, fail)
    bench.erase()


def erased_before_it_ran(bench: Bench) -> None:
    bench.gate.admit([PAYLOAD])
    bench.erase(waiting=True)


def erased_after_it_ran(bench: Bench) -> None:
    bench.gate.run(PAYLOAD, succeed)
    bench.erase()


def seeded(bench: Bench) -> None:
    bench.store.claim([seed("default", KEY, owner=OWNER, retention=MINUTE, about=ABOUT)])


def marked(bench: Bench) -> None:
    bench.gate.seen(PAYLOAD)


def published(bench: Bench) -> None:
    bench.gate.run(PAYLOAD, Sink())


def processed(bench: Bench) -> None:
    bench.gate.run(PAYLOAD, succeed)


def conflict(bench: Bench) -> None:
    bench.gate.run(PAYLOAD, succeed)
    bench.gate.run(PAYLOAD.replace(b"}", b', "n": 1}'), succeed)


def given_up(bench: Bench) -> None:
    bench.gate.run(PAYLOAD, fail)


def replayed(bench: Bench) -> None:
    bench.replay()


def replayed_and_done(bench: Bench) -> None:
    bench.replay()
    bench.gate.run_waiting(succeed)


def running(bench: Bench) -> None:
    bench.claim(MINUTE)


def lapsed(bench: Bench) -> None:
    bench.claim(1)


def released(bench: Bench) -> None:
    Gate(bench.store, max_attempts=None, remember=None).run(PAYLOAD, fail)


def waiting(bench: Bench) -> None:
    bench.gate.admit([PAYLOAD])


@pytest.mark.parametrize(
    ("make", "state", "explained", "described"),
    [
        (erased, COMPLETED, r"Erased .* ago, before it was processed\. .* not run\.", r"Erased .* before it was proc"),
        (erased_before_it_ran, COMPLETED, r"Erased .* ago, before it was processed\.", r"Erased .* before it was proc"),
        (erased_after_it_ran, COMPLETED, r"Run: an event without an id was processed .* ago", r"Processed .* ago\."),
        (seeded, COMPLETED, r"Seeded .* earlier code processed the event", r"Seeded .* earlier code processed"),
        (marked, COMPLETED, r"Marked as done: evt-1 was recorded .* ago in one write", r"Marked as done .* ago\."),
        (published, COMPLETED, r"Run: evt-1 was published to sqs://q.* No consumer", r"Published to sqs://q.* ago\."),
        (processed, COMPLETED, r"Run: evt-1 was processed .* ago at its first attempt\.", r"Processed .* ago\."),
        (conflict, DEAD, r"Not run: evt-1 has the key of another event but different content", r"Dead letter\."),
        (given_up, DEAD, r"Given up: evt-1 became a dead letter at its first attempt", r"Dead letter\."),
        (replayed, RELEASED, r"Not run yet: evt-1 arrived .* ago\. It is stored with its payload", r"Waiting: "),
        (replayed_and_done, COMPLETED, r"Run: evt-1 was processed .* at attempt 1 \(counted", r"Processed .* ago\."),
        (running, IN_PROGRESS, r"Running: a worker is processing evt-1", r"In progress: the lease ends in "),
        (lapsed, IN_PROGRESS, r"Run with unknown result: .* its lease ended", r"In progress, but the lease ended "),
        (released, RELEASED, r"Run and failed: evt-1 failed at its first attempt", r"Released after 1 attempt\."),
        (waiting, RELEASED, r"Not run yet: evt-1 arrived .* ago\. It is stored with its payload", r"Waiting: "),
    ],
)
def test_each_state(bench: Bench, make: Callable[[Bench], None], state: State, explained: str, described: str) -> None:
    make(bench)
    entry = bench.entry
    assert entry.record.state == state
    assert re.match(explained, Explainers(bench.store, bench.settings, 100).record(entry).sentence)
    assert re.match(described, sentence(entry.record))


@pytest.mark.parametrize(
    ("make", "at_consumer"),
    [
        (erased, r" At its consumer it was erased at 2.*, before it was processed\."),
        (seeded, r" At its consumer its key was seeded at 2.*: earlier code processed it\."),
        (marked, r" Its consumer marked it as done at 2"),
        (published, r" Its consumer published it to sqs://q"),
        (processed, r" Its consumer processed it at 2.* at its first attempt\."),
        (given_up, r" At its consumer it became a dead letter at its first attempt: ValueError"),
        (running, r" Its consumer is running it at its first attempt\."),
        (lapsed, r" Its consumer tried it at its first attempt and runs it again when it is redelivered\."),
    ],
)
def test_the_consumer_of_a_published_event(
    bench: Bench, tmp_path: Path, make: Callable[[Bench], None], at_consumer: str
) -> None:
    """What is said about the consumer of a published event agrees with the record of the consumer."""
    (tmp_path / "publisher").mkdir()
    with closing(Bench(tmp_path / "publisher")) as publisher:
        published(publisher)
        make(bench)
        text = decision(publisher.entry.record, wall(), consumer=bench.entry.record)
    assert re.search(at_consumer, text)
