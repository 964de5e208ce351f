"""This module validates the options of an SQS worker."""

from typing import Any, Final

from msgspec import Struct

from oncegate.durations import Duration, microseconds
from oncegate.errors import SettingError
from oncegate.ingress.sqs.client import MAX_BATCH

_SECOND: Final = 1_000_000
_MAX_WAIT: Final = 20
_MAX_VISIBILITY: Final = 12 * 3_600


class SqsOptions(Struct, frozen=True):
    """The options of an SQS worker. `wait` and `visibility` are in whole seconds, because SQS requires whole seconds.
    `drain` is in seconds."""

    batch: int
    wait: int
    visibility: int
    in_hand: int
    receivers: int
    drain: float


def validate(
    *, batch: int, wait: Duration, visibility: Duration, in_hand: int, receivers: int, drain: Duration
) -> SqsOptions:
    """Returns the checked options. Raises SettingError for a value that is not allowed."""
    messages = _count("batch", batch, MAX_BATCH)
    events = _count("in_hand", in_hand, 100_000)
    return SqsOptions(
        batch=min(messages, events),
        wait=_seconds("wait", wait, _MAX_WAIT),
        visibility=_seconds("visibility", visibility, _MAX_VISIBILITY),
        in_hand=events,
        receivers=min(_count("receivers", receivers, 64), max(1, events // messages)),
        drain=microseconds(drain, "drain") / _SECOND,
    )


def _count(name: str, value: Any, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise SettingError(f"{name}={value!r} must be a whole number from 1 to {maximum}", settings=[name])
    return value


def _seconds(name: str, value: Duration, maximum: int) -> int:
    seconds = -(-microseconds(value, name) // _SECOND)
    if seconds > maximum:
        longest = f"{maximum}s" if maximum < 3_600 else f"{maximum // 3_600}h"
        raise SettingError(f"{name}={value!r} is too long; the maximum of SQS is {longest}", settings=[name])
    return seconds
