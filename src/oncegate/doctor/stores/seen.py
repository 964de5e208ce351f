"""What was seen of a store, and of the clock on its server."""

from msgspec import Struct

from oncegate.clocks import wall
from oncegate.doctor.facts import ClockFacts, RedisFacts, StoreFacts


class Seen(Struct, frozen=True, kw_only=True):
    store: StoreFacts
    redis: RedisFacts | None = None
    clocks: tuple[ClockFacts, ...] = ()


def clock(of: str, before: int, told: int) -> ClockFacts:
    """A clock that was asked just now; it answered at some time since `before`."""
    half = (wall() - before) // 2
    return ClockFacts(of=of, ahead=told - before - half, within=half)
