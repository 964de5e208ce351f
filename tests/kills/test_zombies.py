"""Stopped workers: writes of a zombie after a takeover are rejected."""

import signal
from contextlib import closing
from functools import partial

import pytest
from msgspec.structs import replace

from oncegate import Gate, open_store
from tests.kills.crew import crew, resume, stopped, wait_until
from tests.kills.judge import judge
from tests.kills.kills import new_world
from tests.kills.points import Strike
from tests.kills.worker import Way
from tests.kills.zombies import STOPS, rise

_STOPS = [(way, point) for way, points in STOPS.items() for point in points]


@pytest.mark.parametrize(("way", "point"), _STOPS)
def test_taken_over(way: Way, point: str) -> None:
    """A worker stopped here past its lease, and continued after its successor has finished, changes nothing and gets
    LeaseLost."""
    rising = rise(way, point, 3)
    assert rising.complaints == []
    assert rising.finding.applied == rising.finding.events


def test_a_stale_failure() -> None:
    """A zombie whose handler fails does not release an event that its successor has completed."""
    assert rise("run", "half-way", 3, fails=True).complaints == []


def test_in_a_transaction() -> None:
    """A worker stopped in its transaction blocks all others past its lease, and then has the one effect."""
    with new_world("transaction", 1, lease="50ms") as plan, crew() as hands:
        with closing(open_store(plan.world.url.replace("=20s", "=100ms"))) as store:
            zombie = hands.start(replace(plan, strike=Strike("half-way", 1, signal.SIGSTOP)))
            wait_until(partial(stopped, zombie), "a worker stopped in its transaction")
            gate = Gate(store)
            kept_out = gate.transaction({"id": "event-0"}, _unwanted)
            resume(zombie)
            hands.finish()
            late = gate.transaction({"id": "event-0"}, _unwanted)
        assert (kept_out.status, late.status) == ("failed", "duplicate")
        assert plan.world.said("worker") == ["begun", "event-0 processed"]
        assert judge(plan).complaints == []


def _unwanted(event: object, connection: object) -> None:
    raise AssertionError("nobody else may run it")
