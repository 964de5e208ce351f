"""The clock of stores never goes back."""

from oncegate.clocks import Steady, since_boot, store_clock, wall
from oncegate.testing import ManualClock


def test_follows_the_wall() -> None:
    """While the wall clock goes forward, the clock follows it."""
    wall_clock, boot = ManualClock(1_000), ManualClock(0)
    steady = Steady(wall_clock, boot)
    assert steady() == 1_000
    wall_clock.advance(500)
    boot.advance(10)
    assert steady() == 1_500


def test_goes_on_when_the_wall_steps_back() -> None:
    """After a step back of the wall clock, the clock continues at the rate of the boot clock, so leases still end."""
    wall_clock, boot = ManualClock(1_000_000), ManualClock(0)
    steady = Steady(wall_clock, boot)
    steady()
    wall_clock.now = 5
    boot.advance(30)
    assert steady() == 1_000_030
    boot.advance(70)
    assert steady() == 1_000_100


def test_catches_up_with_others() -> None:
    """The clock is never behind the time that others have seen, and continues from there."""
    wall_clock, boot = ManualClock(1_000), ManualClock(0)
    steady = Steady(wall_clock, boot)
    assert steady(at_least=9_000) == 9_000
    boot.advance(1)
    assert steady() == 9_001


def test_a_pause_between_the_clocks() -> None:
    """However long a process pauses between its two clock reads, the clock does not get ahead of the wall clock."""
    true, pauses = ManualClock(1_000), iter([1, 300, 1, 1, 1, 1])

    def looked_at() -> int:
        seen = true.now
        true.advance(next(pauses))
        return seen

    steady = Steady(looked_at, looked_at)  # reads the boot clock once
    for _ in range(2):
        assert steady() <= true.now


def test_a_clock_passed_in_moves_alone() -> None:
    """With a clock that a test passes in, time moves only as that clock moves."""
    clock = ManualClock(1_000)
    steady = store_clock(clock)
    assert [steady(), steady()] == [1_000, 1_000]
    clock.now = 500
    assert steady() == 1_000


def test_real_clocks() -> None:
    """The wall clock is in this century, and the boot clock goes forward."""
    assert 1_700_000_000_000_000 < wall() < 4_000_000_000_000_000
    assert since_boot() <= since_boot()
