"""The comparison: random histories, run on a store and on the pure function side by side."""

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oncegate.claims import (
    DEAD,
    IN_PROGRESS,
    About,
    Admit,
    Bury,
    Claim,
    Complete,
    Operation,
    Record,
    Redrive,
    Release,
    Renew,
    Reset,
    Take,
    step,
)
from oncegate.clocks import Clock
from oncegate.stores.base import Change, Document, Entry, Inbox, Store, Want
from oncegate.stores.lines import behind, step_behind
from oncegate.testing.clock import ManualClock

HISTORIES = 200

# Few names, so that histories meet; short times, so that leases and records end within a history.
_NAMESPACES = st.sampled_from(["a", "b"])
_KEYS = st.sampled_from([bytes([number]) * 16 for number in range(3)])
_OWNERS = st.sampled_from([bytes([number]) * 16 for number in range(1, 5)])
_HASHES = st.sampled_from([b"x" * 16, b"y" * 16])
_LEASES = st.sampled_from([5, 10])
_RETENTIONS = st.sampled_from([10, 25, 60])
_ADVANCES = st.sampled_from([1, 4, 5, 10, 24, 60])
_BODIES = st.sampled_from([b"", b"null", b'{"a":1}', b"\x00\xff"])
_ERRORS = st.sampled_from(["boom", "ValueError: \N{SNOWMAN}"])

_CLAIMS = st.builds(
    Claim,
    _NAMESPACES,
    _KEYS,
    _OWNERS,
    _HASHES,
    _LEASES,
    _RETENTIONS,
    st.builds(About, st.just("plain"), st.none() | st.just("call.ended"), st.none(), st.none() | st.just(7)),
    st.booleans(),
    st.sampled_from([False, False, True]),
    st.sampled_from([0, 0, 40]),
)


_ADMITS = st.builds(
    Admit,
    _NAMESPACES,
    _KEYS,
    _OWNERS,
    _HASHES,
    _BODIES,
    st.builds(About, st.just("plain"), st.none(), st.none() | st.just("call-1"), st.sampled_from([None, 7, 8])),
    st.booleans(),
)


def _happened(record: Record) -> tuple[int, int]:
    occurred_at = record.first_seen if record.about.occurred_at is None else record.about.occurred_at
    return occurred_at, record.first_seen


def machine(open_empty: Callable[[Clock], Store], histories: int = HISTORIES) -> type[RuleBasedStateMachine]:
    """A state machine whose rules are the verbs; each compares the store's answers with the model's."""

    class Comparison(_Comparison):
        open_store = staticmethod(open_empty)

    Comparison.TestCase.settings = settings(max_examples=histories, stateful_step_count=40, deadline=None)
    return Comparison


