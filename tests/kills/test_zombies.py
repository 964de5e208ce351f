"""Stopped workers: what a zombie still tries after another has taken over is not accepted."""

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
    """Stopped here past its lease and let go after its successor is done, a worker changes nothing and is told so."""
    rising = rise(way, point, 3)
    assert rising.complaints == []
    assert rising.finding.applied == rising.finding.events


def test_a_stale_failure() -> None:
    """A zombie whose handler fails when it goes on does not release what its successor has completed."""
    assert rise("run", "half-way", 3, fails=True).complaints == []


def test_in_a_transaction() -> None:
    """A worker stopped in its transaction keeps all others out past its lease, and then has the one effect."""
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
