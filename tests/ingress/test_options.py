"""Options of a queue worker."""

from typing import Any

import pytest

from oncegate.errors import SettingError
from oncegate.ingress.options import NATS_LIMITS, SQS_LIMITS, QueueOptions, validate

DEFAULTS: dict[str, Any] = {
    "batch": 10,
    "wait": "20s",
    "visibility": "30s",
    "in_hand": 100,
    "receivers": 4,
    "drain": "25s",
}


def test_units() -> None:
    """Durations become seconds, rounded up where SQS counts in whole seconds."""
    options = validate(SQS_LIMITS, **DEFAULTS | {"wait": "1500ms", "drain": "100ms"})
    assert options == QueueOptions(batch=10, wait=2, visibility=30, in_hand=100, receivers=4, drain=0.1)


def test_small_limits() -> None:
    """A worker with few events in hand polls for no more messages than that, with one receiver."""
    options = validate(SQS_LIMITS, **DEFAULTS | {"in_hand": 3})
    assert (options.batch, options.receivers) == (3, 1)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"batch": 11}, "batch=11 must be a whole number from 1 to 10"),
        ({"batch": True}, "batch=True must be a whole number from 1 to 10"),
        ({"wait": "21s"}, "wait='21s' is too long; the maximum of SQS is 20s"),
        ({"visibility": "13h"}, "visibility='13h' is too long; the maximum of SQS is 12h"),
        ({"in_hand": 0}, "in_hand=0 must be a whole number"),
        ({"receivers": 65}, "receivers=65 must be a whole number from 1 to 64"),
        ({"drain": 5}, "drain=5 is not a duration"),
    ],
)
def test_invalid(option: dict[str, Any], problem: str) -> None:
    """A value that the platform does not allow is rejected with its name, the value and the limit."""
    with pytest.raises(SettingError) as rejected:
        validate(SQS_LIMITS, **DEFAULTS | option)
    assert problem in str(rejected.value)


def test_limits_of_the_platform() -> None:
    """NATS allows larger batches and longer waits than SQS."""
    options = validate(NATS_LIMITS, **DEFAULTS | {"batch": 100, "wait": "1m"})
    assert (options.batch, options.wait) == (100, 60)
    with pytest.raises(SettingError, match="wait='2h' is too long; the maximum of NATS is 1h"):
        validate(NATS_LIMITS, **DEFAULTS | {"wait": "2h"})
