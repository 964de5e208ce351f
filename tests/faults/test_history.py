"""The history of all requests and answers, and the checker that reads it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.grounds import Ground
from tests.faults.stress import stressed
from tests.kills.checker import check
from tests.kills.history import Item, Operation, Shown
from tests.kills.linear import explained

_GROUNDS = ["sqlite", "redis", "redis-cluster", "postgres"]


@pytest.mark.parametrize("name", _GROUNDS)
def test_history_is_possible(ground_of: Callable[[str], Ground], name: str, seed: int) -> None:
    """Workers that claim, renew and settle the same keys, late and repeatedly, get answers that one order explains."""
    found = stressed(ground_of(name), 6_000, seed)
    assert found.complaints == []
    assert found.operations >= 6_000
    assert found.takeovers > 50
    assert found.refused > 50


@pytest.mark.parametrize(
    ("name", "ablation", "sign"),
    [
        ("sqlite", "stolen", "two owners at once"),
        ("redis", "stolen", "two owners at once"),
        ("sqlite", "unfenced", "was accepted after"),
        ("redis", "unfenced", "was accepted after"),
        ("postgres", "unfenced", "was accepted after"),
        ("sqlite", "settled once", "was refused to its owner"),
        ("redis", "settled once", "was refused to its owner"),
        ("postgres", "settled once", "was refused to its owner"),
    ],
)
def test_an_ablation_is_caught(
    ground_of: Callable[[str], Ground], name: str, ablation: str, sign: str, seed: int
) -> None:
    """Without this rule, the history of the store violates the protocol, and no order explains it."""
    broken = stressed(ground_of(name), 1_500, seed, ablation).broken
    assert any(sign in line for line in broken)
    assert any("no order explains it" in line for line in broken)


# ── the checker alone ─────────────────────────────────────────────────────────────────────────────────────

_LEASE = 1_000


def _claimed(asker: bytes, begin: int, verdict: str = "Granted", **shown: Any) -> Operation:
    """A claim that was answered two ticks later. The store and the workers have the same clock."""
    fields: dict[str, Any] = {"state": "P", "owner": asker, "fence": 7, "attempts": 1, "lease_until": begin + _LEASE}
    answer = Shown(verdict, begin + 1, **fields | shown)
    return Operation(Item("n", b"k", asker, "claim", lease=_LEASE), begin, begin + 2, answer)


def _asked(verb: str, owner: bytes, begin: int, answer: bool | None = True, fence: int = 7) -> Operation:
    end = None if answer is None else begin + 2
    return Operation(Item("n", b"k", owner, verb, fence, _LEASE), begin, end, answer)


_GRANTED = _claimed(b"ann", 10)
_LATER = _claimed(b"bob", 2_000, fence=8, lost=1, lease_until=3_000)


@pytest.mark.parametrize(
    "history",
    [
        [_GRANTED, _asked("complete", b"ann", 20), _claimed(b"bob", 30, "Duplicate", owner=b"ann", state="C")],
        [_GRANTED, _LATER, _asked("complete", b"ann", 2_010, answer=False)],
        [_GRANTED, _asked("release", b"ann", 20), _claimed(b"bob", 30, fence=8, attempts=2)],
        [_GRANTED, _asked("release", b"ann", 20, answer=None), _claimed(b"bob", 30, fence=8, attempts=2)],
        [_GRANTED, _asked("release", b"ann", 29, answer=False), _claimed(b"bob", 30, fence=8, attempts=2)],
        [_GRANTED, _asked("complete", b"ann", 20, answer=None), _asked("complete", b"ann", 40)],
        [_GRANTED, _claimed(b"ann", 30, lease_until=1_010)],
        [_GRANTED, _asked("bury", b"ann", 20), _claimed(b"bob", 30, "Buried", owner=b"ann", state="D")],
    ],
)
def test_valid_histories(history: list[Operation]) -> None:
    """Valid histories of the protocol, also with lost answers, cause no complaint."""
    assert check(history).complaints == []


@pytest.mark.parametrize(
    ("history", "sign"),
    [
        ([_GRANTED, _claimed(b"bob", 500, fence=8)], "two owners at once"),
        ([_GRANTED, _asked("release", b"ann", 20, answer=False), _claimed(b"bob", 30, fence=8)], "two owners at once"),
        ([_GRANTED, _asked("renew", b"ann", 900), _claimed(b"bob", 1_500, fence=8)], "two owners at once"),
        ([_GRANTED, _claimed(b"bob", 2_000)], "fence 7 has two owners"),
        ([_LATER, _claimed(b"ann", 4_000, fence=6)], "the fence fell from 8 to 6"),
        ([_GRANTED, _LATER, _asked("complete", b"ann", 2_010)], "stale complete of 7 was accepted"),
        ([_GRANTED, _LATER, _asked("renew", b"ann", 2_010)], "stale renew of 7 was accepted"),
        ([_GRANTED, _asked("complete", b"eve", 20)], "was accepted from one who was not granted it"),
        ([_GRANTED, _asked("complete", b"ann", 20), _LATER], "8 was granted although 7 ended it"),
        (
            [_GRANTED, _asked("complete", b"ann", 20), _claimed(b"bob", 30, "InFlight", owner=b"ann")],
            "it was P after 7 had ended it",
        ),
        (
            [_GRANTED, _asked("complete", b"ann", 20), _LATER, _asked("complete", b"bob", 2_010, fence=8)],
            "it was ended under 2 claims",
        ),
        ([_GRANTED, _asked("complete", b"ann", 20, answer=False)], "complete of 7 was refused to its owner"),
        ([_GRANTED, _asked("renew", b"ann", 20, answer=False)], "renew of 7 was refused to its owner"),
        ([_claimed(b"bob", 10, owner=b"ann")], "was granted to one who did not ask"),
        ([_claimed(b"bob", 10, "Duplicate", owner=b"eve", state="C")], "showed an owner who had not asked"),
    ],
)
def test_invalid_histories(history: list[Operation], sign: str) -> None:
    """Each of these histories breaks one rule, and the complaint names it."""
    assert any(sign in complaint for complaint in check(history).complaints), check(history).complaints


_DEAD, _NEXT = b"dead.pid" + b"1" * 8, b"next.pid" + b"1" * 8
_HELD = _claimed(_DEAD, 10)
_TAKEN = _claimed(_NEXT, 500, fence=8)


def test_a_process_that_has_ended() -> None:
    """If a store may abandon claims, a lease may be cut short, but only for a process that sends no further request."""
    assert check([_HELD, _TAKEN], abandons=True).complaints == []
    alive = _asked("renew", b"dead.pid" + b"2" * 8, 600, answer=False)
    for history, abandons in [([_HELD, _TAKEN], False), ([_HELD, _TAKEN, alive], True)]:
        assert any("two owners at once" in line for line in check(history, abandons=abandons).complaints)


_FIRST = _claimed(b"ann", 10, fence=11, lease_until=1_011)
_AFTER_IT = {"owner": b"ann", "fence": 11, "lease_until": 1_011}
_RENEWED = _asked("renew", b"ann", 900, fence=11)


@pytest.mark.parametrize(
    ("history", "possible"),
    [
        ([_FIRST, _claimed(b"bob", 11, "InFlight", **_AFTER_IT), _asked("complete", b"ann", 20, fence=11)], True),
        ([_claimed(b"bob", 9, "InFlight", **_AFTER_IT), _FIRST], True),
        ([_claimed(b"bob", 5, "InFlight", **_AFTER_IT), _FIRST], False),
        ([_FIRST, _claimed(b"bob", 1_010, fence=12, lost=1, lease_until=2_011)], True),
        ([_FIRST, _claimed(b"bob", 1_009, fence=12, lost=1, lease_until=2_010)], False),
        ([_claimed(b"ann", 1_500, fence=500, lost=1, lease_until=2_501)], True),
        ([_claimed(b"ann", 1_500, fence=600, lost=1, lease_until=2_501)], False),
        ([_FIRST, _RENEWED, _claimed(b"bob", 1_500, "InFlight", **_AFTER_IT | {"lease_until": 1_901})], True),
        ([_FIRST, _RENEWED, _claimed(b"bob", 1_500, "InFlight", **_AFTER_IT | {"lease_until": 1_600})], False),
        ([_FIRST, _claimed(b"bob", 1_020, "InFlight", **_AFTER_IT)], False),
        ([_FIRST, _asked("release", b"ann", 1_019, fence=11), _claimed(b"bob", 1_020, "InFlight", **_AFTER_IT)], True),
        ([_FIRST, _asked("release", b"ann", 20, fence=11), _asked("complete", b"ann", 30, fence=11)], False),
        ([_FIRST, _asked("complete", b"ann", 20, fence=11), _asked("complete", b"ann", 30, fence=11)], True),
    ],
)
def test_an_order_is_found(history: list[Operation], possible: bool) -> None:
    """Operations that overlap in time may be put in any order, and no others. The function must then give the same
    answers."""
    assert explained(history, 0) is possible
