"""This module defines a message of a queue and its events, as a worker sees them."""

from collections.abc import Hashable
from typing import Final

from oncegate.backoff import pause_after
from oncegate.events import Event
from oncegate.gate.job import Identified, Job, UnguardedEvent
from oncegate.times import microseconds_of

_FIRST_PAUSE: Final = 1  # seconds
_LONGEST_PAUSE: Final = 300


class Message:
    """One received message. `receives` is how often the queue has delivered it. `running` is how many of its events
    run now. Its events start at the time `starts_at` of the boot clock, or later.

    The message is acknowledged when all its events are acknowledged. If an event is not acknowledged, `again_after` is
    the number of seconds after which the message is to be delivered again.
    """

    __slots__ = ("again_after", "name", "receives", "running", "starts_at", "unfinished")

    def __init__(self, name: str, receives: int) -> None:
        self.name = name
        self.receives = receives
        self.unfinished = 0
        self.running = 0
        self.starts_at = 0
        self.again_after: float | None = None

    def may_start(self, now: int) -> bool:  # noqa: ARG002  # for links that can lose a message
        """Whether an event of the message may start at the time `now` of the boot clock. False if another worker may
        have received the message."""
        return True

    @property
    def pause(self) -> float:
        """The seconds before the next delivery after a failure. The pause doubles with each receive."""
        return pause_after(self.receives, _FIRST_PAUSE, _LONGEST_PAUSE)


class MessageEvent:
    """One event of a message, with the lane in which it runs and its order within the lane. With `in_groups`, the
    events of a message group run in the order in which the queue delivers them. `attempts` counts its failed attempts
    while it is held here, and `failed_at` is the time of the first of them; see `retries`. `spent` is the last run of
    an event without a key that has no attempts left: the event must become a dead letter, and does not run again.

    If `move_until` is set, the event must be moved, and should not run before this time of the boot clock."""

    __slots__ = (
        "attempts",
        "checks",
        "event",
        "failed_at",
        "failed_moves",
        "item",
        "lane",
        "message",
        "move_until",
        "order",
        "ran",
        "spent",
        "starts_at",
    )

    def __init__(self, message: Message, event: Event, item: Identified, *, in_groups: bool) -> None:
        self.message = message
        self.event = event
        self.item = item
        self.ran = False
        self.attempts = 0
        self.spent: UnguardedEvent | None = None
        self.failed_at = 0
        self.failed_moves = 0
        self.move_until = 0
        self.starts_at = message.starts_at
        self.checks = 0  # how often the event was in flight because its publisher had not completed it yet
        self.lane = ("group", event.evidence.group) if in_groups else _lane(event, item)
        self.order = 0 if in_groups else _order(event)

    @property
    def started(self) -> bool:
        """Whether the handler has started."""
        return isinstance(self.item, Job) and self.item.started


def _lane(event: Event, item: Identified) -> Hashable | None:
    """Returns the lane of an event. Events of the same entity share a lane. Events without an entity share a lane if
    they have the same key, so that a later copy finds the first copy completed."""
    if not isinstance(item, Job):
        return None
    return ("key", item.carried or item.key.digest) if event.entity is None else ("entity", event.source, event.entity)


def _order(event: Event) -> int:
    """Returns the time at which the event occurred, in microseconds. If this time is not known, returns the time at
    which the message was sent."""
    at = event.occurred_at or event.evidence.sent_at
    return 0 if at is None else microseconds_of(at)
