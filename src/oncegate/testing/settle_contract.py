"""Contract tests of `settle` and `renew` (in time, late and repeated), and of which attempts count."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, Complete, InFlight, Record, Release
from oncegate.stores.base import Store
from oncegate.testing.clock import ManualClock
from oncegate.testing.requests import (
    ABOUT,
    BURIED_FOR,
    KEY,
    LEASE,
    NAMESPACE,
    RETENTION,
    bury,
    claim,
    claim_of,
    complete,
    granted,
    owner,
    redrive,
    release,
    renew,
    stored,
    take,
)

Settle = Callable[..., bool]

SETTLES = [
    pytest.param(complete, COMPLETED, id="complete"),
    pytest.param(release, RELEASED, id="release"),
    pytest.param(bury, DEAD, id="bury"),
]


class SettleContract:
    def test_complete(self, store: Store, clock: ManualClock) -> None:
        """Complete stores the result, keeps the summary of the event, and starts the retention."""
        record = granted(store)
        clock.advance(5)
        assert complete(store, record, b"0", error="its result was cut")
        after = stored(store)
        assert after is not None
        assert (after.state, after.result, after.error) == (COMPLETED, b"0", "its result was cut")
        assert (after.fence, after.attempts, after.about) == (record.fence, 1, ABOUT)
        assert (after.first_seen, after.completed_at) == (clock.now - 5, clock.now)
        assert after.expires_at == clock.now + RETENTION

    def test_release(self, store: Store) -> None:
        """Release keeps attempts, fence and error. It does not delete the record."""
        record = granted(store)
        assert release(store, record, error="boom")
        after = stored(store)
        assert after is not None
        assert (after.state, after.attempts, after.fence, after.error) == (RELEASED, 1, record.fence, "boom")

    def test_release_unstarted(self, store: Store) -> None:
        """After an unstarted release, the attempt does not count."""
        assert release(store, granted(store), unstarted=True)
        again = granted(store, "bob")
        assert again.attempts == 1

    def test_bury(self, store: Store, clock: ManualClock) -> None:
        """Bury stores payload and error in one write, for the retention of dead letters."""
        assert bury(store, granted(store), payload=b"\x00raw\xff", error="no \N{SNOWMAN}")
        after = stored(store)
        assert after is not None
        assert (after.state, after.payload, after.error) == (DEAD, b"\x00raw\xff", "no \N{SNOWMAN}")
        assert after.expires_at == clock.now + BURIED_FOR

    @pytest.mark.parametrize("result", [None, b"", b"null", b"0", b'"' + b"x" * 1_000_000 + b'"'])
    def test_results_are_unchanged(self, store: Store, result: bytes | None) -> None:
        """Any bytes are stored as the result, also an empty and a very long result. A result of None is stored, too."""
        assert complete(store, granted(store), result)
        after = stored(store)
        assert after is not None
        assert after.result == result

    @pytest.mark.parametrize(("settle", "state"), SETTLES)
    def test_same_settle_again(self, store: Store, clock: ManualClock, settle: Settle, state: str) -> None:
        """A retry of a settlement whose reply was lost answers True and changes nothing."""
        record = granted(store)
        assert settle(store, record)
        before = stored(store)
        clock.advance(7)
        assert settle(store, record)
        assert stored(store) == before
        assert before is not None
        assert before.state == state

    @pytest.mark.parametrize(("first", "_state"), SETTLES)
    @pytest.mark.parametrize(("second", "_other"), SETTLES)
    def test_another_settle_after(self, store: Store, first: Settle, second: Settle, _state: str, _other: str) -> None:
        """A settled claim cannot be settled in another way."""
        record = granted(store)
        assert first(store, record)
        before = stored(store)
        assert second(store, record) is (first is second)
        assert stored(store) == before

    @pytest.mark.parametrize("settle", [complete, release, bury, renew])
    def test_not_the_owner(self, store: Store, settle: Settle) -> None:
        """A settlement with the right fence and another owner fails, and nothing is written."""
        record = granted(store)
        before = stored(store)
        assert settle(store, record, owner=owner("eve")) is False
        assert stored(store) == before

    @pytest.mark.parametrize("settle", [complete, release, bury, renew])
    @pytest.mark.parametrize("state", ["claimed", "redriven"])
    def test_no_owner(self, store: Store, settle: Settle, state: str) -> None:
        """An empty owner never proves a claim, also not of a record that has an empty owner."""
        record = granted(store) if state == "redriven" else granted(store, owner=b"")
        if state == "redriven":
            assert bury(store, record)
            assert redrive(store)
        before = stored(store)
        assert settle(store, record, owner=b"") is False
        assert complete(store, record, b"null", owner=b"") is False
        assert stored(store) == before

    @pytest.mark.parametrize("settle", [complete, release, bury, renew])
    @pytest.mark.parametrize("off", [-1, 1])
    def test_not_the_fence(self, store: Store, settle: Settle, off: int) -> None:
        """A settlement with the right owner and another fence fails, and nothing is written."""
        record = granted(store)
        before = stored(store)
        assert settle(store, record, fence=record.fence + off) is False
        assert stored(store) == before

    @pytest.mark.parametrize("settle", [complete, release, bury, renew])
    def test_absent(self, store: Store, settle: Settle) -> None:
        """An absent record cannot be settled or renewed."""
        record = granted(store)
        assert settle(store, record, key=b"?" * 16) is False
        assert stored(store, b"?" * 16) is None

    @pytest.mark.parametrize("settle", [complete, release, bury, renew])
    def test_late_without_a_takeover(self, store: Store, clock: ManualClock, settle: Settle) -> None:
        """After the lease has ended, the owner can still settle or renew the claim, if no other owner was granted the
        claim."""
        record = granted(store)
        clock.advance(LEASE)
        assert settle(store, record)

    @pytest.mark.parametrize("settle", [complete, release, bury, renew])
    def test_late_and_taken_over(self, store: Store, clock: ManualClock, settle: Settle) -> None:
        """After the claim was granted to another owner, every settlement of the old owner fails, and the new claim does
        not change."""
        record = granted(store)
        clock.advance(LEASE)
        successor = granted(store, "bob")
        assert settle(store, record) is False
        assert stored(store) == successor
        assert complete(store, successor)

    @pytest.mark.parametrize("settle", [complete, release, bury, renew])
    def test_late_and_expired(self, store: Store, clock: ManualClock, settle: Settle) -> None:
        """A settlement after the expiry of the record fails and does not bring the record back."""
        record = granted(store)
        clock.advance(RETENTION)
        assert settle(store, record) is False
        assert stored(store) is None

    def test_late_and_completed_by_another(self, store: Store, clock: ManualClock) -> None:
        """The settlement of an old owner fails even after the next owner has completed the event."""
        record = granted(store)
        clock.advance(LEASE)
        assert complete(store, granted(store, "bob"), b'"bob"')
        assert complete(store, record, b'"ann"') is False
        after = stored(store)
        assert after is not None
        assert after.result == b'"bob"'

    def test_batch_of_settles(self, store: Store) -> None:
        """Each settlement of a batch has a separate answer. A failed settlement does not stop the other settlements."""
        keys = [bytes([number]) * 16 for number in range(3)]
        records = [verdict.record for verdict in store.claim([claim_of("ann", key=key) for key in keys])]
        answers = store.settle(
            [
                Complete(NAMESPACE, keys[0], records[0].owner, records[0].fence, RETENTION),
                Complete(NAMESPACE, keys[1], owner("eve"), records[1].fence, RETENTION),
                Release(NAMESPACE, keys[2], records[2].owner, records[2].fence),
                Release(NAMESPACE, keys[0], records[0].owner, records[0].fence),
            ]
        )
        assert answers == [True, False, True, False]
        assert [_state(store, key) for key in keys] == [COMPLETED, IN_PROGRESS, RELEASED]

    def test_two_settlements_of_one_claim(self, store: Store) -> None:
        """Of two settlements of one claim in a batch, the first counts."""
        record = granted(store)
        released = Release(NAMESPACE, KEY, record.owner, record.fence)
        completed = Complete(NAMESPACE, KEY, record.owner, record.fence, RETENTION, b"null")
        assert store.settle([released, completed, released]) == [True, False, True]
        assert _state(store, KEY) == RELEASED


class AttemptContract:
    """Tests of which attempts count: lost attempts, and attempts that found a service unavailable."""

    def test_the_first_loss_does_not_count(self, store: Store, clock: ManualClock) -> None:
        """The first lost attempt does not count, because another event may have killed the worker. Every further
        consecutive loss counts."""
        granted(store)
        for attempts, lost in [(1, 1), (2, 2), (3, 3)]:
            clock.advance(LEASE)
            record = granted(store, f"after {lost}")
            assert (record.attempts, record.lost) == (attempts, lost)
            assert _stored(store) == record

    def test_a_failure_ends_a_row_of_losses(self, store: Store, clock: ManualClock) -> None:
        """A recorded failure counts, and it ends a series of losses. The first loss after the failure does not
        count."""
        granted(store)
        clock.advance(LEASE)
        assert release(store, granted(store, "bob"), error="boom")
        assert _tries(store) == (1, 0)
        record = granted(store, "cid")
        assert (record.attempts, record.lost) == (2, 0)
        clock.advance(LEASE)
        record = granted(store, "dan")
        assert (record.attempts, record.lost) == (2, 1)

    def test_unstarted_keeps_a_row_of_losses(self, store: Store, clock: ManualClock) -> None:
        """An unstarted release shows nothing about the event, so it keeps the count of lost attempts."""
        granted(store)
        clock.advance(LEASE)
        assert release(store, granted(store, "bob"), unstarted=True)
        assert _tries(store) == (0, 1)
        record = granted(store, "cid")
        assert (record.attempts, record.lost) == (1, 1)

    def test_renewing_keeps_the_counts(self, store: Store, clock: ManualClock) -> None:
        """A renewal keeps `lost` and `unavailable_since`."""
        assert release(store, granted(store), unavailable=True)
        granted(store, "bob")
        clock.advance(LEASE)
        record = granted(store, "cid")
        assert (record.lost, record.unavailable_since) == (1, clock.now - LEASE)
        clock.advance(1)
        assert renew(store, record)
        assert _stored(store) == replace(record, lease_until=clock.now + LEASE)

    def test_unavailable_gives_the_attempt_back(self, store: Store, clock: ManualClock) -> None:
        """An attempt that found a service unavailable does not count. If several such releases follow each other, the
        time of the first release is kept."""
        first = clock.now
        for _ in range(3):
            record = granted(store, f"at {clock.now}")
            assert (record.attempts, record.lost) == (1, 0)
            assert release(store, record, error="refused", unavailable=True, delay=3)
            after = _stored(store)
            assert (after.state, after.attempts, after.unavailable_since) == (RELEASED, 0, first)
            assert (after.lease_until, after.error) == (clock.now + 3, "refused")
            clock.advance(5)

    def test_unavailable_ends_a_row_of_losses(self, store: Store, clock: ManualClock) -> None:
        """Every release except an unstarted one sets `lost` to 0, because the release shows that the worker is
        alive."""
        granted(store)
        clock.advance(LEASE)
        assert release(store, granted(store, "bob"), unavailable=True)
        assert _tries(store) == (0, 0)

    def test_unstarted_keeps_unavailable_since(self, store: Store, clock: ManualClock) -> None:
        """An unstarted release keeps `unavailable_since`. Even if the release is also `unavailable`, only one attempt
        is subtracted."""
        assert release(store, granted(store), unavailable=True)
        since = clock.now
        clock.advance(5)
        assert release(store, granted(store, "bob"), unstarted=True, unavailable=True)
        after = _stored(store)
        assert (after.attempts, after.unavailable_since, after.lease_until) == (0, since, 0)

    def test_a_failure_ends_unavailability(self, store: Store) -> None:
        """A normal failure sets `unavailable_since` to None."""
        assert release(store, granted(store), unavailable=True)
        assert release(store, granted(store, "bob"), error="boom")
        after = _stored(store)
        assert (after.attempts, after.unavailable_since) == (1, None)

    @pytest.mark.parametrize("result", [None, b"null", b'"done"', b"x" * 1_000])
    @pytest.mark.parametrize("handed_to", [None, "sqs://queue/\N{SNOWMAN}"])
    def test_completing_resets_the_counts(
        self, store: Store, clock: ManualClock, result: bytes | None, handed_to: str | None
    ) -> None:
        """A completed record has no `lost` and no `unavailable_since`."""
        assert release(store, granted(store), error="refused", unavailable=True)
        granted(store, "bob")
        clock.advance(LEASE)
        record = granted(store, "cid")
        assert (record.attempts, record.lost, record.unavailable_since) == (1, 1, clock.now - LEASE)
        assert complete(store, record, result, handed_to=handed_to)
        after = _stored(store)
        assert (after.state, after.result, after.error) == (COMPLETED, result, None)
        assert (after.attempts, after.lost, after.unavailable_since) == (1, 0, None)
        assert after.handed_to == handed_to

    @pytest.mark.parametrize("result", [None, b"null", b'"done"'])
    @pytest.mark.parametrize("error", [None, "its result was cut"])
    def test_handed_on(self, store: Store, result: bytes | None, error: str | None) -> None:
        """A completion can name the place that the event was published to. A duplicate gets this place, and a second
        completion changes nothing."""
        record = granted(store)
        assert complete(store, record, result, error=error, handed_to="sqs://queue")
        after = _stored(store)
        assert (after.state, after.result, after.error) == (COMPLETED, result, error)
        assert (after.handed_to, after.about, after.attempts) == ("sqs://queue", ABOUT, 1)
        assert complete(store, record, result, handed_to="sqs://another")
        assert _stored(store) == after
        assert claim(store, "bob").record == after

    def test_handed_on_in_a_batch(self, store: Store) -> None:
        """Each completion of a batch names its own place, or no place."""
        keys = [bytes([number]) * 16 for number in range(3)]
        records = [verdict.record for verdict in store.claim([claim_of("ann", key=key) for key in keys])]
        places = [None, "sqs://queue", None]
        completions = [
            Complete(NAMESPACE, key, record.owner, record.fence, RETENTION, b"null", handed_to=place)
            for key, record, place in zip(keys, records, places, strict=True)
        ]
        assert store.settle(completions) == [True] * 3
        assert [_stored(store, key).handed_to for key in keys] == places

    def test_buried_keeps_the_counts(self, store: Store, clock: ManualClock) -> None:
        """A dead letter keeps `lost` and `unavailable_since`. A redrive resets them."""
        assert release(store, granted(store), unavailable=True)
        since = clock.now
        granted(store, "bob")
        clock.advance(LEASE)
        assert bury(store, granted(store, "cid"))
        dead = _stored(store)
        assert (dead.state, dead.attempts, dead.lost, dead.unavailable_since) == (DEAD, 1, 1, since)
        assert redrive(store)
        again = _stored(store)
        assert (again.state, again.attempts, again.lost, again.unavailable_since) == (RELEASED, 0, 0, None)
        entry = take(store)
        assert entry is not None
        assert (entry.record.attempts, entry.record.lost) == (1, 0)

    def test_marking_resets_the_counts(self, store: Store, clock: ManualClock) -> None:
        """A marking claim completes the record, so it resets `lost` and `unavailable_since`."""
        assert release(store, granted(store), unavailable=True)
        granted(store, "bob")
        clock.advance(LEASE)
        record = granted(store, "cid", marks=True)
        assert (record.state, record.attempts, record.lost, record.unavailable_since) == (COMPLETED, 1, 0, None)
        assert _stored(store) == record


class RenewContract:
    def test_renewing_moves_the_lease(self, store: Store, clock: ManualClock) -> None:
        """A renewed lease counts from now. Fence and attempts do not change."""
        record = granted(store)
        clock.advance(LEASE - 1)
        assert renew(store, record, lease=2 * LEASE)
        after = stored(store)
        assert after is not None
        assert after.lease_until == clock.now + 2 * LEASE
        assert (after.fence, after.attempts, after.expires_at) == (record.fence, record.attempts, record.expires_at)

    def test_a_renewed_claim_is_not_forgotten(self, store: Store, clock: ManualClock) -> None:
        """Even with a short retention, a record exists as long as its lease, and no other claim is granted during that
        time."""
        record = granted(store, retention=LEASE)
        clock.advance(LEASE - 1)
        assert renew(store, record)
        clock.advance(LEASE - 1)
        assert isinstance(claim(store, "bob", retention=LEASE), InFlight)
        assert complete(store, record)

    @pytest.mark.parametrize("settle", [complete, release, bury])
    def test_settled_is_not_renewed(self, store: Store, settle: Settle) -> None:
        """A settled claim cannot be renewed."""
        record = granted(store)
        assert settle(store, record)
        assert renew(store, record) is False


def _stored(store: Store, key: bytes = KEY) -> Record:
    record = stored(store, key)
    assert record is not None
    return record


def _tries(store: Store) -> tuple[int, int]:
    record = _stored(store)
    return record.attempts, record.lost


def _state(store: Store, key: bytes = KEY) -> str | None:
    record: Record | None = stored(store, key)
    return None if record is None else record.state
