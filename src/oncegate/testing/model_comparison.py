"""Compare a store with the pure function `claims.step`: run the same random histories on both."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oncegate.claims import (
    DEAD,
    IN_PROGRESS,
    Abandon,
    Admit,
    Bury,
    Claim,
    Complete,
    EventSummary,
    Forget,
    Operation,
    Record,
    Redrive,
    Release,
    Renew,
    Reset,
    Take,
    seed,
    step,
)
from oncegate.clocks import Clock
from oncegate.stores.base import BatchesMixedOperations, Change, Document, Entry, Inbox, Store, TakeRequest
from oncegate.stores.entity_order import batch_positions, step_at_position
from oncegate.testing.clock import ManualClock

HISTORIES = 200

# Few keys, so that operations of a history meet on the same key. Short times, so that leases and records end within a
# history.
_NAMESPACES = ["a", "b"]
_KEYS = [bytes([number]) * 16 for number in range(3)]
_OWNERS = [bytes([number]) * 16 for number in range(1, 5)]
_HASHES = [b"x" * 16, b"y" * 16]
_LEASES = [5, 10]
_RETENTIONS = [10, 25, 60]
_ADVANCES = [1, 4, 5, 10, 24, 60]
_BODIES = [b"", b"null", b'{"a":1}', b"\x00\xff"]
_ERRORS = ["boom", "ValueError: \N{SNOWMAN}"]
_EITHER = [False, True]
_PLACES = ["sqs://queue"]
# Entity, time and delivery id of a summary.
_RESTS: list[Any] = [
    (None, None),
    (None, 7),
    ("call-1", 7, "evt-1"),
    ("call-1", None, "0b0f3f34-5a3c-4d43-8e2b-5a1f0f6f7a10"),
]


def _or_none(values: list[Any]) -> list[Any]:
    return [None] * len(values) + values


def _any_of(*fields: Iterable[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Choose one of all combinations of the fields. To choose each field separately would take most of the time of a
    history."""
    all_of_them = list(product(*fields))
    return st.sampled_from(range(len(all_of_them))).map(lambda number: all_of_them[number])


_CLAIMS = _any_of(
    _NAMESPACES,
    _KEYS,
    _OWNERS,
    _HASHES,
    _LEASES,
    _RETENTIONS,
    [EventSummary("plain", kind, *rest) for kind in (None, "call.ended") for rest in _RESTS],
    _EITHER,
    [False, False, True],
    [0, 0, 40],
).map(lambda fields: Claim(*fields))
_ADMITS = _any_of(
    _NAMESPACES,
    _KEYS,
    _OWNERS,
    _HASHES,
    _BODIES,
    [EventSummary("plain", None, entity, at) for entity in (None, "call-1") for at in (None, 7, 8)],
    _EITHER,
).map(lambda fields: Admit(*fields))
_GUESSES = _any_of(_NAMESPACES, _KEYS, _OWNERS, range(4))
# The fields of each settlement besides the proof of the claim.
_SETTLEMENTS: dict[type, st.SearchStrategy[tuple[Any, ...]]] = {
    Complete: _any_of(_RETENTIONS, _or_none(_BODIES), _or_none(_ERRORS), _or_none(_PLACES)),
    Release: _any_of(_or_none(_ERRORS), _EITHER, [0, 0, 7], _EITHER),
    Bury: _any_of(_RETENTIONS, _BODIES, _ERRORS),
    Renew: _any_of(_LEASES),
    Abandon: st.just(()),
}
# How an attempt ends; None means that the attempt is lost.
_ENDINGS = st.sampled_from([Complete, Release, Release, Bury, None])


def _event_order(record: Record) -> tuple[int, int]:
    occurred_at = record.first_seen if record.about.occurred_at is None else record.about.occurred_at
    return occurred_at, record.first_seen


