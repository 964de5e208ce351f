"""The sender: pace, batches, retries and interruption."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from oncegate.simulate.sender import Accepted, Answer, Retry
from oncegate.simulate.traffic import Plan, PlannedDelivery, deliveries
from tests.simulate.parts import delivered, sent, truth_in


class Script:
    """A target with given answers, which records its calls."""

    most = 10
    paced = True

    def __init__(self, answers: Sequence[Answer | BaseException] = ()) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, list[int]]] = []

    def send(self, batch: Sequence[PlannedDelivery]) -> list[Answer]:
        self.asked.append((time.monotonic(), [delivery.number for delivery in batch]))
        answer = self.answers.pop(0) if self.answers else Accepted()
        if isinstance(answer, BaseException):
            raise answer
        return [answer, *([Accepted()] * (len(batch) - 1))]

    def close(self) -> None:
        pass


class TestSender:
    def test_pace(self, tmp_path: Path) -> None:
        """Events are sent at the given rate, and none before it is due."""
        target = Script()
        begun = time.monotonic()
        sent(target, Plan(events=40, rate=100, seed=5), tmp_path / "truth.jsonl")
        for at, numbers in target.asked:
            due = {each.number: each.due for each in deliveries(Plan(events=40, rate=100, seed=5))}
            assert at - begun >= max(due[number] for number in numbers) / 1e6
        assert 0.39 <= time.monotonic() - begun < 5

    def test_batches(self, tmp_path: Path) -> None:
        """Due deliveries are sent in batches up to the limit of the target; a failed one is sent again alone."""
        target = Script([Retry("busy")])
        summary = sent(target, Plan(events=40, rate=1_000_000, seed=5), tmp_path / "truth.jsonl")
        sizes = [len(numbers) for _, numbers in target.asked]
        assert max(sizes) == 10
        assert target.asked[1][1] == target.asked[0][1][:1]
        assert summary.again == 1
        assert sum(sizes) == summary.count() + 1

    @pytest.mark.parametrize("parallel", [1, 4])
    def test_interrupted(self, tmp_path: Path, parallel: int) -> None:
        """A delivery that was being sent during an interruption is neither expected nor unknown."""
        target = Script([Accepted(), KeyboardInterrupt()])
        with pytest.raises(KeyboardInterrupt):
            sent(target, Plan(events=30, rate=1_000_000, seed=5), tmp_path / "truth.jsonl", parallel=parallel)
        truth = truth_in(tmp_path)
        fates = {each.fate for each in delivered(tmp_path)}
        assert fates == {"taken", "gave up"}
        assert truth.deliveries.keys() <= truth.events.keys()
