"""This module validates the options of a queue worker."""

from typing import Any, Final

from msgspec import Struct

from oncegate.durations import Duration, microseconds
from oncegate.errors import SettingError

_SECOND: Final = 1_000_000
_HOUR: Final = 3_600


class OptionLimits(Struct, frozen=True):
    """The largest values that a platform allows. Times are in seconds."""

    platform: str
    batch: int
    wait: int
    visibility: int = 12 * _HOUR


SQS_LIMITS: Final = OptionLimits("SQS", batch=10, wait=20)
NATS_LIMITS: Final = OptionLimits("NATS", batch=1_000, wait=_HOUR)
KAFKA_LIMITS: Final = OptionLimits("Kafka", batch=1_000, wait=_HOUR, visibility=_HOUR // 2)
RABBITMQ_LIMITS: Final = OptionLimits("RabbitMQ", batch=1_000, wait=_HOUR)  # RabbitMQ uses neither
WIDEST_LIMITS: Final = OptionLimits("any queue", batch=1_000, wait=_HOUR)  # the settings are read before the URL


class QueueOptions(Struct, frozen=True):
    """The options of a queue worker. `wait` and `visibility` are in whole seconds, because SQS requires whole seconds.
    `drain` is in seconds."""

    batch: int
    wait: int
    visibility: int
    in_hand: int
    receivers: int
    drain: float


def validate(
    limits: OptionLimits,
    *,
    batch: int,
    wait: Duration,
    visibility: Duration,
    in_hand: int,
    receivers: int,
    drain: Duration,
) -> QueueOptions:
    """Returns the checked options. Raises SettingError for a value that is not allowed."""
    messages = _count("batch", batch, limits.batch)
    events = _count("in_hand", in_hand, 100_000)
    return QueueOptions(
        batch=min(messages, events),
        wait=_seconds("wait", wait, limits.wait, limits.platform),
        visibility=_seconds("visibility", visibility, limits.visibility, limits.platform),
        in_hand=events,
        receivers=min(_count("receivers", receivers, 64), max(1, events // messages)),
        drain=microseconds(drain, "drain") / _SECOND,
    )


def _count(name: str, value: Any, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise SettingError(f"{name}={value!r} must be a whole number from 1 to {maximum}", settings=[name])
    return value


def _seconds(name: str, value: Duration, maximum: int, platform: str) -> int:
    seconds = -(-microseconds(value, name) // _SECOND)
    if seconds > maximum:
        longest = f"{maximum}s" if maximum < _HOUR else f"{maximum // _HOUR}h"
        raise SettingError(f"{name}={value!r} is too long; the maximum of {platform} is {longest}", settings=[name])
    return seconds