def machine(open_empty: Callable[[Clock], Store], histories: int = HISTORIES) -> type[RuleBasedStateMachine]:
    """A state machine whose rules are the verbs of a store. Each rule compares the answers of the store and of the
    model."""

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
        self.inbox = self.store if isinstance(self.store, Inbox) else None
        self.together = self.store if isinstance(self.store, BatchesMixedOperations) else None
        self.records: dict[tuple[str, bytes], Record] = {}
        self.documents: dict[tuple[str, bytes], tuple[Document, int]] = {}

    def teardown(self) -> None:
        self.store.close()

    # ── the model ─────────────────────────────────────────────────────────────────────────────────────────

    def step_model(self, operation: Operation, place: int = 0) -> Any:
        where, now = (operation.namespace, operation.key), self.clock.now
        before = self.records.pop(where, None)
        record, answer = step_at_position(before, operation, now, place) if place else step(before, operation, now)
        if record is not None:
            self.records[where] = record
        return answer

    def live_records(self) -> dict[tuple[str, bytes], Record]:
        now = self.clock.now
        return {w: r for w, r in sorted(self.records.items()) if r.expires_at is None or now < r.expires_at}

    def document(self, where: tuple[str, bytes]) -> Document:
        document, expires_at = self.documents.get(where, (Document(), 0))
        return document if self.clock.now < expires_at else Document()

    # ── the verbs ─────────────────────────────────────────────────────────────────────────────────────────

    @rule(by=st.sampled_from(_ADVANCES))
    def time_passes(self, by: int) -> None:
        self.clock.advance(by)

    @rule(requests=st.lists(_CLAIMS, min_size=1, max_size=4))
    def claim(self, requests: list[Claim]) -> None:
        assert self.store.claim(requests) == [self.step_model(request) for request in requests]

    @rule(fields=_any_of(_NAMESPACES, _KEYS, _OWNERS, _RETENTIONS))
    def seed(self, fields: tuple[str, bytes, bytes, int]) -> None:
        namespace, key, owner, retention = fields
        self.claim([seed(namespace, key, owner=owner, retention=retention, about=EventSummary("plain"))])

    @rule(data=st.data(), verb=st.sampled_from([Complete, Release, Bury, Renew]), count=st.integers(1, 3))
    def settle(self, data: st.DataObject, verb: type, count: int) -> None:
        operations = [data.draw(self._settlement(verb)) for _ in range(count)]
        call: Any = self.store.renew if verb is Renew else self.store.settle
        assert call(operations) == [self.step_model(operation) for operation in operations]

    @rule(fields=_any_of(_NAMESPACES, _KEYS, _OWNERS, [0, 1, 10]), data=st.data())
    def attempt(self, fields: tuple[str, bytes, bytes, int], data: st.DataObject) -> None:
        """Run a whole attempt, which is settled in time, late or never. With this rule, a key has several attempts in
        one history."""
        namespace, key, owner, duration = fields
        request = Claim(namespace, key, owner, _HASHES[0], 10, 60, EventSummary("plain"), binds=False)
        self.claim([request])
        self.clock.advance(duration)
        record, verb = self.records[namespace, key], data.draw(_ENDINGS)
        if verb is not None:
            ending = verb(namespace, key, record.owner, record.fence, *data.draw(_SETTLEMENTS[verb]))
            assert self.store.settle([ending]) == [self.step_model(ending)]

    def _settlement(self, verb: type) -> st.SearchStrategy[Any]:
        """A settlement, mostly with the proof of an existing claim, sometimes with an old fence or a random proof."""
        held = [(*w, r.owner, r.fence - off) for w, r in sorted(self.records.items()) for off in (0, 0, 1)]
        proofs = st.sampled_from(held) | _GUESSES if held else _GUESSES
        return st.tuples(proofs, _SETTLEMENTS[verb]).map(lambda parts: verb(*parts[0], *parts[1]))

    @precondition(lambda self: self.together is not None)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        assert self.together is not None
        operation = data.draw(self._settlement(Abandon))
        assert self.together.together([operation]) == [self.step_model(operation)]

    @precondition(lambda self: self.inbox is not None)
    @rule(requests=st.lists(_ADMITS, min_size=1, max_size=4))
    def admit(self, requests: list[Admit]) -> None:
        assert self.inbox is not None
        assert self.inbox.admit(requests) == list(map(self.step_model, requests, batch_positions(requests)))

    @rule(fields=_any_of(_NAMESPACES, _OWNERS, _LEASES, _EITHER))
    def take(self, fields: tuple[str, bytes, int, bool]) -> None:
        namespace, owner, lease, in_order = fields
        in_order = in_order and self.inbox is not None
        (entry,) = self.store.take([TakeRequest(namespace, owner, lease, in_order)])
        takes = {w: Take(*w, owner, lease) for w in self.records if w[0] == namespace}
        free = [w for w, take in takes.items() if step(self.records[w], take, self.clock.now)[1]]
        if in_order:
            free = [where for where in free if self._is_first(where)]
        assert (entry is not None) == bool(free)
        if entry is not None:
            assert (entry.namespace, entry.key) in free
            granted = self.step_model(takes[entry.namespace, entry.key])
            assert entry == Entry(entry.namespace, entry.key, granted.record)

    def _is_first(self, where: tuple[str, bytes]) -> bool:
        """Whether no event of the entity is in progress and no waiting event of the entity happened earlier."""
        entity, now = self.records[where].about.entity, self.clock.now
        line = {w: r for w, r in self.live_records().items() if w[0] == where[0] and r.about.entity == entity}
        line = {w: r for w, r in line.items() if r.payload is not None and r.state != DEAD}
        busy = any(r.state == IN_PROGRESS and now < r.lease_until for r in line.values())
        return entity is None or (not busy and where == min(line, key=lambda w: (*_event_order(line[w]), w)))

    @rule(fields=_any_of(_NAMESPACES, _KEYS))
    def redrive(self, fields: tuple[str, bytes]) -> None:
        operation = Redrive(*fields)
        assert self.store.redrive([operation]) == [self.step_model(operation)]

    @rule(fields=_any_of(_NAMESPACES, _KEYS, _EITHER))
    def reset(self, fields: tuple[str, bytes, bool]) -> None:
        operation = Reset(*fields)
        assert self.store.reset([operation]) == [self.step_model(operation)]

    @rule(fields=_any_of(_NAMESPACES, _KEYS, _RETENTIONS, _EITHER))
    def forget(self, fields: tuple[str, bytes, int, bool]) -> None:
        operation = Forget(*fields)
        assert self.store.forget([operation]) == [self.step_model(operation)]

    @rule(fields=_any_of(_NAMESPACES, _KEYS, _EITHER, _BODIES, _RETENTIONS))
    def swap(self, fields: tuple[str, bytes, bool, bytes, int]) -> None:
        namespace, key, stale, body, retention = fields
        current = self.document((namespace, key)).version
        change = Change(namespace, key, current + stale, body, retention)
        assert self.store.swap([change]) == [not stale]
        if not stale:
            fresh = Document(current + 1 if current else self.clock.now, body)
            self.documents[namespace, key] = (fresh, self.clock.now + retention)

    # ── reads ─────────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def shows_the_same(self) -> None:
        live = self.live_records()
        assert self.store.browse() == [Entry(*where, record) for where, record in live.items()]
        dead = [Entry(*where, record) for where, record in live.items() if record.state == DEAD]
        assert self.store.dead_letters() == dead
        addresses = [Redrive(*where) for where in self.documents]
        assert self.store.load(addresses) == [self.document(where) for where in self.documents]
