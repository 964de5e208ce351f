"""Killed workers on stores over a network: before a request is sent, and before and after its answer."""

from collections.abc import Callable

import pytest

from tests.faults.grounds import Ground
from tests.kills.kills import FEW, at_random, strike_at, sweep
from tests.kills.points import points_of
from tests.kills.worker import Way

_ALL: list[tuple[str, Way]] = [("redis", "run"), ("postgres", "run"), ("postgres", "transaction")]
_NAMED: list[tuple[str, Way, str]] = [(name, way, point) for name, way in _ALL for point in points_of(way, remote=True)]
# The parts of a batch go to several servers of a cluster at once.
_BATCHES: list[tuple[str, Way, str]] = [("redis", "batch", "settle sent"), ("postgres", "batch", "settle sent")]
_BATCHES += [("redis-cluster", "batch", point) for point in ("claim sent", "half-way", "settle sent", "settle written")]


# Events with state changes have a timeline that is read and written before the claim.
_CHANGES: list[tuple[str, Way, str]] = [
    (name, "change", point) for name in ("sqlite", "redis", "postgres") for point in ("load written", "swap written")
]
_CHANGES += [(name, "change", "swap sent") for name in ("redis", "postgres")]


@pytest.mark.parametrize(("name", "way", "point"), _NAMED + _BATCHES + _CHANGES)
def test_once_each(ground_of: Callable[[str], Ground], name: str, way: Way, point: str) -> None:
    """A worker killed at this point leaves a state from which the next worker gives each event one effect."""
    run = strike_at(way, point, place=ground_of(name).place)
    assert run.kills == 1
    assert run.complaints == []
    assert run.finding.applied == FEW
    if point in ("half-way", "after the effect", "settle called", "before the commit"):
        assert run.finding.redos > 0, "what was begun and not settled is begun again"


@pytest.mark.parametrize(("name", "way", "requests"), [("redis", "run", 6), ("postgres", "transaction", 15)])
def test_after_any_request(ground_of: Callable[[str], Ground], name: str, way: Way, requests: int) -> None:
    """A worker killed after any request was sent and before its answer, also while it creates the store, does no
    harm."""
    runs = list(sweep(way, "sent", events=1, place=ground_of(name).place))
    assert len(runs) > requests
    assert [run.complaints for run in runs if run.complaints] == []


@pytest.mark.parametrize(("name", "way"), [("redis", "run"), ("postgres", "transaction")])
def test_at_random(ground_of: Callable[[str], Ground], name: str, way: Way, seed: int) -> None:
    """Workers that share a list of events and are killed at any moment leave one effect for each event."""
    run = at_random(way, 20, seed, place=ground_of(name).place)
    assert run.kills == 20
    assert run.complaints == []
    assert run.finding.applied == run.finding.events
    assert run.finding.redos > 0, "no kill fell between an effect and its completion: nothing was tested"
