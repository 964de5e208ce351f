"""Contract tests of `claim`, `take` and expiry."""

import pytest

from oncegate.claims import COMPLETED, DEAD, IN_PROGRESS, RELEASED, Buried, Conflict, Duplicate, Granted, InFlight, seed
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
    content,
    granted,
    owner,
    redrive,
    release,
    renew,
    seeded,
    stored,
    take,
)


def _in_state(store: Store, state: str) -> None:
    """Bring the record to a state with the verbs of the store."""
    record = granted(store)
    if state == RELEASED:
        assert release(store, record)
    elif state == COMPLETED:
        assert complete(store, record)
    elif state == DEAD:
        assert bury(store, record)


class ClaimContract:
    crowd = 1_000

    def test_absent_is_granted(self, store: Store, clock: ManualClock) -> None:
        """The first claim of a key is granted: attempt 1, the whole lease, and the time of the store as the fence."""
        verdict = claim(store)
        assert isinstance(verdict, Granted)
        record = verdict.record
        assert (record.state, record.attempts, record.fence) == (IN_PROGRESS, 1, clock.now)
        assert verdict.lease_left == LEASE
        assert record.owner == owner("ann")
        assert record.about == ABOUT

    def test_lost_reply_is_granted_again(self, store: Store, clock: ManualClock) -> None:
        """A retry of a claim during its lease gets the same grant and the rest of the lease."""
        first = granted(store)
        clock.advance(LEASE - 1)
        verdict = claim(store)
        assert isinstance(verdict, Granted)
        assert verdict.record == first
        assert verdict.lease_left == 1

    def test_lost_reply_after_the_lease_is_a_new_attempt(self, store: Store, clock: ManualClock) -> None:
        """After the lease has ended, a retry of the claim is a new grant with a higher fence."""
        first = granted(store)
        clock.advance(LEASE)
        again = granted(store)
        assert (again.attempts, again.lost, again.fence) == (1, 1, first.fence + 1)

    def test_lost_reply_of_a_completed_claim(self, store: Store) -> None:
        """If a request arrives again after its claim was completed, the answer is its own grant, in state C, and not a
        duplicate."""
        first = granted(store)
        assert complete(store, first)
        verdict = claim(store)
        assert isinstance(verdict, Granted)
        assert verdict.record.fence == first.fence
        assert verdict.record.state == COMPLETED

    def test_late_copy_of_a_released_claim(self, store: Store) -> None:
        """If a request arrives again after its claim was released, it is not granted, and no attempt is counted."""
        assert release(store, granted(store))
        before = stored(store)
        assert isinstance(claim(store), InFlight)
        assert stored(store) == before
        assert granted(store, "bob").attempts == 2

    @pytest.mark.parametrize("state", [IN_PROGRESS, RELEASED, COMPLETED, DEAD])
    def test_other_content_is_a_conflict(self, store: Store, state: str) -> None:
        """In every state, a claim with another payload hash is a conflict if the key binds content, and nothing
        changes."""
        _in_state(store, state)
        before = stored(store)
        verdict = claim(store, "bob", payload_hash=content("two"))
        assert isinstance(verdict, Conflict)
        assert verdict.record.payload_hash == content("one")
        assert stored(store) == before

    @pytest.mark.parametrize("binds", [True, False])
    def test_seeded(self, store: Store, clock: ManualClock, binds: bool) -> None:
        """A seeded key is completed with unknown content: a claim with any content is a duplicate until the record
        expires at the time that the seed gave."""
        assert isinstance(seeded(store, retention=10), Granted)
        record = stored(store)
        assert record is not None
        assert (record.state, record.payload_hash, record.completed_at) == (COMPLETED, b"", clock.now)
        assert (record.expires_at, record.result, record.about) == (clock.now + 10, None, ABOUT)
        clock.advance(9)
        for text in ("one", "two"):
            assert isinstance(claim(store, "bob", payload_hash=content(text), binds=binds), Duplicate)
        assert stored(store) == record
        clock.advance(1)
        assert granted(store, "bob", payload_hash=content("two"), binds=binds).attempts == 1

    def test_seeded_again(self, store: Store, clock: ManualClock) -> None:
        """A second seed of a key is a duplicate and does not move the expiry. A repeated request gets its grant."""
        assert isinstance(seeded(store, retention=10), Granted)
        before = stored(store)
        clock.advance(5)
        assert isinstance(seeded(store, "other", retention=100), Duplicate)
        assert isinstance(seeded(store, retention=10), Granted)
        assert stored(store) == before

    @pytest.mark.parametrize("state", [IN_PROGRESS, RELEASED, COMPLETED, DEAD])
    def test_seed_of_a_known_key(self, store: Store, clock: ManualClock, state: str) -> None:
        """A seed never changes a record, not even a released one or one with an expired lease."""
        _in_state(store, state)
        before = stored(store)
        assert isinstance(seeded(store), Conflict)
        clock.advance(LEASE)
        assert isinstance(seeded(store), Conflict)
        assert stored(store) == before

    def test_batch_of_seeds(self, store: Store) -> None:
        """New and known keys are seeded in one batch, each with its own retention."""
        keys = [bytes([number]) * 16 for number in range(4)]
        granted(store, key=keys[1])
        requests = [
            seed(NAMESPACE, key, owner=owner("operator"), retention=10 + place, about=ABOUT)
            for place, key in enumerate(keys)
        ]
        verdicts = store.claim(requests)
        assert [type(verdict) for verdict in verdicts] == [Granted, Conflict, Granted, Granted]
        kept = [(verdict.record.expires_at or 0) - verdict.at for verdict in (verdicts[0], verdicts[2], verdicts[3])]
        assert kept == [10, 12, 13]

    def test_other_content_without_binding(self, store: Store) -> None:
        """A key that does not bind content treats other content as the same event, during the lease and after
        completion."""
        first = granted(store)
        assert isinstance(claim(store, "bob", payload_hash=content("two"), binds=False), InFlight)
        assert complete(store, first)
        assert isinstance(claim(store, "bob", payload_hash=content("two"), binds=False), Duplicate)

    def test_lease_boundary(self, store: Store, clock: ManualClock) -> None:
        """Until the last microsecond of a lease, other claims are in flight and get the time left. At the end of the
        lease, the next claim is granted."""
        first = granted(store)
        clock.advance(LEASE - 1)
        verdict = claim(store, "bob")
        assert isinstance(verdict, InFlight)
        assert verdict.lease_left == 1
        clock.advance(1)
        second = granted(store, "bob")
        assert (second.attempts, second.lost, second.fence) == (1, 1, first.fence + 1)
        assert second.owner == owner("bob")

    def test_released_is_granted(self, store: Store) -> None:
        """A released key is granted to the next claim, with the next attempt and a higher fence."""
        first = granted(store)
        assert release(store, first, error="boom")
        second = granted(store, "bob")
        assert (second.attempts, second.fence, second.error) == (2, first.fence + 1, "boom")

    def test_completed_is_a_duplicate(self, store: Store) -> None:
        """A completed key answers with the original record and its result, and nothing changes."""
        assert complete(store, granted(store), b"[1]")
        before = stored(store)
        verdict = claim(store, "bob")
        assert isinstance(verdict, Duplicate)
        assert (verdict.record.result, verdict.record.about) == (b"[1]", ABOUT)
        assert stored(store) == before

    def test_dead_letter_is_buried(self, store: Store) -> None:
        """A dead letter answers Buried with its error, and nothing changes."""
        assert bury(store, granted(store))
        before = stored(store)
        verdict = claim(store, "bob")
        assert isinstance(verdict, Buried)
        assert verdict.record.error == "ValueError: boom"
        assert stored(store) == before

    def test_redriven_is_durable_for_deliveries(self, store: Store) -> None:
        """A redriven record with its payload is a duplicate for a delivery: a dispatcher will run it."""
        assert bury(store, granted(store))
        assert redrive(store)
        verdict = claim(store, "bob")
        assert isinstance(verdict, Duplicate)
        assert verdict.record.state == RELEASED

    def test_batch_is_processed_in_order(self, store: Store) -> None:
        """A batch is processed in order: the first claim of a key is granted, and the second finds that grant."""
        other = b"o" * 16
        verdicts = store.claim([claim_of("ann"), claim_of("bob"), claim_of("cid", key=other), claim_of("ann")])
        assert [type(verdict) for verdict in verdicts] == [Granted, InFlight, Granted, Granted]
        assert verdicts[3].record == verdicts[0].record

    def test_batch_with_a_conflict(self, store: Store) -> None:
        """Two contents under one key in one batch: the first is granted, the second is a conflict."""
        verdicts = store.claim([claim_of("ann"), claim_of("bob", payload_hash=content("two"))])
        assert [type(verdict) for verdict in verdicts] == [Granted, Conflict]

    def test_large_batch(self, store: Store) -> None:
        """A batch of very many keys is answered in order. The first batch is granted, and the second is in flight."""
        requests = [claim_of("ann", key=number.to_bytes(16), owner=number.to_bytes(16)) for number in range(self.crowd)]
        verdicts = store.claim(requests)
        assert [verdict.record.owner for verdict in verdicts] == [request.owner for request in requests]
        again = store.claim([claim_of("bob", key=request.key) for request in reversed(requests)])
        assert [verdict.record.owner for verdict in again] == [request.owner for request in reversed(requests)]
        assert all(isinstance(verdict, InFlight) for verdict in again)

    def test_marking_claim(self, store: Store, clock: ManualClock) -> None:
        """A marking claim is granted and completed in one write. Later claims are duplicates."""
        verdict = claim(store, marks=True)
        assert isinstance(verdict, Granted)
        assert (verdict.record.state, verdict.record.completed_at) == (COMPLETED, clock.now)
        assert verdict.lease_left == LEASE
        assert isinstance(claim(store, "bob", marks=True), Duplicate)
        clock.advance(1)
        again = claim(store, marks=True)
        assert isinstance(again, Granted)
        assert (again.record, again.lease_left) == (verdict.record, LEASE - 1)

    def test_marking_a_released_or_lost_record(self, store: Store, clock: ManualClock) -> None:
        """A marking claim is granted a released record or a record with an expired lease, with a higher fence."""
        first = granted(store)
        clock.advance(LEASE)
        second = granted(store, "bob", marks=True)
        assert (second.state, second.fence, second.attempts) == (COMPLETED, first.fence + 1, 1)
        assert second.lost == 0
        assert stored(store) == second
        assert complete(store, first) is False

    def test_empty_batch(self, store: Store) -> None:
        """An empty batch has an empty answer."""
        assert store.claim([]) == []
        assert store.settle([]) == []
        assert store.renew([]) == []
        assert store.take([]) == []


