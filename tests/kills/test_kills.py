"""Killed workers: at every named point and statement, by poison and at random; and what the judge would notice."""

import signal
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.kills.cases import CASES, Case
from tests.kills.crew import crew, stopped, wait_until
from tests.kills.judge import Finding
from tests.kills.kills import FEW, at_random, new_world, poison, strike_at, sweep
from tests.kills.points import Strike, points_of
from tests.kills.worker import BATCH, WAYS, Way

_BEGUN = {
    "half-way",
    "after the effect",
    "renew called",
    "renew written",
    "settle called",
    "before the commit",
}
_NAMED = [(way, point) for way in WAYS for point in points_of(way)]


class TestNamedPoints:
    @pytest.mark.parametrize(("way", "point"), _NAMED)
    def test_once_each(self, way: Way, point: str) -> None:
        """A worker killed at this point leaves a state from which the next worker gives each event one effect."""
        run = strike_at(way, point)
        assert run.kills == 1
        assert run.complaints == []
        assert run.finding.applied == FEW
        self.check_redos(run.finding, way, begun=point in _BEGUN)

    def check_redos(self, finding: Finding, way: Way, *, begun: bool) -> None:
        """Effects that were started and not settled start again, and no others. A batch settles its first event
        later."""
        assert finding.redos >= begun
        assert finding.redos <= (BATCH if way == "batch" else begun)

    @pytest.mark.parametrize("way", WAYS)
    def test_any_statement(self, way: Way) -> None:
        """A worker killed before any of its SQL statements, also those that create the file, does no harm."""
        runs = list(sweep(way, events=2 if way == "batch" else 1))
        assert len(runs) > 30
        assert [run.complaints for run in runs if run.complaints] == []
        assert sum(run.finding.redos for run in runs) > 0


class TestPoison:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("attempts", [1, 2, 3])
    def test_other_events_complete(self, way: Way, attempts: int) -> None:
        """An event that kills every worker is a dead letter after its last attempt, and all others are completed. The
        first death does not count, because another event may have caused it."""
        run = poison(way, ("event-1",), max_attempts=attempts)
        assert run.kills == attempts + 1
        assert run.complaints == []
        assert run.finding.buried == ("event-1",)
        assert run.finding.applied == FEW - 1

    def test_two_in_one_batch(self) -> None:
        """Two poisonous events of one batch are both buried, and all others are completed."""
        run = poison("batch", ("event-1", "event-2"), max_attempts=3)
        assert run.complaints == []
        assert run.finding.buried == ("event-1", "event-2")
        assert run.finding.applied == FEW - 2


class TestAtRandom:
    @pytest.mark.parametrize("way", WAYS)
    def test_once_each(self, way: Way, seed: int) -> None:
        """Workers that share a list of events and are killed at any moment leave one effect for each event."""
        run = at_random(way, 34, seed)
        assert run.kills == 34
        assert run.complaints == []
        assert run.finding.applied == run.finding.events
        assert run.finding.redos > 0, "no kill fell between an effect and its completion: nothing was tested"

    def test_without_the_gate(self, seed: int) -> None:
        """Without the gate, with one worker at a time, such kills repeat effects: the kills hit critical moments."""
        run = at_random("bare", 34, seed, workers=1)
        assert run.kills == 34
        assert run.finding.doubled
        assert run.finding.applied > run.finding.events


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_ablation_is_caught(case: Case) -> None:
    """Without this rule, the judge makes the complaint that the rule prevents."""
    complaints = case.complaints()
    assert any(case.sign in complaint for complaint in complaints), complaints


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails in the middle leaves no process, running or stopped, and no file."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pids: list[int | None] = []
    with pytest.raises(KeyboardInterrupt):
        _interrupted(pids)
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert list(tmp_path.iterdir()) == []


def _interrupted(pids: list[int | None]) -> None:
    with new_world("run") as plan, crew() as hands:
        running = hands.start(replace(plan, name="running", pause=60.0))
        zombie = hands.start(replace(plan, strike=Strike("claim written", 1, signal.SIGSTOP)))
        wait_until(partial(stopped, zombie), "stopped")
        pids += [running.pid, zombie.pid]
        raise KeyboardInterrupt
