"""Contract tests of stores with an inbox: they hold events until the events run, and hand them out in order."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from oncegate.claims import (
    COMPLETED,
    IN_PROGRESS,
    RELEASED,
    Admit,
    Admitted,
    Buried,
    Conflict,
    Duplicate,
    EventSummary,
    Granted,
    InFlight,
    Record,
)
from oncegate.stores.base import Entry, Inbox, Store, TakeRequest
from oncegate.testing.clock import ManualClock
from oncegate.testing.requests import (
    ABOUT,
    KEY,
    LEASE,
    NAMESPACE,
    RETENTION,
    SECOND,
    admit,
    bury,
    claim,
    complete,
    content,
    forget,
    granted,
    owner,
    release,
    seeded,
    stored,
    take,
)

_PAYLOAD = b'{"id":"evt-1"}'
_TWO = ((b"x", 2), (b"y", 1))  # the names and times of two events; the second event happened first


class InboxContract:
    """`grants` says whether the store grants an admission with a lease if the protocol allows the grant."""

    grants = True

    def test_admitted(self, store: Any) -> None:
        """A new event is stored with its payload until it runs, without an expiry."""
        assert isinstance(admit(store), Admitted)
        record = _stored(store)
        assert (record.state, record.attempts, record.payload, record.expires_at) == (RELEASED, 0, _PAYLOAD, None)
        assert record.about == ABOUT

    def test_forgotten(self, store: Any) -> None:
        """After an admitted event of an entity was erased, the next event of the entity can run."""
        admit(store)
        admit(store, key=b"2" * 16)
        assert forget(store, waiting=True)
        assert store.kept(NAMESPACE) == 1
        assert (entry := take(store, in_order=True)) is not None
        assert entry.key == b"2" * 16

    def test_admitted_again(self, store: Any) -> None:
        """A retry of an admission is admitted again. Another copy of the event is a duplicate."""
        first = admit(store)
        assert admit(store) == first
        assert isinstance(admit(store, "bob"), Duplicate)
        assert isinstance(claim(store, "bob"), Duplicate)

    def test_admitted_with_other_content(self, store: Any) -> None:
        """Other content under a known key is a conflict, unless the key does not bind content."""
        admit(store)
        assert isinstance(admit(store, "bob", payload_hash=content("two")), Conflict)
        assert isinstance(admit(store, "bob", payload_hash=content("two"), binds=False), Duplicate)

    def test_admitted_when_seeded(self, store: Any) -> None:
        """A seeded event is a duplicate for a receiver, whatever its content, and its payload is not stored."""
        seeded(store)
        before = stored(store)
        assert isinstance(admit(store, payload_hash=content("two")), Duplicate)
        assert stored(store) == before

    def test_admitted_during_a_lease(self, store: Any, clock: ManualClock) -> None:
        """An event in progress without a payload is in flight. After the lease has ended, the payload is attached to
        the record."""
        granted(store)
        assert isinstance(admit(store, "bob"), InFlight)
        clock.advance(LEASE)
        assert isinstance(admit(store, "bob"), Admitted)
        assert _stored(store).payload == _PAYLOAD
        assert (_stored(store).attempts, _stored(store).lost) == (0, 1)
        taken = _taken(store).record
        assert (taken.attempts, taken.lost) == (1, 1)

    def test_admitted_after_two_losses(self, store: Any, clock: ManualClock) -> None:
        """Attempts that were lost before the payload was attached count in the same way as for a claim."""
        granted(store)
        clock.advance(LEASE)
        granted(store, "bob")
        clock.advance(LEASE)
        assert isinstance(admit(store, "cid"), Admitted)
        assert (_stored(store).attempts, _stored(store).lost) == (1, 2)
        taken = _taken(store).record
        assert (taken.attempts, taken.lost) == (2, 2)

    def test_admitted_while_something_is_unavailable(self, store: Any, clock: ManualClock) -> None:
        """A record keeps `unavailable_since` when a payload is attached and when a dispatcher takes the record."""
        assert release(store, granted(store), unavailable=True)
        since = clock.now
        clock.advance(1)
        assert isinstance(admit(store, "bob"), Admitted)
        taken = _taken(store).record
        assert (taken.attempts, taken.unavailable_since) == (1, since)
        clock.advance(1)
        assert release(store, taken, unavailable=True, delay=SECOND)
        assert (_stored(store).attempts, _stored(store).unavailable_since) == (0, since)
        assert _take(store) is None, "not before the delay is over"

    def test_admitted_after_a_release(self, store: Any) -> None:
        """A released claim gets the payload and keeps its number of attempts."""
        assert release(store, granted(store))
        assert isinstance(admit(store, "bob"), Admitted)
        assert _taken(store).record.attempts == 2

    def test_admitted_when_done_or_dead(self, store: Any) -> None:
        """A completed event is a duplicate, and a dead letter is buried."""
        assert complete(store, granted(store))
        assert isinstance(admit(store, "bob"), Duplicate)
        other = b"o" * 16
        assert bury(store, granted(store, key=other), key=other)
        assert isinstance(admit(store, "bob", key=other), Buried)

    def test_admitted_after_expiry(self, store: Any, clock: ManualClock) -> None:
        """After the record of a key has expired, the key is new, and its record has the summary of the new event."""
        assert complete(store, granted(store))
        clock.advance(RETENTION)
        about = replace(ABOUT, delivery_id="evt-2")
        assert isinstance(admit(store, "bob", about=about), Admitted)
        assert _stored(store).about == about

    def test_batch_of_admissions(self, store: Any) -> None:
        """A batch is processed in order: the second request for a key finds the record of the first request."""
        answers = store.admit([_admission(b"a", "ann"), _admission(b"b", "bob"), _admission(b"a", "cid")])
        assert [type(answer) for answer in answers] == [Admitted, Admitted, Duplicate]
        assert store.admit([]) == []

    def test_kept(self, store: Any) -> None:
        """Stored events are counted until they are completed or buried, also while they run. Claims without a payload
        and other namespaces are not counted."""
        for key in (b"a" * 16, b"b" * 16, b"c" * 16):
            admit(store, key=key)
        admit(store, namespace="other")
        granted(store, key=b"d" * 16)
        assert store.kept(NAMESPACE) == 3
        assert [store.kept(NAMESPACE, limit) for limit in (2, 3, 4)] == [2, 3, 3]
        first, second = take(store), take(store)
        assert first is not None
        assert second is not None
        assert store.kept(NAMESPACE) == 3
        assert complete(store, first.record, key=first.key)
        assert bury(store, second.record, key=second.key)
        assert store.kept(NAMESPACE) == 1

    def test_any_payload(self, store: Any) -> None:
        """Any bytes are stored unchanged, also an empty payload."""
        for number, payload in enumerate([b"", b"\x00\xff", b"x" * 300_000]):
            key = bytes([number]) * 16
            admit(store, payload=payload, key=key, about=replace(ABOUT, entity=None))
            assert _taken(store).record.payload == payload

    # ── admission with a lease ────────────────────────────────────────────────────────────────────────────

    def test_admitted_with_a_lease(self, store: Any, clock: ManualClock) -> None:
        """If an admission with a lease is granted, its owner holds the claim until the claim is settled or the lease
        ends, as after a take. A store that does not grant the admission stores the event for a dispatcher."""
        answer = admit(store, lease=LEASE)
        assert isinstance(answer, Granted if self.grants else Admitted)
        assert answer == admit(store, lease=LEASE), "the same request, its answer lost"
        assert isinstance(admit(store, "bob", lease=LEASE), Duplicate)
        if self.grants:
            assert (answer.record.state, answer.record.attempts, answer.record.payload) == (IN_PROGRESS, 1, _PAYLOAD)
            assert take(store) is None
            assert store.kept(NAMESPACE) == 1
            clock.advance(LEASE)
        taken = _taken(store).record
        assert (taken.attempts, taken.lost) == (1, int(self.grants))

    def test_granted_is_settled(self, store: Any) -> None:
        """A claim granted by an admission is completed, released and taken again like any other claim."""
        first = admit(store, key=_key("a"), lease=LEASE, about=replace(ABOUT, entity="call-1"))
        second = admit(store, key=_key("b"), lease=LEASE, about=replace(ABOUT, entity="call-2"))
        if isinstance(first, Granted) and isinstance(second, Granted):
            assert complete(store, first.record, key=_key("a"))
            assert release(store, second.record, key=_key("b"), unstarted=True)
            assert (stored(store, _key("a")).payload, stored(store, _key("a")).state) == (None, COMPLETED)  # type: ignore[union-attr]
            assert (_taken(store).key, take(store)) == (_key("b"), None)

    def test_not_granted_before_others(self, store: Any) -> None:
        """An admission is not granted while another event of its entity waits or runs. It is also not granted if the
        same batch holds an event of the entity that happened earlier. Events of other entities do not matter."""
        _admit_events(store, "call-1", a=1)
        assert isinstance(admit(store, key=_key("b"), lease=LEASE, about=_about("call-1", 2)), Admitted)
        running = _taken(store)
        assert isinstance(admit(store, key=_key("c"), lease=LEASE, about=_about("call-1", 0)), Admitted)
        assert complete(store, running.record, key=running.key)
        assert isinstance(admit(store, key=_key("d"), lease=LEASE, about=_about("call-1", 9)), Admitted)
        two = [replace(_admission(name, "ann"), lease=LEASE, about=_about("call-2", at)) for name, at in _TWO]
        later, _ = store.admit(two)
        assert isinstance(later, Admitted)

    # ── the order ─────────────────────────────────────────────────────────────────────────────────────────

    def test_one_of_an_entity_at_a_time(self, store: Any) -> None:
        """Of the events of an entity, the event that happened first is handed out first. The next event is handed out
        after the first event is completed."""
        _admit_events(store, c=3, a=1, b=2)
        first = _taken(store)
        assert first.key == _key("a")
        assert _take(store) is None
        assert complete(store, first.record, key=first.key)
        assert _taken(store).key == _key("b")

    def test_in_the_order_of_a_batch(self, store: Any) -> None:
        """Events of one entity with equal times, or without a time, are handed out in the order of their admission."""
        for occurred_at in (None, 7):
            about = replace(ABOUT, entity=f"call at {occurred_at}", occurred_at=occurred_at)
            keys = [content(f"{name} at {occurred_at}") for name in "gbfahced"]
            store.admit([replace(_admission(b"x", "ann"), key=key, about=about) for key in keys])
            given = []
            while (taken := _take(store)) is not None:
                given.append(taken.key)
                assert complete(store, taken.record, key=taken.key)
            assert given == keys

    def test_entities_are_independent(self, store: Any) -> None:
        """Events of other entities and events without an entity are not delayed. One call can hand out many events."""
        _admit_events(store, "call-1", a=1, b=2)
        _admit_events(store, "call-2", c=1, d=2)
        _admit_events(store, None, e=1, f=2)
        requests = [TakeRequest(NAMESPACE, owner(f"d{number}"), LEASE, True) for number in range(6)]
        taken = [entry.key for entry in store.take(requests) if entry is not None]
        assert sorted(taken) == [_key(name) for name in "acef"]

    def test_many_waiting_events_of_one_entity(self, store: Any) -> None:
        """Even if many events of one entity were stored first, one call finds the events of other entities."""
        about = replace(ABOUT, entity="call-m")
        store.admit([replace(_admission(b"x", "ann"), key=b"%016d" % n, about=about) for n in range(600)])
        for name, entity in (("a", "call-a"), ("z", "call-z"), ("n", None)):
            _admit_events(store, entity, **{name: 1})
        requests = [TakeRequest(NAMESPACE, owner(f"d{number}"), LEASE, True) for number in range(9)]
        taken = [entry.key for entry in store.take(requests) if entry is not None]
        assert set(taken) == {_key("a"), _key("z"), _key("n"), b"%016d" % 0}

    def test_failed_blocks_its_entity(self, store: Any, clock: ManualClock) -> None:
        """A failed event is not handed out before its delay is over, and later events of its entity wait for it."""
        _admit_events(store, a=1, b=2)
        first = _taken(store)
        assert release(store, first.record, key=first.key, error="boom", delay=5 * SECOND)
        clock.advance(5 * SECOND - 1)
        assert _take(store) is None
        assert take(store) is not None, "out of order, the second need not wait"
        clock.advance(1)
        assert _take(store) is None, "an event of the entity is running"

    def test_handed_out_when_due(self, store: Any, clock: ManualClock) -> None:
        """A delayed event is handed out when it is due, exact to the microsecond."""
        _admit_events(store, a=1)
        first = _taken(store)
        assert release(store, first.record, key=first.key, delay=5 * SECOND)
        clock.advance(5 * SECOND - 1)
        assert _take(store) is None
        clock.advance(1)
        assert _taken(store).record.attempts == 2

    def test_buried_does_not_block_its_entity(self, store: Any) -> None:
        """A dead letter does not delay the other events of its entity."""
        _admit_events(store, a=1, b=2)
        first = _taken(store)
        assert bury(store, first.record, key=first.key)
        assert _taken(store).key == _key("b")

    def test_late_arrival(self, store: Any) -> None:
        """If an event arrives that happened before the running event of its entity, it waits until the running event
        has ended. Then it is handed out first."""
        _admit_events(store, b=2, c=3)
        running = _taken(store)
        _admit_events(store, a=1)
        assert _take(store) is None
        assert complete(store, running.record, key=running.key)
        assert _taken(store).key == _key("a")

    def test_lost_is_handed_out_first(self, store: Any, clock: ManualClock) -> None:
        """When the lease of a lost dispatcher has ended, its event is handed out again before the other events of the
        entity."""
        _admit_events(store, a=1, b=2)
        assert _taken(store).key == _key("a")
        clock.advance(LEASE)
        again = _taken(store)
        assert (again.key, again.record.attempts, again.record.lost) == (_key("a"), 1, 1)

    def test_dispatchers_race(self, store: Any) -> None:
        """With many dispatchers at once and late arrivals, each event is handed out once, and each entity has one
        running event at a time."""
        crowd = _Crowd(store)
        events = [(f"call-{line}", turn) for turn in range(8) for line in range(6)]
        for name, at in events[::2]:
            crowd.admit(name, at)
        with ThreadPoolExecutor(4) as threads:
            working = [threads.submit(crowd.work, f"d{number}", len(events)) for number in range(4)]
            for name, at in reversed(events[1::2]):
                crowd.admit(name, at)
            for each in working:
                each.result()
        assert crowd.overlaps == []
        assert sorted(crowd.done) == sorted(crowd.key(name, at) for name, at in events)


class _Crowd:
    """Dispatchers that take events, record the entities in progress, and complete the events."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._busy: set[str | None] = set()
        self._lock = threading.Lock()
        self.overlaps: list[str | None] = []
        self.done: list[bytes] = []

    def key(self, entity: str, at: int) -> bytes:
        return f"{entity} {at}".encode().ljust(16)

    def admit(self, entity: str, at: int) -> None:
        """Admit one event, with a lease if `at` is odd. If the event is granted, handle it."""
        key, lease = self.key(entity, at), LEASE * (at % 2)
        answer = admit(self._store, key=key, about=_about(entity, at), lease=lease)
        if isinstance(answer, Granted):
            self._handle(Entry(NAMESPACE, key, answer.record))

    def work(self, by: str, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.done) < count and time.monotonic() < deadline:
            requests = [TakeRequest(NAMESPACE, owner(f"{by}-{number}"), LEASE, True) for number in range(3)]
            for entry in self._store.take(requests):
                if entry is not None:
                    self._handle(entry)

    def _handle(self, entry: Entry) -> None:
        entity = entry.record.about.entity
        with self._lock:
            if entity in self._busy:
                self.overlaps.append(entity)
            self._busy.add(entity)
        time.sleep(0.001)
        with self._lock:
            self._busy.discard(entity)
        assert complete(self._store, entry.record, key=entry.key)
        self.done.append(entry.key)


def _key(name: str) -> bytes:
    return name.encode() * 16


def _about(entity: str, occurred_at: int) -> EventSummary:
    return replace(ABOUT, entity=entity, occurred_at=occurred_at)


def _admission(name: bytes, by: str) -> Admit:
    return Admit(NAMESPACE, name * 16, owner(by), content("one"), _PAYLOAD, ABOUT)


def _admit_events(store: Inbox, entity: str | None = "call-1", **happened: int) -> None:
    """Admit events of one entity, in this order, with these event times."""
    for name, at in happened.items():
        admit(store, name, key=_key(name), about=replace(ABOUT, entity=entity, occurred_at=at))


def _take(store: Store) -> Entry | None:
    return take(store, in_order=True)


def _taken(store: Store) -> Entry:
    entry = _take(store)
    assert entry is not None
    return entry


def _stored(store: Store) -> Record:
    record = stored(store, KEY)
    assert record is not None
    return record
