"""Contract tests of the operations for operators, of namespaces, and of versioned documents."""

from itertools import product

import pytest
from msgspec.structs import replace

from oncegate.claims import (
    COMPLETED,
    DEAD,
    ERASED,
    RELEASED,
    Address,
    Complete,
    Duplicate,
    EventSummary,
    Forget,
    Granted,
    InFlight,
)
from oncegate.stores.base import Change, Document, Store, count_dead_letters, scan
from oncegate.testing.clock import ManualClock
from oncegate.testing.requests import (
    ABOUT,
    BURIED_FOR,
    KEY,
    LEASE,
    NAMESPACE,
    RETENTION,
    address,
    bury,
    claim,
    claim_of,
    complete,
    forget,
    granted,
    redrive,
    release,
    reset,
    stored,
    take,
)


def _swap(store: Store, where: Address, version: int, body: bytes = b"{}") -> bool:
    (answer,) = store.swap([Change(where.namespace, where.key, version, body, RETENTION)])
    return answer


def _load(store: Store, where: Address) -> Document:
    (document,) = store.load([where])
    return document


class OperatorContract:
    # True for a store that deletes expired records late, and counts an expired dead letter until it is deleted.
    counts_expired_dead_letters = False

    def test_redrive(self, store: Store) -> None:
        """A redrive sets the attempts of a dead letter to 0 and keeps payload and error."""
        assert bury(store, granted(store))
        assert redrive(store)
        after = stored(store)
        assert after is not None
        assert (after.state, after.attempts, after.payload) == (RELEASED, 0, b'{"id":"evt-1"}')
        assert after.error == "ValueError: boom"
        assert store.dead_letters() == []

    def test_only_dead_letters_are_redriven(self, store: Store) -> None:
        """An absent, claimed or completed record is not redriven."""
        assert redrive(store) is False
        record = granted(store)
        assert redrive(store) is False
        assert complete(store, record)
        assert redrive(store) is False

    def test_settling_after_a_redrive(self, store: Store) -> None:
        """After a redrive, the worker that buried the event cannot settle it."""
        record = granted(store)
        assert bury(store, record)
        assert redrive(store)
        assert bury(store, record) is False
        assert complete(store, record) is False

    def test_reset(self, store: Store) -> None:
        """A reset removes a record in any state. Its old owner cannot settle it, and the next fence is higher."""
        record = granted(store)
        assert reset(store)
        assert stored(store) is None
        assert complete(store, record) is False
        assert reset(store) is False

    def test_fence_rises_over_a_reset(self, store: Store, clock: ManualClock) -> None:
        """After a reset, the fence is higher than all earlier fences of the key."""
        record = granted(store)
        reset(store)
        clock.advance(1)
        assert granted(store, "bob").fence > record.fence

    def test_reset_of_dead_letters_only(self, store: Store) -> None:
        """A reset with `only_dead` removes a dead letter, but no record in another state."""
        record = granted(store)
        assert reset(store, only_dead=True) is False
        assert bury(store, record)
        assert reset(store, only_dead=True)
        assert stored(store) is None

    def test_dead_letters_in_pages(self, store: Store) -> None:
        """Dead letters are listed in the order of their addresses, in pages, each once."""
        keys = [bytes([number]) * 16 for number in range(7)]
        for key in keys:
            assert bury(store, granted(store, key=key), key=key)
        granted(store, key=b"z" * 16)
        seen: list[bytes] = []
        after = None
        while page := store.dead_letters(after=after, limit=3):
            assert all(entry.record.state == DEAD for entry in page)
            seen += [entry.key for entry in page]
            after = Address(page[-1].namespace, page[-1].key)
        assert seen == keys

    def test_count_of_dead_letters(self, store: Store) -> None:
        """The dead letters of one namespace, or of all, are counted up to the limit. Records in other states do not
        count."""
        for number in range(7):
            key = bytes([number]) * 16
            assert bury(store, granted(store, key=key), key=key)
        assert bury(store, granted(store, namespace="other"), namespace="other")
        assert complete(store, granted(store, key=b"y" * 16), key=b"y" * 16)
        granted(store, key=b"z" * 16)
        assert [count_dead_letters(store, NAMESPACE, limit) for limit in (1, 6, 7, 8, 1_000)] == [1, 6, 7, 7, 7]
        assert count_dead_letters(store, "other", 10) == 1
        assert count_dead_letters(store, "none", 10) == 0
        assert [count_dead_letters(store, None, limit) for limit in (7, 8, 9)] == [7, 8, 8]
        assert redrive(store, bytes(16))
        assert reset(store, b"\1" * 16)
        assert count_dead_letters(store, NAMESPACE, 1_000) == 5

    def test_count_of_expired_dead_letters(self, store: Store, clock: ManualClock) -> None:
        """A dead letter counts until the last microsecond of its retention."""
        assert bury(store, granted(store))
        clock.advance(BURIED_FOR - 1)
        assert count_dead_letters(store, NAMESPACE, 10) == 1
        clock.advance(1)
        assert count_dead_letters(store, NAMESPACE, 10) == int(self.counts_expired_dead_letters)

    def test_browse_in_pages(self, store: Store) -> None:
        """Records of all namespaces are listed in the order of their addresses, each once."""
        wanted = [(name, bytes([number]) * 16) for name in ("a", "b") for number in range(4)]
        store.claim([claim_of("ann", namespace=name, key=key) for name, key in reversed(wanted)])
        seen: list[tuple[str, bytes]] = []
        after = None
        while page := store.browse(after=after, limit=3):
            seen += [(entry.namespace, entry.key) for entry in page]
            after = Address(page[-1].namespace, page[-1].key)
        assert seen == wanted

    def test_browse_a_key(self, store: Store) -> None:
        """A key is found in every namespace that has it, or in one given namespace."""
        store.claim([claim_of("ann", namespace=name) for name in ("a", "b")])
        assert [entry.namespace for entry in store.browse(key=KEY)] == ["a", "b"]
        assert [entry.namespace for entry in store.browse("b", key=KEY)] == ["b"]
        assert store.browse("c", key=KEY) == []

    def test_walk(self, store: Store, clock: ManualClock) -> None:
        """A scan returns all records, or the records of one namespace. It returns no expired records."""
        wanted = {(name, bytes([number]) * 16) for name in ("a", "b") for number in range(4)}
        store.claim([claim_of("ann", namespace=name, key=key) for name, key in wanted])
        assert {(entry.namespace, entry.key) for entry in scan(store)} == wanted
        assert {entry.key for entry in scan(store, "b")} == {key for name, key in wanted if name == "b"}
        clock.advance(RETENTION)
        assert list(scan(store)) == []


