"""Network faults between workers and their store: requests and answers that are lost, late or cut off."""

from collections.abc import Callable

import pytest

from tests.faults.grounds import Ground
from tests.faults.rough import KINDS
from tests.faults.storms import lost_answers, storm
from tests.kills.worker import Way


@pytest.mark.parametrize(("name", "way"), [("redis", "run"), ("postgres", "run"), ("postgres", "transaction")])
def test_once_each(ground_of: Callable[[str], Ground], name: str, way: Way, seed: int) -> None:
    """Workers whose requests are cut off before or after they are processed, or delayed, leave one effect for each
    event."""
    run = storm(ground_of(name), way, 30, seed)
    assert run.cuts == 30
    assert set(run.struck) <= set(KINDS)
    assert run.complaints == []
    assert run.finding.applied == run.finding.events
    assert run.history.unanswered > 0, "no request was left without an answer: nothing was tested"


@pytest.mark.parametrize("kind", ["cut after", "reset after"])
def test_a_lost_answer_costs_nothing(ground_of: Callable[[str], Ground], kind: str, seed: int) -> None:
    """A retry to Redis has the same owner, so a lost answer costs no grant and repeats no effect."""
    run = lost_answers(ground_of("redis"), "run", kind, 10, seed)
    assert run.cuts > 0
    assert run.complaints == []
    assert (run.finding.redos, run.spent) == (0, 0)


def test_a_new_owner_on_retry_is_caught(ground_of: Callable[[str], Ground], seed: int) -> None:
    """If each retry of a claim drew a new owner, lost answers would cost grants."""
    run = lost_answers(ground_of("redis"), "run", "cut after", 14, seed, ablation="redrawn")
    assert run.spent > 0
    assert any("was granted to one who did not ask" in complaint for complaint in run.complaints)


@pytest.mark.parametrize("name", ["redis", "postgres"])
def test_a_settlement_accepted_once_is_caught(ground_of: Callable[[str], Ground], name: str, seed: int) -> None:
    """If a retry of a settlement were rejected, its owner would get LeaseLost for an event that it has completed."""
    run = lost_answers(ground_of(name), "run", "reset after", 40, seed, ablation="settled once")
    assert any("was refused to its owner" in complaint for complaint in run.complaints)
