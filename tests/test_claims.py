"""The pure function `claims.step`: admit and abandon, and rules for all operations.

The rows of claim, take, settle, renew, redrive and reset are in `oncegate.testing`, which every store passes.
"""

import inspect
from typing import Any

import pytest
from msgspec.structs import replace

from oncegate import claims
from oncegate.claims import (
    COMPLETED,
    DEAD,
    IN_PROGRESS,
    RELEASED,
    Abandon,
    Admit,
    Admitted,
    Buried,
    Claim,
    Conflict,
    Duplicate,
    EventSummary,
    Granted,
    InFlight,
    Record,
    step,
)

NOW = 1_000
ANN, BOB = b"a" * 16, b"b" * 16
ONE, TWO = b"1" * 16, b"2" * 16
ABOUT = EventSummary("plain")

HELD = Record(IN_PROGRESS, ANN, 7, NOW + 1, 1, ONE, NOW + 100, ABOUT, 1)
LAPSED = replace(HELD, lease_until=NOW)
FREE = replace(HELD, state=RELEASED, lease_until=0)
DONE = replace(HELD, state=COMPLETED, lease_until=0, result=b"1", completed_at=9)
BURIED = replace(HELD, state=DEAD, lease_until=0, payload=b"{}", error="boom")
WAITING = replace(FREE, payload=b"{}", expires_at=None)
TAKEN = replace(HELD, payload=b"{}", expires_at=None)


def admit(record: Record | None, **changed: Any) -> tuple[Record | None, Any]:
    fields: dict[str, Any] = {
        "namespace": "n",
        "key": b"k",
        "owner": BOB,
        "payload_hash": ONE,
        "payload": b"{}",
        "about": ABOUT,
    }
    return step(record, Admit(**(fields | changed)), NOW)


def abandon(record: Record | None, owner: bytes = ANN, fence: int = 7) -> tuple[Record | None, Any]:
    return step(record, Abandon("n", b"k", owner, fence), NOW)


def claim(record: Record | None, **changed: Any) -> tuple[Record | None, Any]:
    fields: dict[str, Any] = {
        "namespace": "n",
        "key": b"k",
        "owner": BOB,
        "payload_hash": ONE,
        "lease": 30,
        "retention": 60,
        "about": ABOUT,
    }
    return step(record, Claim(**(fields | changed)), NOW)


class TestAdmit:
    @pytest.mark.parametrize("before", [None, replace(DONE, expires_at=NOW)])
    def test_absent(self, before: Record | None) -> None:
        """An unknown or expired key is stored with its payload, with 0 attempts and without an expiry."""
        record, answer = admit(before)
        assert isinstance(answer, Admitted)
        assert record is not None
        assert (record.state, record.attempts, record.payload, record.expires_at) == (RELEASED, 0, b"{}", None)
        assert record.fence == NOW

    def test_lost_reply(self) -> None:
        """A retry of an admission is admitted again and is not a duplicate of itself."""
        record, _ = admit(None)
        again, answer = admit(record)
        assert again is record
        assert isinstance(answer, Admitted)

    @pytest.mark.parametrize("before", [None, replace(DONE, expires_at=NOW)])
    def test_absent_with_a_lease(self, before: Record | None) -> None:
        """With a lease, a new event is granted at once, as its first attempt."""
        record, answer = admit(before, lease=30)
        assert isinstance(answer, Granted)
        assert record is not None
        assert (record.state, record.attempts, record.payload, record.expires_at) == (IN_PROGRESS, 1, b"{}", None)
        assert (record.owner, record.fence, record.lease_until) == (BOB, NOW, NOW + 30)

    def test_lost_reply_with_a_lease(self) -> None:
        """A retry of an admission with a lease gets the same grant. After the lease it is a duplicate."""
        record, _ = admit(None, lease=30)
        assert record is not None
        assert admit(record, lease=30) == (record, Granted(record, NOW))
        over = replace(record, lease_until=NOW)
        assert admit(over, lease=30) == (over, Duplicate(over, NOW))

    @pytest.mark.parametrize("before", [FREE, LAPSED, HELD, WAITING, TAKEN, DONE, BURIED])
    def test_known_with_a_lease(self, before: Record) -> None:
        """For a known key, a lease changes nothing: the event is not granted."""
        assert admit(before, lease=30) == admit(before)

    @pytest.mark.parametrize("before", [FREE, LAPSED])
    def test_payload_is_attached(self, before: Record) -> None:
        """A record without a payload and without a live lease gets the payload. Its old owner cannot settle it any
        more."""
        record, answer = admit(before)
        assert isinstance(answer, Admitted)
        assert record is not None
        assert (record.state, record.payload, record.owner, record.expires_at) == (RELEASED, b"{}", BOB, None)
        assert record.fence == before.fence
        assert (record.attempts, record.lost) == ((1, 0) if before is FREE else (0, 1))
        assert step(record, claims.Complete("n", b"k", ANN, before.fence, 60), NOW)[1] is False

    @pytest.mark.parametrize(
        ("before", "expected"),
        [(HELD, InFlight), (WAITING, Duplicate), (TAKEN, Duplicate), (DONE, Duplicate), (BURIED, Buried)],
    )
    def test_unchanged(self, before: Record, expected: type) -> None:
        """A claimed, admitted, completed or buried record does not change."""
        record, answer = admit(before)
        assert record is before
        assert isinstance(answer, expected)

    @pytest.mark.parametrize("before", [HELD, LAPSED, FREE, WAITING, TAKEN, DONE, BURIED])
    def test_other_content(self, before: Record) -> None:
        """Other content under a key that binds content is a conflict in every state, never a duplicate."""
        record, answer = admit(before, payload_hash=TWO)
        assert record is before
        assert isinstance(answer, Conflict)
        assert not isinstance(admit(before, payload_hash=TWO, binds=False)[1], Conflict)


