"""The processor time of the recorder's thread is limited."""

import pytest

from oncegate.journal import budget as module
from oncegate.journal.budget import CpuBudget


class Machine:
    """A machine whose clocks are set by hand, in seconds."""

    def __init__(self, share: float = 0.1) -> None:
        self.now = self.own = self.others = 0.0
        self.budget = CpuBudget(share, lambda: self.now, lambda: self.own, lambda: self.own + self.others)

    def work(self, seconds: float, *, own: float, others: float, delay: float = 0.0) -> None:
        """Let time pass. `own` and `others` are shares of one processor."""
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            self.own += 0.1 * own
            self.others += 0.1 * others
            self.budget.note_wait(delay)
            self.budget.update()


def test_a_busy_process() -> None:
    """In a busy process the thread may use its share of the time of the others, and no more."""
    machine = Machine()
    machine.work(100, own=0.09, others=1.0)
    assert machine.budget.allows_rows
    machine.work(10, own=0.13, others=1.0)
    is_over = not machine.budget.allows_rows
    machine.work(10, own=0.0, others=1.0)
    assert (is_over, machine.budget.allows_rows) == (True, True)


def test_details_cost_no_throughput() -> None:
    """While the process is saturated, there is no time for details, however little the thread has used."""
    machine = Machine()
    machine.work(10, own=0.0, others=0.9)
    assert not machine.budget.allows_details
    machine.work(10, own=0.0, others=0.3)
    details = machine.budget.allows_details
    machine.work(1, own=0.0, others=0.0, delay=0.01)
    assert (details, machine.budget.allows_details) == (True, False)


def test_an_idle_process() -> None:
    """In an idle process there is time for details."""
    machine = Machine()
    machine.work(100, own=0.3, others=0.1)
    assert machine.budget.allows_details


def test_a_starved_process() -> None:
    """If other processes take the machine, the thread still takes only its share of this process."""
    machine = Machine()
    machine.work(10, own=0.05, others=0.2, delay=0.01)
    assert not machine.budget.allows_rows


def test_saved_time_is_bounded() -> None:
    """After an hour of rest, a burst is not longer than after a second."""
    machine = Machine()
    machine.work(3_600, own=0.0, others=1.0)
    machine.own += module._BURST * 1.01
    machine.budget.update()
    assert not machine.budget.allows_rows


def test_real_clocks() -> None:
    """The clocks of the system measure this thread: work shrinks the allowance."""
    budget = CpuBudget()
    assert budget.allows_details
    before = budget._balance
    sum(range(300_000))
    budget.note_wait(1.0)
    budget.update()
    assert budget._balance < before == pytest.approx(module._BURST)
