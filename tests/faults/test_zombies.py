"""Stopped workers on stores over a network: writes of a zombie are rejected."""

import signal
from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest
from msgspec.structs import replace

from oncegate import Gate, open_store
from tests.faults.grounds import Ground
from tests.kills.crew import crew, resume, stopped, wait_until
from tests.kills.kills import found, new_world
from tests.kills.points import Strike
from tests.kills.worker import Way
from tests.kills.zombies import rise

_STOPS: list[tuple[str, Way, str]] = [
    ("redis", "run", "claim written"),
    ("redis", "run", "half-way"),
    ("redis", "batch", "settle called"),
    ("postgres", "run", "claim written"),
    ("postgres", "run", "half-way"),
    ("postgres", "batch", "settle called"),
    ("postgres", "transaction", "transact called"),
]


@pytest.mark.parametrize(("name", "way", "point"), _STOPS)
def test_taken_over(ground_of: Callable[[str], Ground], name: str, way: Way, point: str) -> None:
    """A worker stopped here past its lease, and continued after its successor has finished, changes nothing and gets
    LeaseLost."""
    rising = rise(way, point, 3, place=ground_of(name).place)
    assert rising.complaints == []
    assert rising.finding.applied == rising.finding.events


@pytest.mark.parametrize(
    ("name", "sign"), [("redis", "zombie-0 has event-0 processed"), ("postgres", "the record of event-0 was changed")]
)
def test_an_unfenced_store_is_caught(ground_of: Callable[[str], Ground], name: str, sign: str) -> None:
    """If neither owner nor fence were checked, the write of a zombie would be found."""
    assert sign in rise("run", "half-way", 2, place=ground_of(name).place, ablation="unfenced").complaints


def test_in_a_transaction(ground_of: Callable[[str], Ground]) -> None:
    """A worker stopped in its transaction blocks all others past its lease, and then has the one effect."""
    with new_world("transaction", 1, place=ground_of("postgres").place, lease="50ms") as plan, crew() as hands:
        zombie = hands.start(replace(plan, strike=Strike("half-way", 1, signal.SIGSTOP)))
        wait_until(partial(stopped, zombie), "a worker stopped in its transaction")
        with closing(open_store(plan.world.url)) as store:
            gate = Gate(store)
            kept_out = gate.transaction({"id": "event-0"}, _unwanted)
            resume(zombie)
            hands.finish()
            late = gate.transaction({"id": "event-0"}, _unwanted)
        assert (kept_out.status, late.status) == ("in_flight", "duplicate")
        assert plan.world.said("worker") == ["begun", "event-0 processed"]
        assert found(0, plan).complaints == []


def _unwanted(event: object, connection: object) -> None:
    raise AssertionError("nobody else may run it")