class ExpiryContract:
    crowd = 1_000

    @pytest.mark.parametrize("state", [IN_PROGRESS, RELEASED, COMPLETED])
    def test_retention_boundary(self, store: Store, clock: ManualClock, state: str) -> None:
        """A record exists until the last microsecond of its retention. At the end of the retention, the key is new."""
        _in_state(store, state)
        before = stored(store)
        assert before is not None
        clock.advance(RETENTION - 1)
        assert stored(store) == before
        clock.advance(1)
        assert stored(store) is None
        fresh = granted(store, "bob", payload_hash=content("two"))
        assert (fresh.attempts, fresh.first_seen) == (1, clock.now)
        assert fresh.fence > before.fence

    def test_duplicates_do_not_extend_retention(self, store: Store, clock: ManualClock) -> None:
        """Duplicates do not extend the retention."""
        assert complete(store, granted(store))
        for _ in range(2):
            clock.advance(RETENTION // 2 - 1)
            assert isinstance(claim(store, "bob"), Duplicate)
        clock.advance(2)
        assert complete(store, granted(store, "bob"))

    def test_sliding_in_a_batch(self, store: Store, clock: ManualClock) -> None:
        """A duplicate in a batch sees the expiry that an earlier sliding claim of the batch has set."""
        assert complete(store, granted(store))
        clock.advance(RETENTION // 2)
        slid, found = store.claim([claim_of("bob", slides=2 * RETENTION), claim_of("cid")])
        assert slid.record.expires_at == clock.now + RETENTION
        assert found == slid

    def test_sliding_duplicates_extend_retention(self, store: Store, clock: ManualClock) -> None:
        """A sliding duplicate restarts the retention of a completed record, up to the limit, and never moves the expiry
        back."""
        complete(store, granted(store))
        limit = RETENTION + LEASE
        clock.advance(LEASE - 1)
        claim(store, "bob", slides=limit)
        assert stored(store).expires_at == clock.now + RETENTION  # type: ignore[union-attr]
        clock.advance(RETENTION - LEASE)
        verdict = claim(store, "bob", slides=limit)
        assert isinstance(verdict, Duplicate)
        assert verdict.record == stored(store)
        assert verdict.record.expires_at == verdict.record.first_seen + limit
        claim(store, "bob", slides=limit, retention=LEASE)
        assert stored(store) == verdict.record

    def test_completing_restarts_retention(self, store: Store, clock: ManualClock) -> None:
        """The retention counts from the completion, not from the claim."""
        record = granted(store)
        clock.advance(RETENTION - 1)
        assert complete(store, record)
        clock.advance(RETENTION - 1)
        assert isinstance(claim(store, "bob"), Duplicate)

    def test_dead_letters_have_their_own_retention(self, store: Store, clock: ManualClock) -> None:
        """A dead letter outlives the retention of completed keys and expires after its own retention."""
        assert bury(store, granted(store))
        clock.advance(BURIED_FOR - 1)
        assert isinstance(claim(store, "bob"), Buried)
        assert len(store.dead_letters()) == 1
        clock.advance(1)
        assert store.dead_letters() == []
        assert isinstance(claim(store, "bob"), Granted)

    def test_an_unprocessed_payload_does_not_expire(self, store: Store, clock: ManualClock) -> None:
        """A record with a payload that has not run does not expire."""
        assert bury(store, granted(store))
        assert redrive(store)
        clock.advance(100 * BURIED_FOR)
        entry = take(store)
        assert entry is not None
        assert entry.record.payload == b'{"id":"evt-1"}'

    def test_many_expired_keys_are_dropped(self, store: Store, clock: ManualClock) -> None:
        """Claims of new keys remove expired records, so the store does not grow with its history."""
        for wave in range(8):
            keys = [(wave * self.crowd + number).to_bytes(16) for number in range(self.crowd)]
            requests = [claim_of(f"w{wave}", key=key) for key in keys]
            assert all(isinstance(verdict, Granted) for verdict in store.claim(requests))
            clock.advance(RETENTION + 2_000_000)
        assert self.kept(store) <= 4 * self.crowd

    def kept(self, store: Store) -> int:
        """The number of records in the store, including expired ones. Override this method if the store can count
        expired records, too."""
        return len(store.browse(limit=1_000_000))


class TakeContract:
    def test_nothing_to_take(self, store: Store) -> None:
        """A dispatcher takes no record without a payload."""
        granted(store)
        complete(store, granted(store, key=b"c" * 16), key=b"c" * 16)
        assert take(store) is None

    def test_dead_letters_are_not_taken(self, store: Store) -> None:
        """A dispatcher takes no dead letter."""
        assert bury(store, granted(store))
        assert take(store) is None

    def test_redriven_is_taken_once(self, store: Store) -> None:
        """A redriven record is granted to one dispatcher, with its payload, a higher fence and attempt 1."""
        first = granted(store)
        assert bury(store, first)
        assert redrive(store)
        entry = take(store)
        assert entry is not None
        record = entry.record
        assert (entry.key, record.state, record.attempts, record.fence) == (KEY, IN_PROGRESS, 1, first.fence + 1)
        assert (record.owner, record.payload) == (owner("dispatcher"), b'{"id":"evt-1"}')
        assert take(store, "another") is None

    def test_taken_and_lost_is_taken_again(self, store: Store, clock: ManualClock) -> None:
        """When the lease of a dispatcher ends, exact to the microsecond, another dispatcher can take the event."""
        assert bury(store, granted(store))
        assert redrive(store)
        assert take(store) is not None
        clock.advance(LEASE - 1)
        assert take(store, "another") is None
        clock.advance(1)
        entry = take(store, "another")
        assert entry is not None
        assert (entry.record.attempts, entry.record.lost) == (1, 1)
        clock.advance(LEASE)
        entry = take(store, "a third")
        assert entry is not None
        assert (entry.record.attempts, entry.record.lost) == (2, 2)

    def test_taken_and_completed_is_done(self, store: Store) -> None:
        """Completing a taken record removes the payload; the key is then a normal duplicate."""
        assert bury(store, granted(store))
        assert redrive(store)
        entry = take(store)
        assert entry is not None
        assert complete(store, entry.record)
        assert take(store) is None
        verdict = claim(store, "bob")
        assert isinstance(verdict, Duplicate)
        assert verdict.record.payload is None
        assert verdict.record.expires_at is not None

    def test_renewed_is_not_taken(self, store: Store, clock: ManualClock) -> None:
        """A record whose lease is renewed is not taken."""
        assert bury(store, granted(store))
        assert redrive(store)
        entry = take(store)
        assert entry is not None
        clock.advance(LEASE - 1)
        assert renew(store, entry.record)
        clock.advance(LEASE - 1)
        assert take(store, "another") is None

    def test_order_of_release(self, store: Store, clock: ManualClock) -> None:
        """The record that was released first is taken first, so a failing event does not delay the other events."""
        keys = [bytes([number]) * 16 for number in (3, 1, 2)]
        for key in keys:
            assert bury(store, granted(store, key=key), key=key)
            assert redrive(store, key)
        first = take(store)
        assert first is not None
        clock.advance(1)
        assert release(store, first.record, key=first.key)
        rest = [take(store, "a"), take(store, "b"), take(store, "c"), take(store, "d")]
        taken = [entry.key for entry in rest if entry is not None]
        assert sorted(taken) == sorted(keys)
        assert taken[-1] == first.key
