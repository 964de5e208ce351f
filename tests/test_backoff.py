"""Exponential backoff with jitter."""

from types import SimpleNamespace

import pytest

from oncegate.backoff import Backoff, PollBackoff, jittered, pause_after


def test_each_pause_doubles_up_to_the_limit() -> None:
    """Without jitter, a loop waits 1, 2, 4 and then never longer than the limit."""
    pauses = Backoff(1, 5, jitter=False)
    assert [pauses.next_pause() for _ in range(5)] == [1, 2, 4, 5, 5]


def test_reset_starts_again() -> None:
    """After a success, the next failure waits as long as the first."""
    pauses = Backoff(1, 5, jitter=False)
    pauses.next_pause()
    pauses.next_pause()
    pauses.reset()
    assert pauses.next_pause() == 1


def test_jitter_takes_at_most_half() -> None:
    """A pause with jitter lies between half of the pause and all of it, and varies."""
    drawn = [jittered(10) for _ in range(200)]
    assert min(drawn) >= 5
    assert max(drawn) <= 10
    assert len(set(drawn)) > 100
    pauses = Backoff(10, 40)
    assert 5 <= pauses.next_pause() <= 10 <= pauses.next_pause() <= 20


def test_pause_after_an_attempt() -> None:
    """The pause depends only on the attempt, and a large attempt does not overflow."""
    assert [pause_after(attempt, 100, 1_000) for attempt in (1, 2, 3, 5, 10**6)] == [100, 200, 400, 1_000, 1_000]


def test_polls_end_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between polls grow, the last pause ends at the deadline, and there is none after it."""
    now = 0.0
    monkeypatch.setattr("oncegate.backoff.time", SimpleNamespace(monotonic=lambda: now))
    poll, pauses = PollBackoff(50_000), []
    while (pause := poll.pause()) is not None:
        pauses.append(pause)
        now += pause
    assert pauses == pytest.approx([0.01, 0.02, 0.02])
    assert poll.left == pytest.approx(0, abs=1e-9)
