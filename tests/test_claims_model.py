"""The bounded model check of the claim protocol, and the ablations that show that it can fail."""

import pytest

from tests.model.ablation import Ablation, attempt, patched
from tests.model.ablations import ABLATIONS
from tests.model.explore import Report, explore
from tests.model.run import explore_all
from tests.model.settings import ORDINARY, POISON, WHOLE

_HAPPENINGS = (
    "crashes",
    "is stopped past its lease",
    "has its claim for a lost, and gives up",
    "has the answer to its claim for a lost, and will send it again",
    "has the answer to its complete for a lost",
    "has its complete for a delayed, and gives up",
    "that arrives only now: yes",
    "that arrives only now: no",
    "clock jumps ahead",
    "is delivered once more",
    "an operator redrives",
    "an operator resets",
    "an operator seeds key 0",
    "which has a record",
    "an operator erases key 0",
    "an operator erases key 0, waiting or not",
    "judged: granted, attempt 2",
    "judged: inflight",
    "judged: duplicate",
    "judged: conflict",
    "judged: buried",
    "complete for a judged: no",
    "will not run a",
    "will not start a",
    "renews its lease",
    "finds it has lost its lease",
    "fails at a",
    "which the store has kept",
    "sends the claim for x alone",
    "is killed by the handler",
    "finishes the effect of a once more",
    "judged: admitted",
    "has its admit and run for a judged: granted",
    "has the answer to its admit for a lost, and will send it again",
    "sent a admit for a that arrives only now: duplicate",
    "has its mark for a judged: granted",
    "has the answer to its mark for a lost, and gives up",
    "finds something unavailable that a needs",
    "has its unavailable for a judged: yes",
    "is abandoned, as its worker has ended",
    "is abandoned too late",
)


# On a busy machine, the search takes a multiple of its half a minute.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    return list(explore_all((setting, WHOLE) for setting in ORDINARY))


def test_no_invariant_breaks_in_a_million_states(reports: list[Report]) -> None:
    """In more than a million states, every invariant holds and every event can still be finished."""
    broken = [f"{report.setting}:\n{report.broken}" for report in reports if report.broken is not None]

    assert not broken, "\n\n".join(broken)
    assert all(report.complete for report in reports)
    assert sum(report.states for report in reports) >= 1_000_000


@pytest.mark.parametrize("happening", _HAPPENINGS)
def test_every_kind_of_step_occurs(reports: list[Report], happening: str) -> None:
    """The search contains each kind of fault and answer, so no invariant holds only because a fault never occurs."""
    assert any(happening in label for report in reports for label in report.labels)


@pytest.mark.parametrize("ablation", ABLATIONS, ids=[ablation.name for ablation in ABLATIONS])
def test_an_ablation_is_caught(ablation: Ablation) -> None:
    """Without this rule the check fails, by the invariant that needs the rule, and prints the steps."""
    broken = attempt(ablation).broken

    assert broken is not None
    assert broken.invariant == ablation.invariant, str(broken)
    assert len(broken.steps) > 1


def test_a_patch_that_changes_nothing_is_not_caught() -> None:
    """A patch that does not change behaviour gives the same search, so an ablation fails only because of its own
    change."""
    again = explore(POISON, WHOLE, claims=patched("attempts=attempts + 1,", "attempts=1 + attempts,"))
    as_shipped = explore(POISON, WHOLE)

    assert again.broken is None
    assert (again.states, again.transitions) == (as_shipped.states, as_shipped.transitions)


@pytest.mark.parametrize("text", ["no such text", "return record, Granted(record, now)"])
def test_a_patch_must_match_once(text: str) -> None:
    """An ablation whose text is not in the module, or is there twice, is an error and does not pass."""
    with pytest.raises(ValueError, match="must replace one place"):
        patched(text, "")
