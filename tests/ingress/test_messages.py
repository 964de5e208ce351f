"""Received messages and their events: lanes, order and pauses."""

from typing import Any

import pytest

from oncegate import Gate, read
from oncegate.ingress.messages import Message, MessageEvent
from tests.ingress.sqs.queues import call


@pytest.mark.parametrize(("receives", "seconds"), [(1, 1), (2, 2), (3, 4), (8, 128), (9, 256), (10, 300), (500, 300)])
def test_the_pause_doubles_with_each_receive(receives: int, seconds: int) -> None:
    """A message that failed is delivered again after 1 s, 2 s, 4 s and so on, at most 300 s."""
    assert Message("m-1", receives).pause == seconds


def placed(payload: dict[str, Any], *, in_groups: bool = False) -> MessageEvent:
    (event,) = read(payload)
    return MessageEvent(Message("m-1", 1), event, Gate("memory://")._identify(event), in_groups=in_groups)


def test_lanes() -> None:
    """Events of one entity share a lane, copies without an entity share one. Each message group has one."""
    assert placed(call(1, "c-1")).lane == placed(call(2, "c-1")).lane != placed(call(3, "c-2")).lane
    assert placed(call(1)).lane == placed(call(1)).lane != placed(call(2)).lane
    assert placed(call(1, "c-1"), in_groups=True).lane == ("group", None)


def test_order_within_a_lane() -> None:
    """The earlier event has the lower order; in a queue with groups the order of arrival counts."""
    assert placed(call(1, "c-1")).order < placed(call(2, "c-1")).order
    assert placed(call(1, "c-1"), in_groups=True).order == placed(call(2, "c-1"), in_groups=True).order == 0