_STRIPPED = EventSummary(ABOUT.source, ABOUT.type, None, ABOUT.occurred_at)
_LONG = "x" * 300
_UUID = "0b0f3f34-5a3c-4d43-8e2b-5a1f0f6f7a10"


class ForgetContract:
    """An operator removes what identifies a person from records."""

    crowd = 1_000

    @pytest.mark.parametrize("result", [None, b"null", b'{"name":"Ann"}'])
    @pytest.mark.parametrize("place", [None, "sqs://queue"])
    def test_forget_completed(self, store: Store, result: bytes | None, place: str | None) -> None:
        """A completed record loses entity, delivery id, result and error. Nothing else changes, and the event is still
        a duplicate."""
        record = granted(store)
        assert complete(store, record, result, error="no mail for Ann", handed_to=place)
        before = stored(store)
        assert before is not None
        assert forget(store)
        after = replace(before, about=_STRIPPED, result=None, error=None)
        assert stored(store) == after
        verdict = claim(store, "bob")
        assert isinstance(verdict, Duplicate)
        assert verdict.record == after
        assert complete(store, record), "the worker repeats its completion"
        assert forget(store), "the operator repeats the request"
        assert stored(store) == after

    def test_forget_every_summary(self, store: Store) -> None:
        """Source, type and time of a summary survive, whatever the other values are."""
        texts: list[str | None] = [None, "", "call.ended", _UUID, _LONG]
        times = [None, -(2**40), -3, 0, 100, 200, 60_000, 2**31, 1_765_551_752_433_000]
        summaries = [
            EventSummary(source, kind, entity, at, delivery_id)
            for source, kind, entity, delivery_id, at in product(["plain", _LONG], texts, texts, texts, times)
        ]
        chosen = summaries[:: 1 + len(summaries) // self.crowd]
        claims = [claim_of(key=number.to_bytes(16), about=about) for number, about in enumerate(chosen)]
        fences = [verdict.record.fence for verdict in store.claim(claims)]
        proofs = [(each.namespace, each.key, each.owner, fence) for each, fence in zip(claims, fences, strict=True)]
        store.settle([Complete(*proof, RETENTION, b'"done"') for proof in proofs])
        assert all(store.forget([Forget(c.namespace, c.key, RETENTION) for c in claims]))
        found = {entry.key: entry.record.about for entry in scan(store)}
        assert found == {c.key: replace(c.about, entity=None, delivery_id=None) for c in claims}

    def test_forget_marked(self, store: Store) -> None:
        """A record that its claim completed keeps its lease, and its owner is still granted the claim."""
        before = granted(store, marks=True)
        assert forget(store)
        after = replace(before, about=_STRIPPED)
        assert stored(store) == after
        assert granted(store, marks=True) == after
        assert isinstance(claim(store, "bob"), Duplicate)

    def test_forget_dead_letter(self, store: Store, clock: ManualClock) -> None:
        """A dead letter becomes a completed record without payload and owner. Its event does not run again until the
        retention is over."""
        record = granted(store)
        assert bury(store, record)
        clock.advance(7)
        assert forget(store)
        after = stored(store)
        assert after == replace(
            record,
            state=COMPLETED,
            owner=b"",
            lease_until=0,
            about=_STRIPPED,
            completed_at=clock.now,
            expires_at=clock.now + RETENTION,
            error=ERASED,
        )
        assert store.dead_letters() == []
        assert count_dead_letters(store, NAMESPACE, 10) == 0
        assert bury(store, record) is complete(store, record) is redrive(store) is False
        assert isinstance(claim(store, "bob"), Duplicate)
        assert forget(store)
        assert stored(store) == after
        clock.advance(RETENTION)
        assert isinstance(claim(store, "bob"), Granted)

    def test_forget_in_progress(self, store: Store, clock: ManualClock) -> None:
        """A claim with a live lease is not changed. Without the lease, it loses what identifies a person, and can be
        claimed again."""
        record = granted(store)
        clock.advance(LEASE - 1)
        assert forget(store) is False
        assert stored(store) == record
        clock.advance(1)
        assert forget(store)
        assert stored(store) == replace(record, about=_STRIPPED)
        assert granted(store, "bob").about == _STRIPPED
        assert complete(store, record) is False

    def test_forget_released(self, store: Store) -> None:
        """A released claim without a payload loses its error, and can be claimed again."""
        assert release(store, granted(store), error="no mail for Ann")
        assert forget(store)
        after = stored(store)
        assert after is not None
        assert (after.state, after.about, after.error, after.attempts) == (RELEASED, _STRIPPED, None, 1)
        assert granted(store, "bob").attempts == 2

    def test_forget_absent_and_expired(self, store: Store, clock: ManualClock) -> None:
        """An absent or expired record cannot be changed."""
        assert forget(store) is False
        complete(store, granted(store))
        clock.advance(RETENTION)
        assert forget(store) is False
        assert stored(store) is None

    def test_forget_waiting(self, store: Store, clock: ManualClock) -> None:
        """A waiting event is not changed, unless the request has `waiting`. It never runs then."""
        assert bury(store, granted(store))
        assert redrive(store)
        before = stored(store)
        assert forget(store) is False
        assert stored(store) == before
        assert (entry := take(store)) is not None
        assert forget(store, waiting=True) is False
        clock.advance(LEASE)
        assert forget(store) is False
        assert forget(store, waiting=True)
        after = stored(store)
        assert after is not None
        assert (after.state, after.payload, after.error, after.lost) == (COMPLETED, None, ERASED, 0)
        assert take(store) is None
        assert complete(store, entry.record) is False
        assert isinstance(claim(store, "cid"), Duplicate)

    def test_forget_batch(self, store: Store) -> None:
        """The answers of a batch are in the order of the requests."""
        complete(store, granted(store))
        granted(store, key=b"2" * 16)
        bury(store, granted(store, key=b"3" * 16), key=b"3" * 16)
        keys = [b"2" * 16, b"4" * 16, b"3" * 16, KEY, b"3" * 16]
        assert store.forget([Forget(NAMESPACE, key, RETENTION) for key in keys]) == [False, False, True, True, True]


class NamespaceContract:
    def test_namespaces_share_no_record(self, store: Store) -> None:
        """The same key in two namespaces is two events."""
        first = granted(store, namespace="a")
        second = granted(store, "bob", namespace="b")
        assert complete(store, first, namespace="a")
        assert isinstance(claim(store, "cid", namespace="b"), InFlight)
        assert complete(store, second, namespace="b")

    def test_proof_of_another_namespace(self, store: Store, clock: ManualClock) -> None:
        """The proof of a claim is not valid in another namespace."""
        first = granted(store, namespace="a")
        clock.advance(1)
        granted(store, "bob", namespace="b")
        assert complete(store, first, namespace="b") is False

    def test_namespaces_and_keys_do_not_mix(self, store: Store) -> None:
        """No combination of namespaces and keys gives two records the same address."""
        assert isinstance(claim(store, namespace="ab", key=b"c"), Granted)
        assert isinstance(claim(store, namespace="a", key=b"bc"), Granted)
        assert isinstance(claim(store, namespace="a:b", key=b":c"), Granted)
        assert isinstance(claim(store, namespace="a", key=b":b:c"), Granted)

    def test_dead_letters_of_a_namespace(self, store: Store) -> None:
        """Dead letters are listed, redriven and taken within their namespace."""
        for name in ("a", "b"):
            assert bury(store, granted(store, namespace=name), namespace=name)
        assert [entry.namespace for entry in store.dead_letters("a")] == ["a"]
        assert redrive(store) is False
        assert take(store, namespace="a") is None


class DocumentContract:
    def test_no_document(self, store: Store) -> None:
        """An absent document has version 0 and no body."""
        assert _load(store, address("doc")) == Document(0, None)

    def test_swap_and_load(self, store: Store) -> None:
        """A document that was swapped in is loaded with a higher version."""
        where = address("doc")
        assert _swap(store, where, 0, b"one")
        first = _load(store, where)
        assert first.body == b"one"
        assert _swap(store, where, first.version, b"two")
        second = _load(store, where)
        assert second.body == b"two"
        assert second.version > first.version > 0

    def test_stale_swap(self, store: Store) -> None:
        """A swap from an old version fails and changes nothing."""
        where = address("doc")
        assert _swap(store, where, 0, b"one")
        before = _load(store, where)
        assert _swap(store, where, 0, b"lost") is False
        assert _swap(store, where, before.version + 1, b"lost") is False
        assert _load(store, where) == before

    def test_one_document_twice_in_a_batch(self, store: Store) -> None:
        """Of two swaps from one version, only the first succeeds, even within one batch."""
        where = address("doc")
        changes = [Change(where.namespace, where.key, 0, body, RETENTION) for body in (b"one", b"two")]
        assert store.swap(changes) == [True, False]
        assert _load(store, where).body == b"one"

    def test_documents_expire(self, store: Store, clock: ManualClock) -> None:
        """A document exists until the last microsecond of its retention. The document that replaces it still has a
        higher version."""
        where = address("doc")
        assert _swap(store, where, 0)
        before = _load(store, where)
        clock.advance(RETENTION - 1)
        assert _load(store, where) == before
        clock.advance(1)
        assert _load(store, where) == Document()
        assert _swap(store, where, before.version) is False
        assert _swap(store, where, 0, b"new")
        assert _load(store, where).version > before.version

    def test_documents_and_records_are_apart(self, store: Store) -> None:
        """A document and a record may have the same address."""
        granted(store)
        where = Address(NAMESPACE, KEY)
        assert _load(store, where) == Document()
        assert _swap(store, where, 0)
        assert reset(store)
        assert _load(store, where).body == b"{}"

    def test_batch_of_loads(self, store: Store) -> None:
        """Documents are loaded in the order of the request, each from its namespace."""
        here, there = address("doc"), address("doc", "elsewhere")
        assert _swap(store, here, 0, b"here")
        assert _swap(store, there, 0, b"there")
        loaded = store.load([there, address("none"), here])
        assert [document.body for document in loaded] == [b"there", None, b"here"]

    @pytest.mark.parametrize("body", [b"", b"\x00\xff", b"x" * 300_000])
    def test_bodies_are_unchanged(self, store: Store, body: bytes) -> None:
        """Any bytes are stored as a body."""
        where = address("doc")
        assert _swap(store, where, 0, body)
        assert _load(store, where).body == body
