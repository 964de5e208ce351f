"""What was seen of a store, and of the clock on its server."""

from msgspec import Struct

from oncegate.clocks import wall
from oncegate.doctor.facts import Clock, Redis, Store


class Seen(Struct, frozen=True, kw_only=True):
    store: Store
    redis: Redis | None = None
    clocks: tuple[Clock, ...] = ()


def clock(of: str, before: int, told: int) -> Clock:
    """A clock that was asked just now; it answered at some time since `before`."""
    half = (wall() - before) // 2
    return Clock(of=of, ahead=told - before - half, within=half)
