"""A clock that moves only when a test moves it."""

from oncegate.durations import microseconds


class ManualClock:
    def __init__(self, now: int = 1_800_000_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, by: int | str) -> None:
        """Move the clock forward by microseconds, or by a duration such as "30s"."""
        self.now += microseconds(by) if isinstance(by, str) else by
