"""Ways: how a worker was told to behave, checked."""

from typing import Any, Final

from msgspec import Struct

from oncegate.durations import Duration, microseconds
from oncegate.errors import SettingError
from oncegate.ingress.sqs.client import AT_A_TIME

_SECOND: Final = 1_000_000
_LONGEST_WAIT: Final = 20
_LONGEST_HIDDEN: Final = 12 * 3_600


class SqsOptions(Struct, frozen=True):
    """`wait` and `visibility` are in whole seconds, as SQS counts them; `drain` is in seconds."""

    batch: int
    wait: int
    visibility: int
    in_hand: int
    receivers: int
    drain: float


def validate(
    *, batch: int, wait: Duration, visibility: Duration, in_hand: int, receivers: int, drain: Duration
) -> SqsOptions:
    """Ways that SQS can go, or SettingError."""
    most = _count("batch", batch, AT_A_TIME)
    many = _count("in_hand", in_hand, 100_000)
    return SqsOptions(
        batch=min(most, many),
        wait=_seconds("wait", wait, _LONGEST_WAIT),
        visibility=_seconds("visibility", visibility, _LONGEST_HIDDEN),
        in_hand=many,
        receivers=min(_count("receivers", receivers, 64), max(1, many // most)),
        drain=microseconds(drain, "drain") / _SECOND,
    )


def _count(name: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SettingError(f"{name}={value!r} must be a whole number from 1 to {most}", settings=[name])
    return value


def _seconds(name: str, value: Duration, most: int) -> int:
    seconds = -(-microseconds(value, name) // _SECOND)
    if seconds > most:
        longest = f"{most}s" if most < 3_600 else f"{most // 3_600}h"
        raise SettingError(f"{name}={value!r} is longer than the {longest} that SQS allows", settings=[name])
    return seconds
