"""Messages in hand, and the events in them."""

from collections.abc import Hashable
from typing import Any, Final

from oncegate.carriers.pieces import whole, within
from oncegate.events import Event
from oncegate.gate.job import Identified, Job
from oncegate.times import microseconds_of

_LONGEST_PAUSE: Final = 300.0


class Message:
    """One message, from its receipt to its end. Times are on the boot clock.

    It is deleted when all of its events are acknowledged. As soon as one is not, `again_after` says in how many
    seconds it is to come again."""

    __slots__ = ("again_after", "handle", "left", "name", "received_at", "receives", "renewed_at", "visible_until")

    def __init__(self, received: dict[str, Any], now: int, visibility: int) -> None:
        self.handle: str = received["ReceiptHandle"]
        self.name: str = received.get("MessageId", "")
        self.receives = whole(within(received, "Attributes", "ApproximateReceiveCount")) or 1
        self.received_at = now
        self.left = 0
        self.again_after: float | None = None
        self.renew(now, visibility)

    def renew(self, now: int, visibility: int) -> None:
        self.renewed_at = now
        self.visible_until = now + visibility

    def lose(self) -> None:
        """It is no longer ours: nothing of it starts any more."""
        self.visible_until = 0

    @property
    def pause(self) -> float:
        """In how many seconds it comes again after a failure: twice as many each time."""
        return min(2.0 ** min(self.receives - 1, 10), _LONGEST_PAUSE)


class MessageEvent:
    """One event of a message on its way through the gate, and its place: a lane, and an order within that."""

    __slots__ = ("event", "item", "lane", "looks", "message", "order", "ran")

    def __init__(self, message: Message, event: Event, item: Identified, *, fifo: bool) -> None:
        self.message = message
        self.event = event
        self.item = item
        self.ran = False
        self.looks = 0  # how often it was looked for a publisher that was still at it
        self.lane = ("group", event.evidence.group) if fifo else _lane(event, item)
        self.order = 0 if fifo else _order(event)

    @property
    def started(self) -> bool:
        """Whether its handler has begun."""
        return isinstance(self.item, Job) and self.item.started


def _lane(event: Event, item: Identified) -> Hashable | None:
    """What runs one after the other: the events of one entity. Copies of what has no entity do so by their key: the
    later ones then find the first completed."""
    if not isinstance(item, Job):
        return None
    return ("key", item.carried or item.key.digest) if event.entity is None else ("entity", event.source, event.entity)


def _order(event: Event) -> int:
    """When it happened, else when it was sent."""
    at = event.occurred_at or event.evidence.sent_at
    return 0 if at is None else microseconds_of(at)
