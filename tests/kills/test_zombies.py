"""Stopped workers: what a zombie still tries after another has taken over is not accepted."""

import signal
from contextlib import closing
from functools import partial

import pytest
from msgspec.structs import replace

from oncegate import Gate
from oncegate.stores.sqlite import SqliteStore
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
    assert rising.stale == ()
    assert rising.finding.complaints == []
    assert rising.finding.applied == rising.finding.events


def test_in_a_transaction() -> None:
    """A worker stopped in its transaction keeps all others out past its lease, and then has the one effect."""
    with new_world("transaction", 1, once=True, lease="50ms") as plan, crew() as hands:
        with closing(SqliteStore(plan.world.store, busy_timeout=100_000)) as store:
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


class TestTheJudge:
    @pytest.mark.parametrize(("way", "point"), [("run", "half-way"), ("batch", "settle called")])
    def test_an_unfenced_completion(self, way: Way, point: str) -> None:
        """Were owner and fence not looked at, the record of the successor would be the zombie's."""
        stale = rise(way, point, 2, ablation="unfenced").stale
        assert "the record of event-0 was changed" in stale
        assert "zombie-0 has event-0 processed" in stale

    def test_an_unfenced_transaction(self) -> None:
        """Were they not looked at in a transaction, the zombie's rows would stand beside the successor's."""
        rising = rise("transaction", "transact called", 2, ablation="unfenced")
        assert "zombie-0 wrote a row of event-0" in rising.stale
        assert rising.finding.doubled == ("event-0", "event-1")

    @pytest.mark.parametrize("way", ["run", "batch"])
    def test_a_late_start(self, way: Way) -> None:
        """Were a handler started without a look at the clock, an effect would begin after its lease."""
        stale = rise(way, "claim written", 2, ablation="started late").stale
        assert "an effect of event-0 began after its lease" in stale