class TestTakenAndClaimed:
    def test_a_delivery_takes_over_from_a_dead_dispatcher(self) -> None:
        """A record with a payload and an expired lease is granted to a delivery, and still does not expire."""
        record, answer = claim(replace(TAKEN, lease_until=NOW))
        assert isinstance(answer, Granted)
        assert record is not None
        assert (record.payload, record.expires_at, record.fence) == (b"{}", None, 8)
        assert (record.attempts, record.lost) == (1, 1)
        again, _ = claim(replace(record, lease_until=NOW), owner=ANN)
        assert again is not None
        assert (again.fence, again.attempts, again.lost) == (9, 2, 2)


class TestAbandon:
    @pytest.mark.parametrize("before", [HELD, TAKEN, replace(HELD, lost=2, unavailable_since=5, error="boom")])
    def test_held(self, before: Record) -> None:
        """Abandon ends the lease at once and keeps the rest. The attempt counts as lost only at the next grant."""
        record, answer = abandon(before)
        assert answer is True
        assert record == replace(before, lease_until=NOW)
        assert record is not None
        again, verdict = claim(record)
        assert isinstance(verdict, Granted)
        assert again is not None
        assert (again.attempts, again.lost) == (1 + bool(before.lost), before.lost + 1)

    @pytest.mark.parametrize("before", [None, LAPSED, FREE, WAITING, DONE, BURIED, replace(HELD, expires_at=NOW)])
    def test_anything_else(self, before: Record | None) -> None:
        """A record without a live lease, or an expired record, cannot be abandoned."""
        absent = before is None or before.expires_at == NOW
        assert abandon(before) == (None if absent else before, False)

    @pytest.mark.parametrize("proof", [{"owner": BOB}, {"fence": 6}, {"fence": 8}])
    def test_the_claim_of_another(self, proof: dict[str, Any]) -> None:
        """The claim of another owner or fence on the same key is not abandoned."""
        record, answer = abandon(HELD, **proof)
        assert record is HELD
        assert answer is False

    def test_twice(self) -> None:
        """Several processes may notice the end of an instance at once: a second abandon changes nothing."""
        record, _ = abandon(HELD)
        assert abandon(record) == (record, False)

    def test_a_late_settlement(self) -> None:
        """As after any expired lease, the owner may settle until the claim is granted to another."""
        record, _ = abandon(HELD)
        assert step(record, claims.Complete("n", b"k", ANN, 7, 60), NOW)[1] is True
        taken_over, _ = claim(record)
        assert step(taken_over, claims.Complete("n", b"k", ANN, 7, 60), NOW) == (taken_over, False)


@pytest.mark.parametrize("before", [None, HELD, LAPSED, FREE, WAITING, TAKEN, DONE, BURIED])
def test_pure_function(before: Record | None) -> None:
    """The function is pure: equal arguments give equal answers, and it does not change its arguments."""
    copy = replace(before) if before is not None else None
    assert claim(before) == claim(before)
    assert before == copy


def test_pure_imports() -> None:
    """The module imports only types and msgspec: no clock, no random numbers, no I/O."""
    imports = [line for line in inspect.getsource(claims).splitlines() if line.startswith(("import ", "from "))]
    assert {line.split()[1].split(".")[0] for line in imports} == {"collections", "typing", "msgspec"}