class _Comparison(RuleBasedStateMachine):
    open_store: Callable[[Clock], Store]

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = type(self).open_store(self.clock)
        self.records: dict[tuple[str, bytes], Record] = {}
        self.documents: dict[tuple[str, bytes], tuple[Document, int]] = {}

    def teardown(self) -> None:
        self.store.close()

    # ── the model ─────────────────────────────────────────────────────────────────────────────────────────

    def judge(self, operation: Operation, place: int = 0) -> Any:
        where, now = (operation.namespace, operation.key), self.clock.now
        before = self.records.pop(where, None)
        record, answer = step_behind(before, operation, now, place) if place else step(before, operation, now)
        if record is not None:
            self.records[where] = record
        return answer

    def living(self) -> dict[tuple[str, bytes], Record]:
        now = self.clock.now
        return {w: r for w, r in sorted(self.records.items()) if r.expires_at is None or now < r.expires_at}

    def document(self, where: tuple[str, bytes]) -> Document:
        document, expires_at = self.documents.get(where, (Document(), 0))
        return document if self.clock.now < expires_at else Document()

    # ── the verbs ─────────────────────────────────────────────────────────────────────────────────────────

    @rule(by=_ADVANCES)
    def time_passes(self, by: int) -> None:
        self.clock.advance(by)

    @rule(requests=st.lists(_CLAIMS, min_size=1, max_size=4))
    def claim(self, requests: list[Claim]) -> None:
        assert self.store.claim(requests) == [self.judge(request) for request in requests]

    @rule(data=st.data(), verb=st.sampled_from([Complete, Release, Bury, Renew]), count=st.integers(1, 3))
    def settle(self, data: st.DataObject, verb: type, count: int) -> None:
        operations = [data.draw(self._settlement(verb)) for _ in range(count)]
        ask: Any = self.store.renew if verb is Renew else self.store.settle
        assert ask(operations) == [self.judge(operation) for operation in operations]

    def _settlement(self, verb: type) -> st.SearchStrategy[Any]:
        """Mostly with the proof of a claim that is there; sometimes with an old fence, or with a guess."""
        held = [(*w, r.owner, r.fence - off) for w, r in sorted(self.records.items()) for off in (0, 0, 1)]
        guessed = st.tuples(_NAMESPACES, _KEYS, _OWNERS, st.integers(0, 3))
        proofs = st.sampled_from(held) | guessed if held else guessed
        rest: dict[type, tuple[st.SearchStrategy[Any], ...]] = {
            Complete: (_RETENTIONS, st.none() | _BODIES, st.none() | _ERRORS),
            Release: (st.none() | _ERRORS, st.booleans(), st.sampled_from([0, 0, 7])),
            Bury: (_RETENTIONS, _BODIES, _ERRORS),
            Renew: (_LEASES,),
        }
        return st.tuples(proofs, st.tuples(*rest[verb])).map(lambda parts: verb(*parts[0], *parts[1]))

    @precondition(lambda self: isinstance(self.store, Inbox))
    @rule(requests=st.lists(_ADMITS, min_size=1, max_size=4))
    def admit(self, requests: list[Admit]) -> None:
        assert isinstance(self.store, Inbox)
        assert self.store.admit(requests) == list(map(self.judge, requests, behind(requests)))

    @rule(namespace=_NAMESPACES, owner=_OWNERS, lease=_LEASES, in_order=st.booleans())
    def take(self, namespace: str, owner: bytes, lease: int, in_order: bool) -> None:
        in_order = in_order and isinstance(self.store, Inbox)
        (entry,) = self.store.take([Want(namespace, owner, lease, in_order)])
        takes = {w: Take(*w, owner, lease) for w in self.records if w[0] == namespace}
        free = [w for w, take in takes.items() if step(self.records[w], take, self.clock.now)[1]]
        if in_order:
            free = [where for where in free if self._is_first(where)]
        assert (entry is not None) == bool(free)
        if entry is not None:
            assert (entry.namespace, entry.key) in free
            granted = self.judge(takes[entry.namespace, entry.key])
            assert entry == Entry(entry.namespace, entry.key, granted.record)

    def _is_first(self, where: tuple[str, bytes]) -> bool:
        """Whether nobody is at its entity, and nothing that waits for it happened before."""
        entity, now = self.records[where].about.entity, self.clock.now
        line = {w: r for w, r in self.living().items() if w[0] == where[0] and r.about.entity == entity}
        line = {w: r for w, r in line.items() if r.payload is not None and r.state != DEAD}
        busy = any(r.state == IN_PROGRESS and now < r.lease_until for r in line.values())
        return entity is None or (not busy and where == min(line, key=lambda w: (*_happened(line[w]), w)))

    @rule(namespace=_NAMESPACES, key=_KEYS)
    def redrive(self, namespace: str, key: bytes) -> None:
        operation = Redrive(namespace, key)
        assert self.store.redrive([operation]) == [self.judge(operation)]

    @rule(namespace=_NAMESPACES, key=_KEYS, only_dead=st.booleans())
    def reset(self, namespace: str, key: bytes, only_dead: bool) -> None:
        operation = Reset(namespace, key, only_dead)
        assert self.store.reset([operation]) == [self.judge(operation)]

    @rule(namespace=_NAMESPACES, key=_KEYS, stale=st.booleans(), body=_BODIES, retention=_RETENTIONS)
    def swap(self, namespace: str, key: bytes, stale: bool, body: bytes, retention: int) -> None:
        current = self.document((namespace, key)).version
        change = Change(namespace, key, current + stale, body, retention)
        assert self.store.swap([change]) == [not stale]
        if not stale:
            fresh = Document(current + 1 if current else self.clock.now, body)
            self.documents[namespace, key] = (fresh, self.clock.now + retention)

    # ── what is seen ──────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def shows_the_same(self) -> None:
        living = self.living()
        assert self.store.browse() == [Entry(*where, record) for where, record in living.items()]
        dead = [Entry(*where, record) for where, record in living.items() if record.state == DEAD]
        assert self.store.dead_letters() == dead
        addresses = [Redrive(*where) for where in self.documents]
        assert self.store.load(addresses) == [self.document(where) for where in self.documents]
